"""The JSON that the control socket answers about servers."""

from __future__ import annotations

import msgspec

from supervisor.api.wire.fleet import Starts
from supervisor.snapshot import DeadlineView, RouterView, StopView


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


class Drain(msgspec.Struct, frozen=True):
    """What a draining server has left: requests, null when nobody knows (`note` says why), and time."""

    requests: int | None
    left_s: float | None
    note: str = ""


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
    """All facets of one server. `state` and `description` are what supervisorctl shows.

    `ready_in_s`: until the start will be ready by what earlier ones took; 0 = later than usual, null = nobody can tell.
    """

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
    maintenance: Facet | None
    capacity_tokens: int | None
    capacity_expected: int | None
    findings: tuple[str, ...] = ()
    drain: Drain | None = None
    routers: tuple[RouterView, ...] = ()
    ready_in_s: float | None = None


class Brief(msgspec.Struct, frozen=True):
    """What a line of `status` says about one server."""

    name: str
    state: str
    description: str
    healthy: bool


class Status(msgspec.Struct, frozen=True):
    """Every server in the order of the configuration, in a line each. `starts` is null while nobody starts.

    `state_problem`: why not all that the next daemon must know is on disk, "" in good health. `unanswered`: what does
    not answer (a disk, a user database, a process), so that what depends on it is unknown. `journal_problem`: why the
    journal cannot be written.
    """

    at: str
    servers: tuple[Brief, ...]
    starts: Starts | None = None
    state_problem: str = ""
    unanswered: str = ""
    journal_problem: str = ""


class Servers(msgspec.Struct, frozen=True):
    """Every server in the order of the configuration. What is beside them is as in Status."""

    at: str
    servers: tuple[Server, ...]
    starts: Starts | None = None
    state_problem: str = ""
    unanswered: str = ""
    journal_problem: str = ""


class Accepted(msgspec.Struct, frozen=True):
    """The request was handled; `changed` says whether it meant anything (a start of a started server does not).

    `also` names those whom it concerns beside the server: a stop and a restart take along who requires it, a start
    leaves those of them down that are not wanted up.
    """

    changed: bool
    server: Server
    also: tuple[str, ...] = ()


class Waited(msgspec.Struct, frozen=True):
    """Why the wait ended: reached, gave-up or time-out."""

    outcome: str
    waited_s: float
    server: Server
