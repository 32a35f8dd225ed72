"""Tells a server again what its attempt had logged before this daemon was there."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path

import anyio.to_thread
import structlog

from supervisor.core.log.grammar import LogReader
from supervisor.core.server import Server
from supervisor.events import LineMatched
from supervisor.lines import LineCutter
from supervisor.profile import Profile
from supervisor.saved import SavedAttempt
from supervisor.shell import clock
from supervisor.shell.logfeed import masked

# Only the end of a log is read again, and of a starting server also the beginning: what a serving one's start said is
# in the record, what it said while nobody watched is at the end. A flood in between must not hold up our own start.
_TAIL_BYTES = 4 * 2**20
_HEAD_BYTES = 4 * 2**20

log = structlog.get_logger()


async def recall(server: Server, profile: Profile, saved: SavedAttempt, *, over: bool = False) -> int:
    """Tell the server what its attempt has logged so far. The offset from which the log is to be followed.

    `over`: nobody is left who could go on with its last line.
    """
    return await anyio.to_thread.run_sync(_recall, server, profile, saved, over)


def _recall(server: Server, profile: Profile, saved: SavedAttempt, over: bool) -> int:
    times = _Times(saved.begun)
    head = _HEAD_BYTES if saved.ready_at is None else 0
    try:
        size = os.stat(saved.log_path).st_size
        begin = max(0, size - _TAIL_BYTES)
        if head and begin:
            _tell(server, profile, saved, times, _read(saved.log_path, 0, min(head, begin)), 0)
        data = _read(saved.log_path, begin, size)
    except OSError as problem:
        log.warning("log", server=server.settings.name, problem=f"cannot read {saved.log_path} again: {problem}")
        return 0
    skipped = data.find(b"\n") + 1 if begin else 0
    if over:
        _tell(server, profile, saved, times, data[skipped:] + b"\n", begin + skipped, last=True)
        return begin + len(data)
    end = data.rfind(b"\n") + 1  # the open line is read again when it has its end
    _tell(server, profile, saved, times, data[skipped:end], begin + skipped)
    return begin + end


def _read(path: str, begin: int, end: int) -> bytes:
    with Path(path).open("rb") as file:
        file.seek(begin)
        return file.read(end - begin)


def _tell(
    server: Server,
    profile: Profile,
    saved: SavedAttempt,
    times: _Times,
    data: bytes,
    offset: int,
    *,
    last: bool = False,
) -> None:
    reader = LogReader(profile, saved.number)
    events = reader.read(LineCutter(offset=offset).feed(data))
    for event in [*events, *(reader.finish() if last else ())]:
        server.recall(masked(event), times.of(event))


class _Times:
    """When a record was written, on our clock: stamps are local wall time in seconds, and never run backwards here."""

    def __init__(self, begun: float) -> None:
        self._last = begun
        self._now = clock.monotonic()
        self._offset = time.time() - self._now

    def of(self, event: LineMatched) -> float:
        """Between the attempt's begin and now; a line without a stamp is as old as the one before."""
        try:
            stamp = datetime.fromisoformat(event.stamp).timestamp() - self._offset
        except ValueError:
            return self._last
        self._last = min(self._now, max(self._last, stamp))
        return self._last
