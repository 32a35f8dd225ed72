"""Reads the last lines of the servers' logs, for readers whom the kernel knows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from supervisor.api import files
from supervisor.api.control import Control
from supervisor.api.lastwords import last_lines
from supervisor.api.logs import LogFile

LINES = 12
BYTES = 8192  # of each log: progress bars come many to a line
LIMIT_S = 1.0


async def tails(control: Control) -> Mapping[str, str]:
    """By server. A disk that does not answer costs the lines, never the page."""
    paths = {snapshot.name: snapshot.log_path for snapshot in control.snapshots() if snapshot.log_path}
    try:
        return await files.in_thread(_read, paths, limit_s=LIMIT_S)
    except TimeoutError:
        return {}


def _read(paths: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, path in paths.items():
        with contextlib.suppress(OSError), LogFile(path) as log:  # not made yet, or not ours to read
            end = log.read(max(0, log.size - BYTES), BYTES)
            found[name] = "\n".join(last_lines(end, LINES, whole=log.size <= BYTES))
    return found
