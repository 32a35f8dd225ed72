"""What is left of a past attempt's log, for whoever tells of its failure: its files, and its last lines."""

from __future__ import annotations

import os

from supervisor.api.logs import ArchivedLog, LogFile, open_log
from supervisor.edge.archive import attempt_of, log_bytes, segments

LINES = 5
_BYTES = 16 * 1024
_LINE_LETTERS = 300


def last_words(path: str) -> tuple[str, ...]:
    """The last lines that are not empty, archived or not; none when the log is gone. For a thread."""
    try:
        with open_log(path) as log:
            begin = max(0, log.size - _BYTES)
            data = _read(log, begin)
    except OSError:
        return ()  # removed by age, or by somebody: a story is told without it
    lines = [line.strip() for line in data.decode("utf-8", "replace").replace("\r", "\n").split("\n")]
    return tuple(line[:_LINE_LETTERS] for line in lines[1 if begin else 0 :] if line)[-LINES:]


def archived_as(path: str) -> tuple[str, ...]:
    """The files that hold an attempt's log which has none of its own any more. For a thread."""
    attempt, directory = attempt_of(path), os.path.dirname(path)
    if attempt is None or os.path.lexists(path):
        return ()
    return tuple(os.path.join(directory, one.name) for one in segments(directory, attempt))


def _read(log: LogFile, begin: int) -> bytes:
    """Without the hole that an archived beginning leaves."""
    attempt = attempt_of(log.path)
    if attempt is None or isinstance(log, ArchivedLog):
        return log.read(begin, log.size - begin)
    return b"".join(log_bytes(os.path.dirname(log.path), attempt, begin, log.size))
