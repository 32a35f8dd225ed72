"""Durations, sizes, whole numbers and signals as people write them and read them in a message."""

from __future__ import annotations

import re
import signal
from itertools import pairwise

MAX_DIGITS = 18  # fits 64 bits; Python itself refuses to read more than 4300 digits, with an exception
_DURATION_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_BYTE_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(ms|[dhms])", re.ASCII)
_DURATION = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_BYTES = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([KMGT]i?B|B)", re.ASCII)


def parse_whole(text: str) -> int | None:
    """The whole number that `text` is; None for anything else and for what nothing can be counted to."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None


def parse_duration(text: str) -> float:
    """Seconds of "90s", "5m", "1h30m" or "250ms". Raises ValueError; a number without a unit is refused."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f'expected a duration such as "90s", got "{text}"')
    parts = _PART.findall(text)
    sizes = [_DURATION_UNITS_S[unit] for _, unit in parts]
    if any(left <= right for left, right in pairwise(sizes)):
        raise ValueError(f'expected a duration with its units from large to small such as "1h30m", got "{text}"')
    return sum(float(number) * size for (number, _), size in zip(parts, sizes, strict=True))


def format_duration(seconds: float) -> str:
    """Two units at most, for people: "250 ms", "12 s", "7 m 12 s", "3 h 5 m", "2 d 4 h"."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if 0 < seconds < 0.9995:
        return f"{round(seconds * 1000)} ms"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return _largest_two(whole)


def format_tenths(seconds: float) -> str:
    """As `format_duration`, with tenths while they matter: "1.6 s"."""
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


def _largest_two(whole: int) -> str:
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    first = next(index for index, (_, size) in enumerate(units) if whole >= size)
    (unit, size), (next_unit, next_size) = units[first], units[first + 1]
    rest = whole % size // next_size
    return f"{whole // size} {unit} {rest} {next_unit}" if rest else f"{whole // size} {unit}"


def parse_bytes(text: str) -> int:
    """Bytes of "10GB" (powers of ten) or "512MiB" (powers of two). Raises ValueError."""
    match = _BYTES.fullmatch(text)
    if match is None:
        raise ValueError(f'expected a size such as "10GB" or "512MiB", got "{text}"')
    return round(float(match[1]) * _BYTE_UNITS[match[2]])


def format_bytes(count: float) -> str:
    """Powers of ten with three digits at most: "812 B", "1.5 MB", "131 GB"."""
    size, unit = float(count), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if abs(size) < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 99.95 else f"{size:.1f} {unit}"


def is_signal(name: str) -> bool:
    """Whether there is a signal of that name, written as TERM."""
    return f"SIG{name}" in signal.Signals.__members__


def signal_number(name: str) -> int:
    """Of a name that there is."""
    return signal.Signals[f"SIG{name}"].value
