"""What is left of an attempt's log, for whoever tells of its failure: its files, and its last lines."""

from __future__ import annotations

import os
import re

from supervisor.api.logs import ArchivedLog, LogFile, open_log
from supervisor.edge.archive import attempt_of, log_bytes, segments

LINES = 5
_BYTES = 16 * 1024
_LINE_LETTERS = 300
_LINE_END = re.compile(rb"[\r\n]+")
_SAYS_NOTHING = b" \t\v\f\0"  # also the hole that an archived beginning leaves


def last_words(path: str) -> tuple[str, ...]:
    """The last lines that are not empty, archived or not; none when the log is gone. For a thread."""
    try:
        with open_log(path) as log:
            begin = max(0, log.size - _BYTES)
            data = _read(log, begin)
    except OSError:
        return ()  # removed by age, or by somebody: a story is told without it
    return tuple(line.strip()[:_LINE_LETTERS] for line in last_lines(data, LINES, whole=begin == 0))


def last_lines(data: bytes, count: int, *, whole: bool) -> list[str]:
    """The last ones that say something; the first of a piece that begins in the middle is no line."""
    lines = [line for line in _LINE_END.split(data)[0 if whole else 1 :] if line.strip(_SAYS_NOTHING)]
    return [line.decode("utf-8", "replace") for line in lines[-count:]]


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
