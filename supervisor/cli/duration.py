"""Durations as the client takes them ("90s", "5m", "1h30m", or seconds as a bare number) and as it writes them."""

from __future__ import annotations

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """Raises ValueError, which argparse turns into a usage error."""
    if text.replace(".", "", 1).isdigit() and text.isascii():
        return float(text)
    total, rest = 0.0, text
    while rest:
        number = rest[: len(rest) - len(rest.lstrip("0123456789."))]
        rest = rest[len(number) :]
        unit = next((unit for unit in _UNITS_S if rest.startswith(unit)), None)
        if not number or unit is None:
            raise ValueError(text)
        total += float(number) * _UNITS_S[unit]
        rest = rest[len(unit) :]
    if not text:
        raise ValueError(text)
    return total


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
