"""The control socket: HTTP and JSON over snapshots and requests."""
