"""The facts about one server at one moment, as every reader (status, metrics, page, adoption) gets them.

Times are seconds of CLOCK_MONOTONIC unless the name says otherwise: the shell turns them into wall time for people.
"""

from __future__ import annotations

import msgspec

_SILENT_S = 10.0  # of a bar: no shorter silence says anything
_STEPS_MISSED = 3.0  # by its own rate, so that one slow shard of four minutes is no standstill


class ProgressView(msgspec.Struct, frozen=True):
    """A progress bar's last word: `done` of `total` units ("shards", "batch sizes", "tokens")."""

    done: int
    total: int
    unit: str = ""
    rate_per_s: float | None = None
    eta_s: float | None = None

    @property
    def ratio(self) -> float:
        """Between 0 and 1; 0 when the total is unknown."""
        return min(1.0, self.done / self.total) if self.total > 0 else 0.0


class RankView(msgspec.Struct, frozen=True):
    """Where one rank is in the current start."""

    rank: str
    stage: str
    phase: str
    since: float
    progress: ProgressView | None = None
    memory_used_gb: float | None = None
    memory_left_gb: float | None = None
    last_progress: float | None = None
    last_line: str = ""

    def left_s(self, now: float) -> float | None:
        """What its bar still needs by its own rate; None without a bar, and of one that stands still: nobody knows."""
        if self.progress is None or self.progress.eta_s is None or self.stands_still(now):
            return None
        return max(0.0, self.progress.eta_s - self._silent_s(now))

    def stands_still(self, now: float) -> bool:
        """Whether its bar has missed several of its own steps, or is full and nothing has followed."""
        bar, silent_s = self.progress, self._silent_s(now)
        if bar is None or bar.eta_s is None or silent_s <= _SILENT_S:
            return False
        return bar.eta_s == 0 or bar.rate_per_s is None or silent_s * bar.rate_per_s > _STEPS_MISSED

    def _silent_s(self, now: float) -> float:
        return 0.0 if self.last_progress is None else max(0.0, now - self.last_progress)


class SpanView(msgspec.Struct, frozen=True):
    """One phase of one rank, begun and perhaps ended: a bar of the timeline."""

    rank: str
    phase: str
    begin: float
    end: float | None = None
    memory_gb: float | None = None


class StartupView(msgspec.Struct, frozen=True):
    """The start as a whole: the slowest rank's phase, who lags, what moved last."""

    phase: str
    stage: str
    since: float
    ranks: tuple[RankView, ...] = ()
    laggard: str = ""
    last_progress: float = 0.0
    ready_seen: bool = False
    timeline: tuple[SpanView, ...] = ()
    lagging: tuple[str, ...] = ()  # every rank that holds the others up; `laggard` names the first few in words


class FacetView(msgspec.Struct, frozen=True):
    """The value of one facet, since when, and why in one line."""

    value: str
    since: float
    reason: str = ""


class DiagnosisView(msgspec.Struct, frozen=True):
    """What ended or stalled an attempt: class, evidence, whether a restart can help, what to change."""

    cause: str
    restart: str = "maybe"  # yes · no · maybe
    remedy: str = ""
    evidence_line: int = 0
    evidence: str = ""
    confidence: float = 0.0
    evidence_rank: str = ""  # who wrote that line; "" of the launcher's, and where there is one rank only

    @property
    def runbook(self) -> str:
        """How to read what a person does about the cause, wherever this is installed; "" without one."""
        return f"sglsup runbook {self.cause}" if self.cause else ""


class ExitView(msgspec.Struct, frozen=True):
    """How the last attempt ended."""

    attempt: int
    at: float
    code: int | None
    reason: str = ""


class StopView(msgspec.Struct, frozen=True):
    """How far the last end of an attempt went; seconds since its first step, None = not yet.

    `stage` is leave (routers), requests (running ones are waited for), evidence, term or kill.
    """

    stage: str = ""
    exit_s: float | None = None  # the leader has exited
    kill_s: float | None = None  # what was left began to be killed
    empty_s: float | None = None  # no process is left, proven
    free_s: float | None = None  # the devices have their memory back, proven
    killed: int = 0  # processes that had to be killed


