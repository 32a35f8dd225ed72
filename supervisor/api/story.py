"""Tells in plain words why a server is as it is: the present, the last failure behind it, what happens next."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from supervisor.api.control import Clock
from supervisor.api.retelling import Failure, cause_of, end_of, mention, retell
from supervisor.api.words import describe, ended_in, since, state_of
from supervisor.core.lifecycle import GIVEN_UP
from supervisor.core.outlook import SERVING, stands_still
from supervisor.core.remedy import with_name
from supervisor.snapshot import FacetView, IncidentView, ServerSnapshot, StartupView, VoteView
from supervisor.units import format_duration

_PLAIN_VERDICTS = ("idle", "busy")
_PAUSED = "nothing is killed or started by itself until sglctl resume."
_TROUBLE = ("stalled", "dead", "degraded")
_MUCH_OF_ITS_PATIENCE = 1 / 3  # a start that has been silent for so much of what it may be is worth a look
_OUT_OF_USE = re.compile(r"\bGPU (\d+) is quarantined")
_CAUSE_FIRST = ("stopped", "backoff", *GIVEN_UP)


def sentences(snapshot: ServerSnapshot, clock: Clock, failure: Failure | None = None) -> tuple[str, ...]:
    """One fact a sentence, none twice. `failure` is the attempt to be told of, if one has failed."""
    return tuple(dict.fromkeys(with_name(line, snapshot.name) for line in _tell(snapshot, clock, failure)))


def is_past(snapshot: ServerSnapshot, incident: IncidentView, clock: Clock) -> bool:
    """Whether a failure is not what a server's present state comes from: it has another trouble, or was stopped."""
    return _at_wish(snapshot) or (incident.attempt != snapshot.attempt and _in_trouble(snapshot, clock))


def _at_wish(snapshot: ServerSnapshot) -> bool:
    return snapshot.lifecycle.value == "stopped" and snapshot.goal == "down" and snapshot.maintenance is None


def _in_trouble(snapshot: ServerSnapshot, clock: Clock) -> bool:
    match snapshot.lifecycle.value:
        case "starting":
            return snapshot.verdict.value in _TROUBLE or _silent(snapshot, clock)
        case "running":
            return snapshot.verdict.value in _TROUBLE or snapshot.readiness.value == "failure"
        case value:
            return value in ("draining", "stopping")


def _silent(snapshot: ServerSnapshot, clock: Clock) -> bool:
    start = snapshot.start
    if start is None or not start.last_progress:
        return False
    limit_s = None if snapshot.deadline is None else snapshot.deadline - start.last_progress
    long = limit_s is not None and clock.monotonic - start.last_progress > _MUCH_OF_ITS_PATIENCE * limit_s
    return long or stands_still(start, clock.monotonic)


def _tell(snapshot: ServerSnapshot, clock: Clock, failure: Failure | None) -> Iterator[str]:
    brief = failure is not None and failure.brief
    yield _head(snapshot, clock, told=failure is not None and not brief and _comes_from(snapshot, failure.incident))
    yield from _present(snapshot, clock)
    if snapshot.maintenance is not None:
        yield f"paused for {since(snapshot.maintenance.since, clock)} ({snapshot.maintenance.reason}): {_PAUSED}"
    if _at_wish(snapshot) and (brief or failure is None):
        yield from _stopped(snapshot, clock)
    elif failure is not None and not brief:
        newest = failure.incident.attempt == snapshot.attempt
        told = msgspec.structs.replace(failure, followed=not newest)
        yield from retell(told, clock, cause_first=newest and snapshot.lifecycle.value in _CAUSE_FIRST)
    elif failure is None and snapshot.exit is not None:
        yield end_of(snapshot.exit, clock)
        if snapshot.diagnosis is not None:
            yield from cause_of(snapshot.diagnosis)
    yield from (f"before the start: {finding}." for finding in snapshot.findings)
    yield from (f"router {one.name}: {one.state}{one.reason and f' ({one.reason})'}." for one in snapshot.routers)
    yield from _next(snapshot, clock)
    if failure is not None:
        yield from (mention(one, clock) for one in ([failure.incident] if brief else _before(snapshot, failure)))


def _before(snapshot: ServerSnapshot, failure: Failure) -> list[IncidentView]:
    """The failure right before the one that is told, where it has another cause: mending the one does not mend both."""
    told = failure.incident
    return [
        one
        for one in snapshot.incidents
        if one.attempt == told.attempt - 1
        and one.diagnosis
        and told.diagnosis
        and one.diagnosis.cause != told.diagnosis.cause
    ]


def _comes_from(snapshot: ServerSnapshot, incident: IncidentView) -> bool:
    """Whether a server was given up for a failure itself, and not for what came after it: a GPU out of use, a mate."""
    decided = incident.decision.partition(": ")[2]
    return snapshot.lifecycle.value not in GIVEN_UP or snapshot.lifecycle.reason.startswith(decided)


def _stopped(snapshot: ServerSnapshot, clock: Clock) -> Iterator[str]:
    """Who did it."""
    ended, reason = snapshot.exit, snapshot.lifecycle.reason
    if ended is not None and (not reason or (ended.reason and ended.reason in reason)):
        yield end_of(ended, clock)
    elif reason:
        yield f"stopped {since(snapshot.lifecycle.since, clock)} ago: {reason}."


def _head(snapshot: ServerSnapshot, clock: Clock, *, told: bool) -> str:
    """What `status` says, without the reason of a failure that is told below."""
    return (
        f"{snapshot.name} is {state_of(snapshot).name} ({_state(snapshot, clock, told)}); it is wanted {snapshot.goal}."
    )


