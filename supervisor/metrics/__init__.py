"""The daemon's metrics for Prometheus, written from snapshots at scrape time."""
