"""Durations as the client's options take them: "90s", "5m", "1h30m", or seconds as a bare number."""

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
