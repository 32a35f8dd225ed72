"""The status page: read-only, without external assets, live while it is looked at."""
