"""How a start will go on by what earlier ones have taken: its usual bars, and when it will be ready."""

from __future__ import annotations

import msgspec

from supervisor.snapshot import ServerSnapshot, StartupView

SERVING = "healthy"
_LATE_FACTOR = 2.0  # a phase that takes longer than usual by this, and by that, tells nothing of its end
_LATE_S = 60.0


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
    """When the current start will be ready; None when nothing tells, and of one that is overdue.

    What is left of the current phase, by its bar or by its usual length, and the usual length of those to come. A start
    that is a little later than usual is expected at any moment: never in the past.
    """
    start = snapshot.start
    if start is None or snapshot.lifecycle.value != "starting":
        return None
    medians, bars = _medians(snapshot), _bars_s(start, now)
    if not medians or snapshot.doomed or _stopped(start, medians, now):
        return None
    own_s = medians.get(start.phase)
    rest_s = max([*bars, *([own_s - (now - start.since)] if own_s is not None else []), 0.0])
    entered = _entered(start)
    later_s = sum(seconds for phase, seconds in medians.items() if phase not in entered)
    return now + rest_s + later_s


def overdue(snapshot: ServerSnapshot, now: float) -> bool:
    """Whether earlier starts are known, and this one does not go as they did: it is lost, stands still, or is in a
    phase for far longer than they were. When it will be ready, if ever, nobody can tell.
    """
    start = snapshot.start
    if start is None or snapshot.lifecycle.value != "starting":
        return False
    medians = _medians(snapshot)
    return bool(medians) and (snapshot.doomed or _stopped(start, medians, now))


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


def _stopped(start: StartupView, medians: dict[str, float], now: float) -> bool:
    return stands_still(start, now) or _late(start, medians.get(start.phase), now)


def _late(start: StartupView, own_s: float | None, now: float) -> bool:
    """A bar that goes on tells of the end, however late."""
    if own_s is None or _bars_s(start, now):
        return False
    return now - start.since > max(own_s * _LATE_FACTOR, own_s + _LATE_S)


def _medians(snapshot: ServerSnapshot) -> dict[str, float]:
    return {one.phase: one.median_s for one in snapshot.deadlines if one.median_s is not None and one.phase != SERVING}


def _entered(start: StartupView) -> list[str]:
    spans = sorted(start.timeline, key=lambda span: span.begin)
    return list(dict.fromkeys([*(span.phase for span in spans if span.phase != SERVING), start.phase]))


def _bars_s(start: StartupView, now: float) -> list[float]:
    left = [rank.left_s(now) for rank in start.ranks if rank.phase == start.phase]
    return [seconds for seconds in left if seconds is not None]
