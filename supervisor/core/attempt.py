"""What is known about one attempt of a server: its process, its log's story, its probes, its end."""

from __future__ import annotations

from msgspec.structs import replace

from supervisor.actions import Probe, StartRecord
from supervisor.core.budgets import Budgets
from supervisor.core.diagnose import CauseFinder
from supervisor.core.endcause import End, EndKind, end_cause, in_words, proven
from supervisor.core.health import HealthBook
from supervisor.core.log.figures import count_of
from supervisor.core.patience import Patience
from supervisor.core.probing import ProbePlan
from supervisor.core.progress import Advance, Movement, PhaseTracker
from supervisor.core.remedy import with_name
from supervisor.core.serving import Facts, Judgement, judge
from supervisor.core.settings import Settings
from supervisor.core.stopclock import StopClock
from supervisor.core.vitals import Vitals
from supervisor.events import (
    CanaryAnswered,
    DeviceMemorySampled,
    EngineSampled,
    Exited,
    HostOomKilled,
    LineMatched,
    Probed,
    RoleDied,
    SignalRequested,
    Spawned,
    StuckProcess,
    TreeEmptied,
    TreeSampled,
)
from supervisor.profile import CommandFacts, Profile
from supervisor.snapshot import DiagnosisView, ExitView, IncidentView, StartupView

_SIGKILL = 9
_ENDING = {2: "SIGINT", 3: "SIGQUIT", 9: "SIGKILL", 15: "SIGTERM"}  # HUP may mean anything else
_OOM_RECENT_S = 300.0  # a helper that the kernel killed hours ago did not end the server


