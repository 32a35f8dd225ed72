"""Snapshots for readers outside: wall time and seconds in place of monotonic moments."""

from __future__ import annotations

import signal as signals

from supervisor.api.control import Clock
from supervisor.api.wire.model import (
    Diagnosis,
    Drain,
    Evidence,
    Exit,
    Facet,
    Health,
    Progress,
    Rank,
    Server,
    Span,
    Startup,
    Vote,
)
from supervisor.api.wire.moments import ago, iso, iso_or_none, seconds
from supervisor.api.words import describe, state_of
from supervisor.core import outlook
from supervisor.snapshot import (
    DiagnosisView,
    DrainView,
    ExitView,
    FacetView,
    ProgressView,
    RankView,
    ServerSnapshot,
    SpanView,
    StartupView,
    VoteView,
)


def server(snapshot: ServerSnapshot, clock: Clock) -> Server:
    """The snapshot for readers outside."""
    ready = snapshot.ready_since
    return Server(
        name=snapshot.name,
        state=state_of(snapshot).name,
        state_code=state_of(snapshot).value,
        description=describe(snapshot, clock),
        healthy=snapshot.healthy,
        goal=snapshot.goal,
        lifecycle=facet(snapshot.lifecycle, clock),
        verdict=facet(snapshot.verdict, clock),
        health=Health(
            startup=facet(snapshot.startup, clock),
            readiness=facet(snapshot.readiness, clock),
            liveness=facet(snapshot.liveness, clock),
        ),
        attempt=snapshot.attempt,
        pid=snapshot.pid,
        started=iso_or_none(snapshot.started, clock),
        ready_since=iso_or_none(ready, clock),
        uptime_s=None if ready is None else seconds(clock.monotonic - ready),
        start=None if snapshot.start is None else startup(snapshot.start, clock, foretell=not snapshot.doomed),
        deadline=iso_or_none(snapshot.deadline, clock),
        deadline_in_s=None if snapshot.deadline is None else round(snapshot.deadline - clock.monotonic, 3),
        restarts=snapshot.restarts,
        budget_remaining=snapshot.budget_remaining,
        backoff_until=iso_or_none(snapshot.backoff_until, clock),
        backoff_s=None if snapshot.backoff_until is None else seconds(snapshot.backoff_until - clock.monotonic),
        exit=None if snapshot.exit is None else exit_of(snapshot.exit, clock),
        diagnosis=None if snapshot.diagnosis is None else diagnosis(snapshot.diagnosis),
        evidence_path=snapshot.evidence_path,
        stop_stage=snapshot.stop_stage,
        stop=snapshot.stop,
        log_path=snapshot.log_path,
        port=snapshot.port,
        gpus=snapshot.gpus,
        engine=snapshot.engine,
        last_progress_ago_s=ago(snapshot.last_progress, clock),
        votes=tuple(_vote(view, clock) for view in snapshot.votes),
        deadlines=snapshot.deadlines,
        would_have_killed=snapshot.would_have_killed,
        maintenance=None if snapshot.maintenance is None else facet(snapshot.maintenance, clock),
        capacity_tokens=snapshot.capacity_tokens,
        capacity_expected=snapshot.capacity_expected,
        findings=snapshot.findings,
        drain=None if snapshot.drain is None else _drain(snapshot.drain, clock),
        routers=snapshot.routers,
        ready_in_s=_ready_in_s(snapshot, clock),
    )


def _ready_in_s(snapshot: ServerSnapshot, clock: Clock) -> float | None:
    at = outlook.ready_at(snapshot, clock.monotonic)
    return None if at is None else seconds(at - clock.monotonic)


def _drain(view: DrainView, clock: Clock) -> Drain:
    left_s = None if view.until is None else seconds(view.until - clock.monotonic)
    return Drain(view.requests, left_s, view.note)


def _vote(view: VoteView, clock: Clock) -> Vote:
    return Vote(view.source, view.says, iso_or_none(view.since, clock), ago(view.since, clock), view.text)


def facet(view: FacetView, clock: Clock) -> Facet:
    """One facet for readers outside."""
    return Facet(view.value, iso(clock.wall_of(view.since)), seconds(clock.monotonic - view.since), view.reason)


def startup(view: StartupView, clock: Clock, *, foretell: bool = True) -> Startup:
    """The start for readers outside; without `foretell` no bar says what is left of it."""
    return Startup(
        phase=view.phase,
        stage=view.stage,
        since=iso(clock.wall_of(view.since)),
        seconds=seconds(clock.monotonic - view.since),
        ranks=tuple(_rank(rank, clock, foretell=foretell) for rank in view.ranks),
        laggard=view.laggard,
        last_progress_ago_s=ago(view.last_progress or None, clock),
        ready_seen=view.ready_seen,
        timeline=tuple(span(one, clock) for one in view.timeline),
    )


def _rank(view: RankView, clock: Clock, *, foretell: bool) -> Rank:
    left_s = view.left_s(clock.monotonic) if foretell else None
    return Rank(
        rank=view.rank,
        stage=view.stage,
        phase=view.phase,
        since=iso(clock.wall_of(view.since)),
        seconds=seconds(clock.monotonic - view.since),
        progress=None if view.progress is None else _progress(view.progress, left_s),
        memory_used_gb=view.memory_used_gb,
        memory_left_gb=view.memory_left_gb,
        last_progress=iso_or_none(view.last_progress, clock),
        last_progress_ago_s=ago(view.last_progress, clock),
        last_line=view.last_line,
    )


def _progress(view: ProgressView, left_s: float | None) -> Progress:
    return Progress(view.done, view.total, round(view.ratio, 4), view.unit, view.rate_per_s, left_s)


def span(view: SpanView, clock: Clock) -> Span:
    """One bar of a timeline for readers outside."""
    end = clock.monotonic if view.end is None else view.end
    return Span(
        rank=view.rank,
        phase=view.phase,
        begin=iso(clock.wall_of(view.begin)),
        end=iso_or_none(view.end, clock),
        seconds=seconds(end - view.begin),
        memory_gb=view.memory_gb,
    )


def diagnosis(view: DiagnosisView) -> Diagnosis:
    """The diagnosis for readers outside."""
    evidence = Evidence(view.evidence_line, view.evidence)
    return Diagnosis(view.cause, view.restart, view.remedy, evidence, view.confidence)


def exit_of(view: ExitView, clock: Clock) -> Exit:
    """The exit for readers outside."""
    return Exit(view.attempt, iso(clock.wall_of(view.at)), view.code, signal_name(view.code), view.reason)


def signal_name(code: int | None) -> str | None:
    """The signal's name of a negated signal number; None when no signal ended the process."""
    if code is None or code >= 0:
        return None
    known = signals.Signals(-code).name if -code in set(signals.Signals) else f"signal {-code}"
    return known.removeprefix("SIG")
