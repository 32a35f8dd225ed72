"""Decides recorded nights anew, by today's rules, and lays both side by side."""
