"""Reads what an engine writes: lines, records, tracebacks, and what the profile's rules find in them."""
