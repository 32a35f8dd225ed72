"""The JSON that the control socket answers: snapshots with wall time and seconds in place of monotonic moments."""

from __future__ import annotations

import signal as signals
from datetime import UTC, datetime

import msgspec

from supervisor.api.control import Clock, DaemonInfo, EventRecord
from supervisor.api.words import describe, is_healthy, state_of
from supervisor.config import Differences
from supervisor.snapshot import (
    DeadlineView,
    DiagnosisView,
    ExitView,
    FacetView,
    ProgressView,
    RankView,
    ServerSnapshot,
    SpanView,
    StartupView,
    StopView,
    VoteView,
)

API_VERSION = "1.0"


class Facet(msgspec.Struct, frozen=True):
    """The value of one facet, since when (ISO 8601), for how many seconds, and why."""

    value: str
    since: str
    seconds: float
    reason: str = ""


class Progress(msgspec.Struct, frozen=True):
    """A progress bar's last word."""

    done: int
    total: int
    ratio: float
    unit: str = ""
    rate_per_s: float | None = None
    eta_s: float | None = None


class Rank(msgspec.Struct, frozen=True):
    """Where one rank is in the current start."""

    rank: str
    stage: str
    phase: str
    since: str
    seconds: float
    progress: Progress | None = None
    memory_used_gb: float | None = None
    memory_left_gb: float | None = None
    last_progress: str | None = None
    last_progress_ago_s: float | None = None
    last_line: str = ""


class Span(msgspec.Struct, frozen=True):
    """One phase of one rank; `end` is null while it lasts."""

    rank: str
    phase: str
    begin: str
    end: str | None
    seconds: float
    memory_gb: float | None = None
    role: str = ""


class Startup(msgspec.Struct, frozen=True):
    """The current or last start."""

    phase: str
    stage: str
    since: str
    seconds: float
    ranks: tuple[Rank, ...]
    laggard: str
    last_progress_ago_s: float | None
    ready_seen: bool
    timeline: tuple[Span, ...]


class Evidence(msgspec.Struct, frozen=True):
    """The line of the log that proves the cause."""

    line: int
    text: str


class Diagnosis(msgspec.Struct, frozen=True):
    """What ended or stalled an attempt. `restart` is yes, no or maybe."""

    cause: str
    restart: str
    remedy: str
    evidence: Evidence
    confidence: float


class Exit(msgspec.Struct, frozen=True):
    """How the last attempt ended; `signal` is set when a signal ended it."""

    attempt: int
    at: str
    code: int | None
    signal: str | None
    reason: str


class Health(msgspec.Struct, frozen=True):
    """The three probes' results."""

    startup: Facet
    readiness: Facet
    liveness: Facet


class Vote(msgspec.Struct, frozen=True):
    """What one signal (log, probe, CPU, ...) says about the server: moving, still or unknown."""

    source: str
    says: str
    since: str | None
    seconds: float | None
    text: str


class Server(msgspec.Struct, frozen=True):
    """All facets of one server. `state` and `description` are what supervisorctl shows."""

    name: str
    state: str
    state_code: int
    description: str
    healthy: bool
    goal: str
    lifecycle: Facet
    verdict: Facet
    health: Health
    attempt: int
    pid: int | None
    started: str | None
    ready_since: str | None
    uptime_s: float | None
    start: Startup | None
    deadline: str | None
    deadline_in_s: float | None
    restarts: int
    budget_remaining: int
    backoff_until: str | None
    backoff_s: float | None
    exit: Exit | None
    diagnosis: Diagnosis | None
    evidence_path: str
    stop_stage: str
    stop: StopView | None
    log_path: str
    port: int
    gpus: tuple[int, ...]
    engine: str
    last_progress_ago_s: float | None
    votes: tuple[Vote, ...]
    deadlines: tuple[DeadlineView, ...]
    would_have_killed: dict[str, int]
    capacity_tokens: int | None
    capacity_expected: int | None


class Servers(msgspec.Struct, frozen=True):
    """Every server in the order of the configuration."""

    at: str
    servers: tuple[Server, ...]


class Accepted(msgspec.Struct, frozen=True):
    """The request was handled; `changed` says whether it meant anything (a start of a started server does not)."""

    changed: bool
    server: Server


class Waited(msgspec.Struct, frozen=True):
    """Why the wait ended: reached, gave-up or time-out."""

    outcome: str
    waited_s: float
    server: Server


class Event(msgspec.Struct, frozen=True):
    """One row of the journal."""

    id: int
    at: str
    server: str
    facet: str
    before: str
    after: str
    reason: str
    attempt: int


class Events(msgspec.Struct, frozen=True):
    """Rows in order of id; `last` is where to go on."""

    events: tuple[Event, ...]
    last: int


class Story(msgspec.Struct, frozen=True):
    """Why a server is as it is: sentences from the present back to the cause, with what proves them."""

    name: str
    state: str
    sentences: tuple[str, ...]
    diagnosis: Diagnosis | None
    evidence_path: str
    log_path: str
    events: tuple[Event, ...]


class Info(msgspec.Struct, frozen=True):
    """Facts about the daemon."""

    version: str
    api_version: str
    pid: int
    started: str
    uptime_s: float
    config_path: str
    state_dir: str
    log_dir: str
    log_path: str
    role: str


class Configured(msgspec.Struct, frozen=True):
    """A server of the configuration in force or of the file; `in_use` says that it is in force."""

    name: str
    in_use: bool
    autostart: bool


