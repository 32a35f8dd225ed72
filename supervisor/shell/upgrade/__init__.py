"""Replaces the daemon's code while the servers go on."""
