"""Starts, watches, explains, kills and restarts the LLM inference servers of one GPU host."""

__version__ = "0.1.0"