class Reread(msgspec.Struct, frozen=True):
    """What the file has now beside what is in force. Nothing has been changed."""

    path: str
    servers: tuple[Configured, ...]
    differences: Differences


class Done(msgspec.Struct, frozen=True):
    """It was done."""

    ok: bool = True


class Error(msgspec.Struct, frozen=True):
    """What could not be done, to what, and why."""

    error: str


def server(snapshot: ServerSnapshot, clock: Clock) -> Server:
    """The snapshot for readers outside."""
    ready = snapshot.ready_since
    return Server(
        name=snapshot.name,
        state=state_of(snapshot).name,
        state_code=state_of(snapshot).value,
        description=describe(snapshot, clock),
        healthy=is_healthy(snapshot),
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
        started=_iso_or_none(snapshot.started, clock),
        ready_since=_iso_or_none(ready, clock),
        uptime_s=None if ready is None else _seconds(clock.monotonic - ready),
        start=None if snapshot.start is None else startup(snapshot.start, clock),
        deadline=_iso_or_none(snapshot.deadline, clock),
        deadline_in_s=None if snapshot.deadline is None else round(snapshot.deadline - clock.monotonic, 3),
        restarts=snapshot.restarts,
        budget_remaining=snapshot.budget_remaining,
        backoff_until=_iso_or_none(snapshot.backoff_until, clock),
        backoff_s=None if snapshot.backoff_until is None else _seconds(snapshot.backoff_until - clock.monotonic),
        exit=None if snapshot.exit is None else exit_of(snapshot.exit, clock),
        diagnosis=None if snapshot.diagnosis is None else diagnosis(snapshot.diagnosis),
        evidence_path=snapshot.evidence_path,
        stop_stage=snapshot.stop_stage,
        stop=snapshot.stop,
        log_path=snapshot.log_path,
        port=snapshot.port,
        gpus=snapshot.gpus,
        engine=snapshot.engine,
        last_progress_ago_s=_ago(snapshot.last_progress, clock),
        votes=tuple(_vote(view, clock) for view in snapshot.votes),
        deadlines=snapshot.deadlines,
        would_have_killed=snapshot.would_have_killed,
        capacity_tokens=snapshot.capacity_tokens,
        capacity_expected=snapshot.capacity_expected,
    )


def _vote(view: VoteView, clock: Clock) -> Vote:
    return Vote(view.source, view.says, _iso_or_none(view.since, clock), _ago(view.since, clock), view.text)


def facet(view: FacetView, clock: Clock) -> Facet:
    """One facet for readers outside."""
    return Facet(view.value, iso(clock.wall_of(view.since)), _seconds(clock.monotonic - view.since), view.reason)


def startup(view: StartupView, clock: Clock) -> Startup:
    """The start for readers outside."""
    return Startup(
        phase=view.phase,
        stage=view.stage,
        since=iso(clock.wall_of(view.since)),
        seconds=_seconds(clock.monotonic - view.since),
        ranks=tuple(_rank(rank, clock) for rank in view.ranks),
        laggard=view.laggard,
        last_progress_ago_s=_ago(view.last_progress or None, clock),
        ready_seen=view.ready_seen,
        timeline=tuple(_span(span, clock) for span in view.timeline),
    )


def _rank(view: RankView, clock: Clock) -> Rank:
    return Rank(
        rank=view.rank,
        stage=view.stage,
        phase=view.phase,
        since=iso(clock.wall_of(view.since)),
        seconds=_seconds(clock.monotonic - view.since),
        progress=None if view.progress is None else _progress(view.progress),
        memory_used_gb=view.memory_used_gb,
        memory_left_gb=view.memory_left_gb,
        last_progress=_iso_or_none(view.last_progress, clock),
        last_progress_ago_s=_ago(view.last_progress, clock),
        last_line=view.last_line,
    )


def _progress(view: ProgressView) -> Progress:
    return Progress(view.done, view.total, round(view.ratio, 4), view.unit, view.rate_per_s, view.eta_s)


def _span(view: SpanView, clock: Clock) -> Span:
    end = clock.monotonic if view.end is None else view.end
    return Span(
        rank=view.rank,
        phase=view.phase,
        begin=iso(clock.wall_of(view.begin)),
        end=_iso_or_none(view.end, clock),
        seconds=_seconds(end - view.begin),
        memory_gb=view.memory_gb,
        role=view.role,
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


def event(record: EventRecord) -> Event:
    """The journal's row for readers outside."""
    return Event(
        id=record.id,
        at=iso(record.wall),
        server=record.server,
        facet=record.facet,
        before=record.before,
        after=record.after,
        reason=record.reason,
        attempt=record.attempt,
    )


def info(daemon: DaemonInfo, clock: Clock, role: str) -> Info:
    """The daemon's facts for a reader of this role."""
    return Info(
        version=daemon.version,
        api_version=API_VERSION,
        pid=daemon.pid,
        started=iso(daemon.started_wall),
        uptime_s=_seconds(clock.wall - daemon.started_wall),
        config_path=daemon.config_path,
        state_dir=daemon.state_dir,
        log_dir=daemon.log_dir,
        log_path=daemon.log_path,
        role=role,
    )


def iso(wall: float) -> str:
    """Epoch seconds as ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _iso_or_none(moment: float | None, clock: Clock) -> str | None:
    return None if moment is None else iso(clock.wall_of(moment))


def _ago(moment: float | None, clock: Clock) -> float | None:
    return None if moment is None else _seconds(clock.monotonic - moment)


def _seconds(value: float) -> float:
    """Never negative: a moment in the future by rounding is now."""
    return round(max(0.0, value), 3)
