"""Says how long each phase of a start took, whichever rank was in it."""

from __future__ import annotations

from itertools import pairwise

from supervisor.snapshot import StartupView


def phase_seconds(start: StartupView | None, end: float) -> dict[str, float]:
    """How long each phase of a finished start was the newest that any rank had entered: they add up to the whole."""
    entered: dict[str, float] = {}
    for span in sorted(start.timeline, key=lambda span: span.begin) if start else ():
        if span.phase != "healthy":
            entered.setdefault(span.phase, span.begin)
    moments = [*entered.items(), ("", end)]
    return {phase: max(0.0, after - begin) for (phase, begin), (_, after) in pairwise(moments)}
