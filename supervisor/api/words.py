"""Says a server's state in supervisord's words, so that old habits and the real supervisorctl work."""

from __future__ import annotations

import enum
import re
import time

from supervisor.api.control import Clock
from supervisor.core.outlook import SERVING, stands_still
from supervisor.snapshot import DrainView, ServerSnapshot, StartupView
from supervisor.units import format_duration


class State(enum.IntEnum):
    """supervisord's process states with its numbers."""

    STOPPED = 0
    STARTING = 10
    RUNNING = 20
    BACKOFF = 30
    STOPPING = 40
    EXITED = 100
    FATAL = 200
    UNKNOWN = 1000


UP = (State.STARTING, State.RUNNING, State.BACKOFF)
_COUNT = re.compile(r"; restart (\d+)$")  # with which the reason of a pause ends
SIGNALABLE = (State.STARTING, State.RUNNING, State.STOPPING)


def state_of(snapshot: ServerSnapshot) -> State:
    """The supervisord state that tells an operator the same as our facets."""
    match snapshot.lifecycle.value:
        case "stopped":
            return State.EXITED if snapshot.exit is not None and snapshot.goal == "up" else State.STOPPED
        case "starting":
            return State.STARTING
        case "running":
            return State.RUNNING
        case "draining" | "stopping":
            return State.STOPPING
        case "reclaiming":  # before a start the devices are still dirty; after a stop they are being proven free
            return State.STARTING if snapshot.goal == "up" else State.STOPPING
        case "backoff":
            return State.BACKOFF
        case "fatal" | "quarantined":
            return State.FATAL
        case _:
            return State.UNKNOWN


def describe(snapshot: ServerSnapshot, clock: Clock) -> str:
    """The third column of `status`."""
    paused = [] if snapshot.maintenance is None else ["paused"]
    parts = [_main_part(snapshot, clock), *_routers(snapshot), *_restarts(snapshot), *paused, snapshot.ends]
    return ", ".join(part for part in parts if part)


def _main_part(snapshot: ServerSnapshot, clock: Clock) -> str:
    match snapshot.lifecycle.value:
        case "running":
            return _running(snapshot, clock)
        case "starting":
            return _starting(snapshot, clock)
        case "draining" if snapshot.drain is not None:
            return _draining(snapshot, snapshot.drain, clock)
        case "backoff":
            return _backoff(snapshot, clock)
        case "stopped" if snapshot.exit is None:
            return "Not started"
        case "stopped":
            return _stop_time(snapshot, clock)
        case "quarantined":
            return f"quarantined: {_without_remedy(snapshot)}"
        case "fatal":
            return _without_remedy(snapshot)
        case _:
            return _under_way(snapshot, clock)


def _running(snapshot: ServerSnapshot, clock: Clock) -> str:
    since = snapshot.ready_since if snapshot.ready_since is not None else snapshot.lifecycle.since
    text = f"pid {snapshot.pid}, uptime {_uptime(clock.monotonic - since)}"
    told = [] if snapshot.verdict.value in ("idle", "unknown") else [_verdict(snapshot)]
    return ", ".join([text, *told, *ended_in(snapshot, clock)])


def _verdict(snapshot: ServerSnapshot) -> str:
    """Reasons mostly begin with the verdict: "stalled in verify-graph: …"."""
    value, reason = snapshot.verdict.value, snapshot.verdict.reason
    if reason.startswith(value):
        return reason
    return f"{value}: {reason}" if reason and value in ("stalled", "degraded", "dead") else value


def _starting(snapshot: ServerSnapshot, clock: Clock) -> str:
    start = snapshot.start
    if start is None:
        return _under_way(snapshot, clock)
    if start.phase == SERVING:
        parts = [f"ready by its log for {since(start.since, clock)}, but {probe_says(snapshot)}"]
    else:
        parts = [f"{start.phase}{_percent(start)} for {since(start.since, clock)}"]
    if start.laggard:
        parts.append(f"{start.laggard.partition(' still in ')[0]} slowest")
    inside = [rank for rank in start.ranks if rank.phase == start.phase]
    left = [left_s for rank in inside if (left_s := rank.left_s(clock.monotonic)) is not None]
    if stands_still(start, clock.monotonic):
        parts.append(f"no progress for {since(start.last_progress, clock)}")
    elif left and not snapshot.doomed:
        parts.append(f"about {format_duration(max(left))} left in it")
    if snapshot.verdict.value in ("stalled", "dead", "degraded"):
        parts.append(_verdict(snapshot))
    return ", ".join([*parts, *ended_in(snapshot, clock)])


def ended_in(snapshot: ServerSnapshot, clock: Clock) -> list[str]:
    """When a dead one is ended. Of a paused one nothing is."""
    if snapshot.ends_at is None or snapshot.maintenance is not None:
        return []
    return [f"ended in {format_duration(max(0.0, snapshot.ends_at - clock.monotonic))}"]


def probe_says(snapshot: ServerSnapshot) -> str:
    """Of a server that calls itself ready. Asked at another port than its own, it would stay so for ever."""
    asked = f" (asked at port {snapshot.port})" if snapshot.port else ""
    return f"{snapshot.verdict.reason or 'no probe has succeeded'}{asked}"


