"""Samples of one server."""

from __future__ import annotations

import msgspec

from supervisor.api.control import Clock
from supervisor.api.pulse import Stored
from supervisor.core import outlook
from supervisor.core.lifecycle import State
from supervisor.metrics import families as f
from supervisor.metrics.sheet import Sheet, Values
from supervisor.snapshot import ServerSnapshot, StartupView

STATES = tuple(str(state) for state in State)
VERDICTS = ("warming", "idle", "busy", "draining", "stalled", "degraded", "dead", "unknown")
RESULTS_OF_PROBES = ("success", "failure", "unknown", "held")
DETECTORS = ("learned", "standstill", "serving", "canary", "capacity")


class Known(msgspec.Struct, frozen=True):
    """What others know about a server."""

    model: str = ""
    config_hash: str = ""
    stored: Stored = Stored()
    processes: int | None = None
    log_lag_bytes: int | None = None
    log_segments: int = 0


def write(sheet: Sheet, snapshot: ServerSnapshot, clock: Clock, known: Known) -> None:
    """Everything about it as it is now."""
    _facets(sheet, snapshot, known)
    _start(sheet, snapshot, clock)
    _times(sheet, snapshot, clock)
    _signals(sheet, snapshot, clock)
    sheet.each(f.WOULD_HAVE, DETECTORS, snapshot.would_have_killed, snapshot.name)
    _belongings(sheet, snapshot.name, known)


def _facets(sheet: Sheet, snapshot: ServerSnapshot, known: Known) -> None:
    name, ready = snapshot.name, snapshot.healthy
    port, gpus = str(snapshot.port or ""), ",".join(map(str, snapshot.gpus))
    version = known.stored.engine_version
    sheet.add(f.SERVER, 1, name, snapshot.engine, version, known.model, port, gpus, known.config_hash)
    sheet.one_of(f.STATE, STATES, snapshot.lifecycle.value, name)
    sheet.one_of(f.VERDICT, VERDICTS, snapshot.verdict.value, name)
    for probe, facet in (
        ("startup", snapshot.startup),
        ("readiness", snapshot.readiness),
        ("liveness", snapshot.liveness),
    ):
        sheet.one_of(f.PROBE, RESULTS_OF_PROBES, facet.value, name, probe)
    sheet.add(f.GOAL_UP, int(snapshot.goal == "up"), name)
    sheet.add(f.READY, int(ready), name)
    sheet.add(f.GPUS_IDLE, len(snapshot.gpus) if _holds(snapshot) and not ready else 0, name)
    sheet.add(f.BUDGET, snapshot.budget_remaining, name)
    sheet.add(f.CAPACITY, snapshot.capacity_tokens, name)
    sheet.add(f.CAPACITY_EXPECTED, snapshot.capacity_expected, name)
    sheet.add(f.WAITS, int(bool(snapshot.turn)), name)
    for router in snapshot.routers:
        sheet.add(f.ROUTED, int(router.state == "joined"), name, router.name)


def _holds(snapshot: ServerSnapshot) -> bool:
    """Whether its devices are taken: by its processes, or by the wish to have it up."""
    return snapshot.goal == "up" or snapshot.lifecycle.value != State.STOPPED


def _start(sheet: Sheet, snapshot: ServerSnapshot, clock: Clock) -> None:
    name, start = snapshot.name, snapshot.start
    starting = start if snapshot.lifecycle.value == State.STARTING else None
    phases = dict.fromkeys(view.phase for view in snapshot.deadlines)
    if starting is not None:
        phases.setdefault(starting.phase)
        _progress(sheet, name, starting, snapshot, clock)
    sheet.one_of(f.PHASE, phases, starting.phase if starting else "", name)
    usual: Values = {(view.phase,): view.median_s for view in snapshot.deadlines if view.median_s is not None}
    patience: Values = {(view.phase,): view.stall_s for view in snapshot.deadlines if view.stall_s is not None}
    sheet.group(f.PHASE_USUAL, usual, name)
    sheet.group(f.PHASE_PATIENCE, patience, name)
    sheet.add(f.LAGGING_RANKS, len(outlook.laggards(starting)) if starting else 0, name)


def _progress(sheet: Sheet, name: str, start: StartupView, snapshot: ServerSnapshot, clock: Clock) -> None:
    sheet.add(f.PHASE_START, clock.wall_of(start.since), name)
    sheet.add(f.PHASE_DEADLINE, _wall(snapshot.deadline, clock), name)
    sheet.add(f.PHASE_PROGRESS, outlook.progress(start), name)
    sheet.add(f.ETA, _wall(outlook.ready_at(snapshot, clock.monotonic), clock), name)


def _times(sheet: Sheet, snapshot: ServerSnapshot, clock: Clock) -> None:
    name = snapshot.name
    sheet.add(f.LAST_PROGRESS, _wall(snapshot.last_progress, clock), name)
    sheet.add(f.START, _wall(snapshot.started, clock), name)
    sheet.add(f.READY_SINCE, _wall(snapshot.ready_since, clock), name)
    sheet.add(f.BACKOFF_UNTIL, _wall(snapshot.backoff_until, clock), name)
    if snapshot.exit is not None:
        sheet.add(f.LAST_EXIT_TIME, _wall(snapshot.exit.at, clock), name)
        sheet.add(f.LAST_EXIT_STATUS, snapshot.exit.code, name)


def _signals(sheet: Sheet, snapshot: ServerSnapshot, clock: Clock) -> None:
    for vote in snapshot.votes:
        if vote.says in ("moving", "still"):
            sheet.add(f.SIGNAL_MOVING, int(vote.says == "moving"), snapshot.name, vote.source)
            sheet.add(f.SIGNAL_TIME, _wall(vote.since, clock), snapshot.name, vote.source)


def _belongings(sheet: Sheet, name: str, known: Known) -> None:
    sheet.add(f.PROCESSES, known.processes, name)
    sheet.add(f.LOG_BYTES, known.stored.log_bytes, name)
    sheet.add(f.LOG_LAG, known.log_lag_bytes, name)
    sheet.add(f.LOG_SEGMENTS, known.log_segments, name)
    sheet.add(f.EVIDENCE_BYTES, known.stored.evidence_bytes, name)
    sheet.add(f.EVIDENCE_BUNDLES, known.stored.evidence_bundles, name)


def _wall(moment: float | None, clock: Clock) -> float | None:
    return None if moment is None else round(clock.wall_of(moment), 3)
