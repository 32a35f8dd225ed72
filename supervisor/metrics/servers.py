"""Samples of one server."""

from __future__ import annotations

from supervisor.api.control import Clock
from supervisor.api.pulse import Stored
from supervisor.api.words import is_healthy
from supervisor.core import outlook
from supervisor.core.lifecycle import State
from supervisor.core.reasons import Reason
from supervisor.core.tally import EXIT_KINDS, LOSSES, RESULTS, Account
from supervisor.metrics import families as f
from supervisor.metrics.sheet import Sheet, Values
from supervisor.snapshot import ServerSnapshot, StartupView

STATES = tuple(str(state) for state in State)
VERDICTS = ("warming", "idle", "busy", "draining", "stalled", "degraded", "dead", "unknown")
RESULTS_OF_PROBES = ("success", "failure", "unknown", "held")
REASONS = tuple(str(reason) for reason in Reason)
DETECTORS = ("learned", "standstill", "serving", "canary", "capacity")
_ENDS = tuple((kind, reason) for kind in EXIT_KINDS for reason in REASONS)


def write(sheet: Sheet, snapshot: ServerSnapshot, clock: Clock, account: Account, stored: Stored, model: str) -> None:
    """Everything about it."""
    _facets(sheet, snapshot, model)
    _start(sheet, snapshot, clock)
    _times(sheet, snapshot, clock)
    _signals(sheet, snapshot)
    _counters(sheet, snapshot, account)
    _durations(sheet, snapshot.name, account)
    sheet.add(f.LOG_BYTES, stored.log_bytes, snapshot.name)
    sheet.add(f.EVIDENCE_BYTES, stored.evidence_bytes, snapshot.name)
    sheet.add(f.EVIDENCE_BUNDLES, stored.evidence_bundles, snapshot.name)


def _facets(sheet: Sheet, snapshot: ServerSnapshot, model: str) -> None:
    name, ready = snapshot.name, is_healthy(snapshot)
    port, gpus = str(snapshot.port or ""), ",".join(map(str, snapshot.gpus))
    sheet.add(f.SERVER, 1, name, snapshot.engine, model, port, gpus)
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


def _signals(sheet: Sheet, snapshot: ServerSnapshot) -> None:
    for vote in snapshot.votes:
        if vote.says in ("moving", "still"):
            sheet.add(f.SIGNAL_MOVING, int(vote.says == "moving"), snapshot.name, vote.source)


def _counters(sheet: Sheet, snapshot: ServerSnapshot, account: Account) -> None:
    name = snapshot.name
    sheet.add(f.STARTS, account.starts, name)
    sheet.each(f.RESTARTS, REASONS, account.restarts, name)
    sheet.group(f.EXITS, {end: account.exits.get(f"{end[0]} {end[1]}", 0) for end in _ENDS}, name)
    sheet.each(f.DOWNTIME, LOSSES, account.lost_s, name)
    sheet.each(f.GPU_LOST, LOSSES, account.gpu_lost_s, name)
    sheet.add(f.PENDING, account.pending_s, name)
    sheet.add(f.KILLED, account.killed_processes, name)
    sheet.each(f.WOULD_HAVE, DETECTORS, snapshot.would_have_killed, name)


def _durations(sheet: Sheet, name: str, account: Account) -> None:
    for result in RESULTS:
        sheet.histogram(f.STARTUP, account.startup_s.get(result), name, result)
    for phase, observed in account.phases.items():
        sheet.summary(f.PHASE_DURATION, observed, name, phase)
    sheet.histogram(f.STOP, account.stop_s, name)
    sheet.histogram(f.RELEASE, account.release_s, name)


def _wall(moment: float | None, clock: Clock) -> float | None:
    return None if moment is None else round(clock.wall_of(moment), 3)