def _state(snapshot: ServerSnapshot, clock: Clock, told: bool) -> str:
    lifecycle = snapshot.lifecycle.value
    if lifecycle == "backoff" and told and snapshot.backoff_until is not None:
        return f"{snapshot.budget_remaining} more starts allowed in this window"
    if lifecycle in GIVEN_UP and told:
        return f"{lifecycle} for {since(snapshot.lifecycle.since, clock)}"
    return describe(snapshot, clock)


def _present(snapshot: ServerSnapshot, clock: Clock) -> Iterator[str]:
    match snapshot.lifecycle.value:
        case "starting":
            if snapshot.start is not None:
                yield from _start(snapshot, snapshot.start, clock)
            yield from _ended_in(snapshot, clock)
            yield from _votes(snapshot, clock)
        case "running" if snapshot.verdict.value not in _PLAIN_VERDICTS or snapshot.readiness.value != "success":
            yield _facet("verdict", snapshot.verdict, clock)
            yield from _ended_in(snapshot, clock)
            yield _facet("readiness", snapshot.readiness, clock)
            yield from _votes(snapshot, clock)
        case "reclaiming" if snapshot.turn:
            pass  # for whom it waits, and how long, is its head
        case "reclaiming":
            what = "devices and ports are free" if snapshot.goal == "up" else "the memory is back"
            yield f"checking: whether {what}."
        case "draining" | "stopping":
            yield _facet(snapshot.lifecycle.value, snapshot.lifecycle, clock)
        case _:
            pass


def _ended_in(snapshot: ServerSnapshot, clock: Clock) -> Iterator[str]:
    yield from (f"it is {soon}, unless it ends by itself before." for soon in ended_in(snapshot, clock))


def _facet(name: str, facet: FacetView, clock: Clock) -> str:
    value = "" if facet.value == name else f" {facet.value}"
    reason = f": {facet.reason}" if facet.reason else ""
    return f"{name}{value} for {since(facet.since, clock)}{reason}."


def _votes(snapshot: ServerSnapshot, clock: Clock) -> Iterator[str]:
    """Of those who know something."""
    for vote in snapshot.votes:
        known = snapshot.start is not None and vote.source == "log" and vote.says == "moving"
        if vote.says != "unknown" and not known:
            yield f"{vote.source}: {_vote(vote, clock)}."


def _vote(vote: VoteView, clock: Clock) -> str:
    ago = "" if vote.since is None else since(vote.since, clock)
    match vote.source, vote.says:
        case "log", "still" if ago:
            return f"nothing new for {ago}"
        case "log", "moving" if ago:
            return f"last progress {ago} ago"
        case _, "still" if ago:
            return f"still for {ago}{_in_brackets(vote.text)}"
        case _:
            return f"{vote.says}{_in_brackets(vote.text)}"


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def _start(snapshot: ServerSnapshot, start: StartupView, clock: Clock) -> Iterator[str]:
    moved = f"; last progress {since(start.last_progress, clock)} ago" if start.last_progress else ""
    where = "is ready by its log" if start.phase == SERVING else f"is in phase {start.phase}"
    yield f"attempt {snapshot.attempt} {where} for {since(start.since, clock)}{moved}."
    if start.laggard:
        yield f"{start.laggard}."
    for rank in start.ranks:
        if rank.last_line and start.laggard.startswith(rank.rank) and rank.rank:
            yield f"last line of {rank.rank}: {rank.last_line}"
    if snapshot.deadline is not None:
        left_s = snapshot.deadline - clock.monotonic
        yield f"it is called stalled in {format_duration(left_s)}." if left_s > 0 else "its deadline has passed."


def _next(snapshot: ServerSnapshot, clock: Clock) -> Iterator[str]:
    waits = f"sglctl wait {snapshot.name} returns when it is healthy."
    match snapshot.lifecycle.value:
        case "stopped" if snapshot.maintenance is not None and snapshot.goal == "up":
            yield f"next: held back by maintenance; sglctl resume {snapshot.name} starts it."
        case "backoff" if snapshot.backoff_until is not None:
            left = format_duration(max(0.0, snapshot.backoff_until - clock.monotonic))
            yield f"next: starts again in {left}; {waits}"
        case "backoff":
            yield f"next: starts again by itself; {waits}"
        case "starting" if snapshot.restarts:
            yield f"next: {waits}"
        case "reclaiming" if snapshot.turn:
            yield f"next: starts by itself when its turn comes; {waits}"
        case "reclaiming" if snapshot.goal == "up":
            who = " (sglctl gpus tells whose memory it is)" if snapshot.gpus else ""
            yield f"next: goes on by itself when they are free{who}; {waits}"
        case "draining" | "stopping" | "reclaiming" if snapshot.goal == "down":
            yield f"next: stays stopped; sglctl wait {snapshot.name} --for stopped returns when nothing is left of it."
        case "draining" | "stopping":
            yield f"next: once nothing is left of it, it starts again, or is given up if that cannot help; {waits}"
        case "stopped" if _at_wish(snapshot):
            yield f"next: nothing, until somebody starts it: sglctl start {snapshot.name}"
        case "quarantined" if gpus := dict.fromkeys(_OUT_OF_USE.findall(snapshot.lifecycle.reason)):
            freed = ", ".join(f"sglctl gpu release {gpu}" for gpu in gpus)
            yield f"next: nothing, until it has its devices back ({freed}) and somebody starts it: sglctl start NAME"
        case "fatal" | "quarantined":
            yield f"next: nothing, until somebody starts it: sglctl start {snapshot.name}"
        case _:
            pass
