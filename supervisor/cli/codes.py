"""The client's exit codes: scripts rely on them, so they are in one place."""

from __future__ import annotations

OK = 0
ERROR = 1
USAGE = 2
NOT_RUNNING = 3
UNKNOWN = 4  # no such name, or no daemon
TIMED_OUT = 5
INTERRUPTED = 130


def worst(codes: list[int]) -> int:
    """The exit code of several names: an unknown name outweighs an error, an error outweighs one not running."""
    return max(codes, key=(OK, NOT_RUNNING, TIMED_OUT, ERROR, UNKNOWN, USAGE).index, default=OK)