class DrainView(msgspec.Struct, frozen=True):
    """What a server that drains has left to do. `requests`: running and queued, None = unknown, `note` says why.

    `until`: the end of the step that is under way, at the latest.
    """

    requests: int | None = None
    until: float | None = None
    note: str = ""


class RouterView(msgspec.Struct, frozen=True):
    """One of those who hand requests out to a server: joined, joining, leaving, out or unreachable, and why."""

    name: str
    state: str
    reason: str = ""


class IncidentView(msgspec.Struct, frozen=True):
    """An attempt that ended without anybody asking: what `why` tells after the next one has begun."""

    attempt: int
    begun: float
    ended: float
    reason: str
    phase: str
    stage: str
    decision: str = ""  # what followed, in words
    laggard: str = ""
    diagnosis: DiagnosisView | None = None
    exit_code: int | None = None
    evidence_path: str = ""
    log_path: str = ""
    stop: StopView | None = None
    evidence_cut: bool = False  # its bundle was begun by a daemon that was killed over it


class VoteView(msgspec.Struct, frozen=True):
    """What one signal says about the server: moving, still or unknown; since when; in words."""

    source: str
    says: str
    since: float | None
    text: str


class DeadlineView(msgspec.Struct, frozen=True):
    """The deadlines of one phase and where they come from: profile, config or learned. None: there is none.

    Not infinity: JSON has none, and a reader that takes the schema at its word refuses the null it becomes.
    """

    phase: str
    stall_s: float | None
    idle_s: float | None
    limit_s: float | None
    source: str
    samples: int = 0
    median_s: float | None = None
    longest_silence_s: float | None = None
    mode: str = "enforce"
    text: str = ""


class ServerSnapshot(msgspec.Struct, frozen=True):
    """All facets of one server."""

    name: str
    at: float
    goal: str
    lifecycle: FacetView
    verdict: FacetView
    startup: FacetView
    readiness: FacetView
    liveness: FacetView
    attempt: int = 0
    pid: int | None = None
    started: float | None = None
    ready_since: float | None = None
    start: StartupView | None = None
    deadline: float | None = None  # when the current phase is called stalled; of a dead one nothing is foretold
    ends_at: float | None = None  # when a dead one is ended, unless it ends by itself before
    restarts: int = 0
    budget_remaining: int = 0
    backoff_until: float | None = None
    exit: ExitView | None = None
    diagnosis: DiagnosisView | None = None
    evidence_path: str = ""
    stop_stage: str = ""
    stop: StopView | None = None
    log_path: str = ""
    port: int = 0
    gpus: tuple[int, ...] = ()
    engine: str = ""
    last_progress: float | None = None
    votes: tuple[VoteView, ...] = ()
    deadlines: tuple[DeadlineView, ...] = ()
    would_have_killed: dict[str, int] = {}
    capacity_tokens: int | None = None
    capacity_expected: int | None = None
    findings: tuple[str, ...] = ()  # of the preflight before the last start, the gravest first
    maintenance: FacetView | None = None  # on: paused; None is off
    incidents: tuple[IncidentView, ...] = ()  # the newest last
    turn: str = ""  # whom its start waits for, in our own words
    turn_came: float | None = None  # when that wait ended, until the launch
    ends: str = ""  # whose end is waited for until this one is ended
    drain: DrainView | None = None  # while it drains
    routers: tuple[RouterView, ...] = ()

    @property
    def doomed(self) -> bool:
        """Whether it starts or serves no more, and only has not ended yet: nothing is to be foretold of its work."""
        return self.verdict.value in ("dead", "stalled")

    @property
    def healthy(self) -> bool:
        """Whether requests may be sent to it."""
        return self.lifecycle.value == "running" and self.readiness.value == "success"
