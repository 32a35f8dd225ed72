"""Reads the last lines of the servers' logs, for readers whom the kernel knows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread

from supervisor.api.control import Control
from supervisor.api.lastwords import last_lines
from supervisor.api.logs import LogFile

LINES = 12
BYTES = 8192  # of each log: progress bars come many to a line
LIMIT_S = 1.0

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
            end = log.read(max(0, log.size - BYTES), BYTES)
            found[name] = "\n".join(last_lines(end, LINES, whole=log.size <= BYTES))
    return found
