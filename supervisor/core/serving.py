"""Judges a serving server by everything that is known of it: its requests, its processes, its probes, its capacity."""

from __future__ import annotations

import msgspec

from supervisor.core.health import Health, HealthBook
from supervisor.core.settings import Settings
from supervisor.core.vitals import Standstill, Vitals

_BUSY_FOR_S = 15.0
_OWN_ECHO_S = 1.0  # the log tells of our own request a moment before or after its answer


class Charge(msgspec.Struct, frozen=True):
    """A detector says that the attempt must be ended."""

    detector: str
    reason: str


class Judgement(msgspec.Struct, frozen=True):
    """The verdict with its reason; `charge` when it is to be acted upon."""

    verdict: str
    reason: str
    charge: Charge | None = None


class Facts(msgspec.Struct):
    """What the judgement looks at. `progress_at`: the last progress that the log told."""

    settings: Settings
    vitals: Vitals
    health: HealthBook
    ready_at: float
    progress_at: float
    canary_failures: int = 0
    canary_detail: str = ""
    capacity: int | None = None
    capacity_expected: int | None = None
    canary_at: float = 0.0  # when our own last request was answered


def judge(facts: Facts, now: float) -> Judgement:
    """The first that applies, the gravest first."""
    return (
        _standing_still(facts)
        or _mute(facts, now)
        or _starved(facts, now)
        or _insane(facts)
        or _unready(facts)
        or _shrunken(facts)
        or _working(facts, now)
    )


def standstill_charge(still: Standstill, settings: Settings) -> Charge | None:
    """A process with a role that stood still for too long, by the looks at it: it may have gone on since the last."""
    limit_s = settings.serving.stopped_s if still.process.state in "Tt" else settings.serving.stuck_s
    return Charge("standstill", f"{still.words} for {still.lasted_s:.0f} s") if still.lasted_s >= limit_s else None


def _standing_still(facts: Facts) -> Judgement | None:
    for still in facts.vitals.standstills():
        if still.process.state == "D" and still.lasted_s < facts.settings.serving.stuck_s:
            continue  # a moment in the kernel is every disk read
        return Judgement("stalled", still.words, standstill_charge(still, facts.settings))
    return None


def _mute(facts: Facts, now: float) -> Judgement | None:
    """The probes have failed for long, and nothing else speaks for the server."""
    failing = facts.health.failing_since
    if facts.health.opinion.liveness is not Health.FAILURE or failing is None:
        return None
    if _moved_at(facts) > max(failing, now - facts.settings.readiness.liveness_stall_s):
        return None
    reason = f"stalled while serving: {facts.health.opinion.reason}, and nothing else moves"
    return Judgement("stalled", reason, Charge("serving", reason))


def _starved(facts: Facts, now: float) -> Judgement | None:
    """Requests go in and nothing comes out, whatever the probes say (a hung server can answer 200)."""
    busy_since = facts.vitals.busy_since
    if busy_since is None:
        return None
    silent_s = now - max(busy_since, _moved_at(facts))
    if silent_s < facts.settings.serving.stall_s:
        return None
    waiting = f"{facts.vitals.running or 0:.0f} running and {facts.vitals.queued or 0:.0f} queued requests"
    reason = f"stalled while serving: {waiting}, no token for {silent_s:.0f} s"
    return Judgement("stalled", reason, Charge("serving", reason))


def _insane(facts: Facts) -> Judgement | None:
    if facts.canary_failures < facts.settings.serving.canary_threshold:
        return None
    reason = f"{facts.canary_failures} canary requests in a row failed: {facts.canary_detail}"
    return Judgement("degraded", reason, Charge("canary", reason))


def _unready(facts: Facts) -> Judgement | None:
    if facts.health.opinion.readiness is not Health.FAILURE:
        return None
    return Judgement("degraded", facts.health.opinion.reason)


def _shrunken(facts: Facts) -> Judgement | None:
    """Memory that somebody else held at the start makes an engine start happily with a ninth of its cache."""
    have, usual = facts.capacity, facts.capacity_expected
    if not have or not usual or have >= usual * (1 - facts.settings.serving.capacity_drop):
        return None
    reason = f"room for {have} tokens, {have / usual:.0%} of the {usual} of the last good start"
    return Judgement("degraded", reason, Charge("capacity", reason))


def _working(facts: Facts, now: float) -> Judgement:
    vitals = facts.vitals
    if vitals.running or vitals.queued:
        return Judgement("busy", f"{vitals.running or 0:.0f} running, {vitals.queued or 0:.0f} queued")
    moved = _moved_at(facts)
    if now - moved <= _BUSY_FOR_S and moved > max(facts.ready_at, facts.canary_at + _OWN_ECHO_S):
        return Judgement("busy", "requests move")
    return Judgement("idle", facts.health.opinion.reason)


def _moved_at(facts: Facts) -> float:
    """Tokens, log progress, a compiler at work: what proves life. CPU does not: a spinning rank burns it."""
    vitals = facts.vitals
    moments = (facts.progress_at, vitals.tokens_at, vitals.compiling_at)
    return max(moment for moment in moments if moment is not None)
