"""Moments of the monotonic clock as readers outside get them: ISO 8601 by the wall clock, and seconds beside it."""

from __future__ import annotations

from datetime import UTC, datetime

from supervisor.api.control import Clock


def iso(wall: float) -> str:
    """Epoch seconds as ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def iso_or_none(moment: float | None, clock: Clock) -> str | None:
    return None if moment is None else iso(clock.wall_of(moment))


def ago(moment: float | None, clock: Clock) -> float | None:
    return None if moment is None else seconds(clock.monotonic - moment)


def seconds(value: float) -> float:
    """Never negative: a moment in the future by rounding is now."""
    return round(max(0.0, value), 3)
