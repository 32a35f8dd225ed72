"""Turns the times that logs print into seconds and back, whether or not they carry a date or a year."""

from __future__ import annotations

import datetime
import functools
import re

_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_DATE = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)")
_DAY_S = 86400
_NO_YEAR = 4  # a leap year, so that 02-29 exists; differences within a year are right


@functools.lru_cache(maxsize=256)
def seconds(stamp: str) -> float:
    """Seconds on the log's own clock; 0 without a time. Only differences mean something."""
    found = _TIME.search(stamp)
    if found is None:
        return 0.0
    hours, minutes, secs, fraction = found.groups()
    part = float(f"0.{fraction}") if fraction else 0.0
    return _days(stamp[: found.start()]) * _DAY_S + int(hours) * 3600 + int(minutes) * 60 + int(secs) + part


def text(at: float, like: str) -> str:
    """The stamp of that moment, in the form of `like` (with as much of a date as that one has)."""
    days, rest = divmod(round(at), _DAY_S)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    date = _DATE.search(like)
    if date is None or days < 1:
        return clock
    day = datetime.date.fromordinal(days)
    return f"{day:%m-%d} {clock}" if date[1] is None else f"{day.year:04}-{day:%m-%d} {clock}"


def like(moment: str, stamp: str) -> str:
    """The moment with as much of a date as the stamp has: a log without years is compared without years."""
    date, given = _DATE.search(stamp), _DATE.search(moment)
    if given is None or (date is not None and date[1] is not None):
        return moment
    clock = moment[given.end() :]
    return clock if date is None else f"{given[2]}-{given[3]}{clock}"


def _days(date: str) -> int:
    found = _DATE.search(date)
    if found is None:
        return 0
    try:
        return datetime.date(int(found[1] or _NO_YEAR), int(found[2]), int(found[3])).toordinal()
    except ValueError:
        return 0
