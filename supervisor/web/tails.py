"""Reads the last lines of the servers' logs, for readers whom the kernel knows."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread

from supervisor.api.control import Control
from supervisor.api.logs import LogFile

LINES = 12
BYTES = 8192  # of each log: progress bars come many to a line
LIMIT_S = 1.0
_LINE_END = re.compile(rb"[\r\n]+")

# One thread for all: a disk that hangs must not use up those that others wait for.
_one_at_a_time: WeakKeyDictionary[Control, anyio.CapacityLimiter] = WeakKeyDictionary()


async def tails(control: Control) -> Mapping[str, str]:
    """By server. A disk that does not answer costs the lines, never the page."""
    paths = {snapshot.name: snapshot.log_path for snapshot in control.snapshots() if snapshot.log_path}
    limiter = _one_at_a_time.setdefault(control, anyio.CapacityLimiter(1))
    with anyio.move_on_after(LIMIT_S):
        return await anyio.to_thread.run_sync(_read, paths, abandon_on_cancel=True, limiter=limiter)
    return {}


def _read(paths: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, path in paths.items():
        with contextlib.suppress(OSError), LogFile(path) as log:  # not made yet, or not ours to read
            found[name] = last_lines(log.read(max(0, log.size - BYTES), BYTES), whole=log.size <= BYTES)
    return found


def last_lines(data: bytes, *, whole: bool) -> str:
    """The last ones that say something; the first of a piece that begins in the middle is no line."""
    lines = [line for line in _LINE_END.split(data)[0 if whole else 1 :] if line.strip(b" \t\0")]
    return "\n".join(line.decode("utf-8", "replace") for line in lines[-LINES:])