def _percent(start: StartupView) -> str:
    ratios = [rank.progress.ratio for rank in start.ranks if rank.phase == start.phase and rank.progress is not None]
    return f" {min(ratios) * 100:.0f} %" if ratios else ""


def _backoff(snapshot: ServerSnapshot, clock: Clock) -> str:
    """Count, next start and cause, each once. The cause is last: it may be long, and a terminal cuts lines."""
    cause = _cause(snapshot)
    count = _COUNT.search(cause)
    parts = []
    if count or snapshot.restarts:
        parts.append(f"restart {count[1] if count else snapshot.restarts}")
    if snapshot.backoff_until is not None:
        parts.append(f"next start in {format_duration(max(0.0, snapshot.backoff_until - clock.monotonic))}")
    told = cause[: count.start()] if count else cause
    return f"{', '.join(parts)}: {told}" if parts else told


def _draining(snapshot: ServerSnapshot, drain: DrainView, clock: Clock) -> str:
    """What runs, how long it may, and why nobody knows."""
    parts = ["leaving its routers"] if snapshot.stop_stage == "leave" else []
    if drain.requests is None:
        parts.append("running requests are not known")
    else:
        parts.append(f"{drain.requests} request{'' if drain.requests == 1 else 's'} running")
    if drain.until is not None:
        parts.append(f"{format_duration(max(0.0, drain.until - clock.monotonic))} left")
    return f"draining: {', '.join(parts)}" + (f"; {drain.note}" if drain.note else "")


def _routers(snapshot: ServerSnapshot) -> list[str]:
    """Of a serving server, what it misses; the reasons are for `why`."""
    if snapshot.lifecycle.value != "running":
        return []
    missed = [router for router in snapshot.routers if router.state in ("unreachable", "joining")]
    return [f"router {router.name} {router.state}" for router in missed]


def _under_way(snapshot: ServerSnapshot, clock: Clock) -> str:
    if snapshot.turn:
        return waiting(snapshot.turn, since(snapshot.lifecycle.since, clock))
    what = stage_words(snapshot.stop_stage) or snapshot.lifecycle.reason or snapshot.lifecycle.value
    if snapshot.lifecycle.value == "reclaiming" and snapshot.lifecycle.reason:
        # The reason may be a sentence: how long stands before it. Whatever stage its end had come to, it is over.
        return f"checking for {since(under_way_since(snapshot), clock)}: {snapshot.lifecycle.reason}"
    stalled = "stalled, " if snapshot.stop_stage and snapshot.verdict.value == "stalled" else ""
    return f"{stalled}{what} for {since(under_way_since(snapshot), clock)}"


def under_way_since(snapshot: ServerSnapshot) -> float:
    """Since when it does what it does: how long it waited for its turn before is no part of it."""
    return snapshot.lifecycle.since if snapshot.turn_came is None else snapshot.turn_came


def waiting(turn: str, waited: str) -> str:
    """How long it has waited stands by the wait: a start's own time begins with its launch."""
    return (
        f"waiting {waited} {turn.removeprefix('waits ')}" if turn.startswith("waits for ") else f"{turn} for {waited}"
    )


def stage_words(stage: str) -> str:
    """How far an end has gone."""
    return {"evidence": "keeping evidence", "term": "asked to end", "kill": "being killed"}.get(stage, stage)


def _cause(snapshot: ServerSnapshot) -> str:
    if snapshot.lifecycle.reason:
        return snapshot.lifecycle.reason
    if snapshot.diagnosis is not None:
        return snapshot.diagnosis.cause
    return snapshot.exit.reason if snapshot.exit is not None and snapshot.exit.reason else "unknown error"


def _without_remedy(snapshot: ServerSnapshot) -> str:
    """A line has no room for what to change: `why` tells it."""
    remedy = snapshot.diagnosis.remedy if snapshot.diagnosis is not None else ""
    return _cause(snapshot).removesuffix(f": {remedy}") if remedy else _cause(snapshot)


def _restarts(snapshot: ServerSnapshot) -> list[str]:
    if snapshot.restarts == 0 or snapshot.lifecycle.value in ("stopped", "backoff"):
        return []
    return [f"{snapshot.restarts} restart{'' if snapshot.restarts == 1 else 's'}"]


def _stop_time(snapshot: ServerSnapshot, clock: Clock) -> str:
    """supervisord's form, in the daemon's time zone: "Nov 29 01:10 PM"."""
    moment = snapshot.exit.at if snapshot.exit is not None else snapshot.lifecycle.since
    return time.strftime("%b %d %I:%M %p", time.localtime(clock.wall_of(moment)))


def since(moment: float, clock: Clock) -> str:
    """How long ago, in words."""
    return format_duration(max(0.0, clock.monotonic - moment))


def _uptime(seconds: float) -> str:
    """supervisord's form: "0:00:04", "1 day, 2:03:04"."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    clock_text = f"{rest // 3600}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return clock_text if days == 0 else f"{days} day{'' if days == 1 else 's'}, {clock_text}"
