"""Looks at what a start will need, in a process of its own that becomes the server's user and may hang without harm."""

from supervisor.edge.inspect.ask import inspect

__all__ = ["inspect"]
