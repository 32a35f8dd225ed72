"""How a start will go on by what earlier ones have taken: its usual bars, and when it will be ready."""

from __future__ import annotations

import msgspec

from supervisor.snapshot import ServerSnapshot, StartupView

SERVING = "healthy"


class UsualPhase(msgspec.Struct, frozen=True):
    """When a phase usually begins and ends, in seconds after the launch."""

    phase: str
    begin_s: float
    end_s: float


def usual(snapshot: ServerSnapshot) -> tuple[UsualPhase, ...]:
    """The usual start: the phases that this one went through in its order, then those that are known to follow."""
    medians = _medians(snapshot)
    entered = _entered(snapshot.start) if snapshot.start else []
    order = [*entered, *(phase for phase in medians if phase not in entered)]
    phases, at = [], 0.0
    for phase in order:
        if (seconds := medians.get(phase)) is not None:
            phases.append(UsualPhase(phase, at, at + seconds))
            at += seconds
    return tuple(phases)


def ready_at(snapshot: ServerSnapshot, now: float) -> float | None:
    """When the current start will be ready; None when nothing tells, and beside a bar that stands still.

    What is left of the current phase, by its bar or by its usual length, and the usual length of those to come. A start
    that is later than usual is expected at any moment: never in the past.
    """
    start = snapshot.start
    if start is None or snapshot.lifecycle.value != "starting":
        return None
    medians, bars = _medians(snapshot), _bars_s(start, now)
    if not medians or snapshot.doomed or stands_still(start, now):
        return None
    own_s = medians.get(start.phase)
    rest_s = max([*bars, *([own_s - (now - start.since)] if own_s is not None else []), 0.0])
    entered = _entered(start)
    later_s = sum(seconds for phase, seconds in medians.items() if phase not in entered)
    return now + rest_s + later_s


def progress(start: StartupView) -> float | None:
    """The bar of the phase that the start as a whole is in, of its slowest rank; None when it shows none."""
    ratios = [rank.progress.ratio for rank in start.ranks if rank.phase == start.phase and rank.progress is not None]
    return min(ratios) if ratios else None


def stands_still(start: StartupView, now: float) -> bool:
    """Whether a bar of the phase that the start as a whole is in has missed several of its own steps."""
    return any(rank.stands_still(now) for rank in start.ranks if rank.phase == start.phase)


def laggards(start: StartupView) -> frozenset[str]:
    """The ranks that hold the others up."""
    return frozenset(start.lagging)


def _medians(snapshot: ServerSnapshot) -> dict[str, float]:
    return {one.phase: one.median_s for one in snapshot.deadlines if one.median_s is not None and one.phase != SERVING}


def _entered(start: StartupView) -> list[str]:
    spans = sorted(start.timeline, key=lambda span: span.begin)
    return list(dict.fromkeys([*(span.phase for span in spans if span.phase != SERVING), start.phase]))


def _bars_s(start: StartupView, now: float) -> list[float]:
    left = [rank.left_s(now) for rank in start.ranks if rank.phase == start.phase]
    return [seconds for seconds in left if seconds is not None]
