"""Durations as the client takes them ("90s", "5m", "1h30m", as the configuration has them) and as it writes them."""

from __future__ import annotations

import re

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(ms|[dhms])", re.ASCII)


def seconds(text: str) -> float:
    """Raises ValueError, which argparse turns into a usage error."""
    parts = _PART.findall(text)
    sizes = [_UNITS_S[unit] for _, unit in parts]
    whole = "".join(number + unit for number, unit in parts) == text
    if not parts or not whole or sizes != sorted(set(sizes), reverse=True):
        raise ValueError(text)
    return sum(float(number) * size for (number, _), size in zip(parts, sizes, strict=True))


def short(seconds_: float) -> str:
    """As `words`, but "5 s" for a duration that somebody set so."""
    return f"{round(seconds_)} s" if seconds_ < 10 and seconds_ == round(seconds_) else words(seconds_)


def words(seconds_: float) -> str:
    """Two units at most: "0.4 s", "12 s", "7 m 12 s", "3 h 5 m"."""
    if seconds_ < 10:
        return f"{max(0.0, seconds_):.1f} s"
    whole = round(seconds_)
    if whole < 60:
        return f"{whole} s"
    for unit, size, next_unit, next_size in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {unit}" + (f" {rest} {next_unit}" if rest else "")
    return f"{whole} s"