class Attempt:
    """State of one attempt. Lives from the launch until the next attempt begins."""

    def __init__(
        self,
        number: int,
        settings: Settings,
        profile: Profile,
        facts: CommandFacts,
        now: float,
        budgets: Budgets,
        capacity_expected: int | None = None,
    ) -> None:
        self.number = number
        self.begun = now
        self.pid: int | None = None
        self.log_path = ""
        self.ready_at: float | None = None
        self.outlived = False  # its grace was over, and its leader had not ended
        self.ending: EndKind | None = None
        self.ending_reason = ""
        self.permanent = False
        self.signals: set[int] = set()
        self.asked = ""  # for which ending signal, and by whom
        self.stop = StopClock()
        self.oom: HostOomKilled | None = None
        self.oom_at = 0.0
        self.kernel_heard = False
        self.first_death = ""  # the process with a role that ended first
        self.death_code: int | None = None  # how
        self.death_together = False  # in the same moment as the leader
        self.stuck: tuple[StuckProcess, ...] = ()
        self.evidence_path = ""
        self.evidence_asked = False
        self.exit: ExitView | None = None
        self.probe_again = False
        self.fatal_text = ""
        self.diagnosis: DiagnosisView | None = None
        self.capacity: int | None = None
        self.capacity_expected = capacity_expected
        self.canary_at = 0.0
        self.canary_failures = 0
        self.canary_detail = ""
        self.vitals = Vitals()
        self.health = HealthBook(settings.readiness, settings.model, settings.model_path)
        self._settings = settings
        self._finder = CauseFinder(profile)
        self._tracker = PhaseTracker(profile, facts)
        self._profile = profile
        self._stages = profile.stages
        self._alone = facts.nodes == 1
        self._view: StartupView | None = None
        self._start: StartupView | None = None
        self._probes = ProbePlan(number, settings.readiness)
        self._tracker.begin(now)
        self.patience = Patience(now, settings, budgets, facts, self.vitals, self.view)

    def spawned(self, event: Spawned) -> None:
        """The process runs."""
        self.pid = event.pid
        self.log_path = event.log_path

    def ready(self, now: float) -> None:
        """The startup probe succeeded."""
        self.ready_at = now
        self._tracker.serve()
        self._view = None

    def serve(self, ready_at: float, start: StartupView | None) -> None:
        """It was ready before an earlier daemon ended; its start is remembered as that one saw it."""
        self.ready(ready_at)
        self.health.serve()
        self._start = start

    def line(self, event: LineMatched, now: float) -> Advance:
        """Take in one matched record of the log."""
        advance = self._tracker.observe(event, now)
        self._view = None
        if advance.movement is Movement.PROGRESS or advance.phase_changed:
            self.patience.progress(now)
        if tokens := count_of(event.fields.get("capacity_tokens", "")):
            self.capacity = min(self.capacity or tokens, tokens)
        self._finder.clues.asked_to_end = bool(self.signals)
        self._finder.observe(event, self._tracker.rank_stage(event.rank))
        return advance

    def role_died(self, event: RoleDied) -> str:
        """Take in the death of a process with a role. Answers who it was; the first may explain the others."""
        words = (event.role, event.rank or self._missing_rank(event), f"(pid {event.pid})")
        who = " ".join(word for word in words if word)
        if not self.first_death:
            self.first_death, self.death_code, self.death_together = who, event.code, event.with_leader
        return who

    def _missing_rank(self, event: RoleDied) -> str:
        """Who ended before anybody saw its title is the only rank of the log that no process bears; "" when unsure."""
        bearers = [
            set(one.rank.split()) for one in self.vitals.processes if one.role == event.role and one.pid != event.pid
        ]
        ranks = [rank.rank for rank in self.view().ranks if rank.rank]
        missing = [rank for rank in ranks if not any(set(rank.split()) <= bearer for bearer in bearers)]
        return missing[0] if len(missing) == 1 and all(bearers) and bearers else ""

    def probed(self, event: Probed, now: float, *, draining: bool) -> None:
        """Take in one probe's outcome."""
        self.health.observe(event, now, draining=draining)

    def next_probe(self) -> Probe:
        """The probe to make now."""
        return self._probes.next(ready=self.ready_at is not None)

    def probe_delay_s(self, now: float) -> float:
        """How long to wait before the next one, by what the last one saw."""
        return self._probes.delay_s(self.health.last_outcome, now, ready=self.ready_at is not None)

    def view(self) -> StartupView:
        """Phases per rank as the log tells them. Kept until the next line: it is asked for with every event."""
        if self._view is None:
            view = self._tracker.view()
            if self._start is not None:
                view = replace(self._start, last_progress=max(view.last_progress, self._start.last_progress))
            self._view = view
        return self._view

    def sampled(self, event: TreeSampled | EngineSampled | DeviceMemorySampled, now: float) -> None:
        """Take in a look at the processes, the engine's counters or the devices."""
        before = self.vitals.side_progress_at()
        match event:
            case TreeSampled():
                self.vitals.tree(event, now)
            case EngineSampled():
                self.vitals.engine(event, now)
            case DeviceMemorySampled():
                self.vitals.device_memory(event, now)
        if self.vitals.side_progress_at() != before:
            self.patience.progress(now)

    def canary(self, event: CanaryAnswered, now: float) -> None:
        """Take in the answer to a canary request, whose own line in the log is no sign of other people's."""
        self.canary_at = now
        self.canary_failures = 0 if event.sane else self.canary_failures + 1
        self.canary_detail = event.detail or ("no answer" if event.sane is None else "the answer makes no sense")

    def start_record(self, now: float) -> StartRecord:
        """How this start went, for the ones after it."""
        return StartRecord(self._settings.history_key, now - self.begun, self.patience.phases(now), self.capacity)

    def serving(self, now: float) -> Judgement:
        """The verdict on a serving server."""
        return judge(
            Facts(
                self._settings,
                self.vitals,
                self.health,
                self.ready_at if self.ready_at is not None else now,
                max(self.begun, self.view().last_progress),
                self.canary_failures,
                self.canary_detail,
                self.capacity,
                self.capacity_expected,
                self.canary_at,
            ),
            now,
        )

    def progressing(self, now: float, within_s: float) -> bool:
        """Whether tokens or lines proved the server's life lately: then no probe needs to go into a full engine."""
        moved = max(self.view().last_progress, self.vitals.tokens_at or 0.0)
        return self.ready_at is not None and moved > self.ready_at and now - moved <= within_s

    def asked_signal(self, event: SignalRequested) -> None:
        """Somebody has it sent a signal, through us."""
        self.signals.add(event.signal)
        if event.signal in _ENDING:
            self.asked = f"{_ENDING[event.signal]} asked by {event.by}"

    # --- the steps of the end ------------------------------------------------------------------------------------

    def killing(self, now: float) -> None:
        """What is left is being killed."""
        if self.exit is None:  # what ended before our kill was not ended by it
            self.signals.add(_SIGKILL)
        self.stop.killing(now)

    def exited(self, event: Exited, now: float) -> None:
        """The leader ended."""
        self.exit = ExitView(self.number, now, event.code, self.ending_reason)
        self.stop.exited(now)

    def emptied(self, event: TreeEmptied, now: float) -> None:
        """No process is left."""
        self.kernel_heard = event.kernel_heard
        self.stop.emptied(event.killed, now)

    def oom_killed(self, event: HostOomKilled, now: float) -> None:
        """The kernel's OOM killer took one of the processes; a report that names it outweighs one that does not."""
        if self.oom is None or event.pid or not self.oom.pid:
            self.oom, self.oom_at = event, now

    def end(self, kind: EndKind, reason: str) -> bool:
        """Note why the attempt ends; the first reason stands. False when one was noted before."""
        if self.ending is not None:
            return False
        self.ending = kind
        self.ending_reason = reason
        return True

    def conclude(self, now: float) -> DiagnosisView:
        """Class, evidence and remedy of the end, from the log, the exit code and our own signals."""
        end = End(
            kind=self.ending,
            reason=self.ending_reason,
            code=self.exit.code if self.exit else None,
            exited=self.exit is not None,
            signals=frozenset(self.signals),
            stage=self.view().stage,
            was_ready=self.ready_at is not None,
            permanent=self.permanent,
            oom=self.oom if now - self.oom_at < _OOM_RECENT_S else None,
            kernel_heard=self.kernel_heard,
            death_code=self.death_code,
            first_death=self.first_death,
            together=self.death_together,
            alone=self._alone,
            asked=self.asked,
        )
        told = end_cause(self._finder, self._profile, end)
        self.diagnosis = replace(told, remedy=with_name(told.remedy, self._settings.name))
        return self.diagnosis

    def incident(self, now: float, decision: str) -> IncidentView:
        """What is to be remembered of an attempt that ended by itself or had to be ended."""
        view = self.view()
        return IncidentView(
            self.number,
            self.begun,
            now,
            self.summary(),
            "healthy" if self.ready_at is not None else view.phase,
            view.stage,
            decision,
            view.laggard,
            self.diagnosis,
            self.exit.code if self.exit else None,
            self.evidence_path,
            self.log_path,
            self.stop.view,
        )

    def stage_order(self) -> int:
        """How far the start came, as the index of its coarse stage."""
        stage = self.view().stage
        return self._stages.index(stage) if stage in self._stages else 0

    def summary(self) -> str:
        """The end in a few words."""
        first = "" if proven(self.diagnosis) else self.first_death
        told = in_words(self.ending, self.ending_reason, self.exit.code if self.exit else None, first)
        late = self.outlived and self.ending is EndKind.OPERATOR
        return f"{told}: its grace was over" if late else told
