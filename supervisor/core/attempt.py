"""What is known about one attempt of a server: its process, its log's story, its probes, its end."""

from __future__ import annotations

import enum

from msgspec.structs import replace

from supervisor.actions import Probe
from supervisor.core.diagnose import CauseFinder
from supervisor.core.health import Health, HealthBook
from supervisor.core.progress import Advance, PhaseTracker
from supervisor.core.settings import Settings
from supervisor.events import (
    Exited,
    HostOomKilled,
    LineMatched,
    Probed,
    ProbeOutcome,
    Spawned,
    StuckProcess,
    TreeEmptied,
)
from supervisor.profile import CommandFacts, Profile
from supervisor.snapshot import DiagnosisView, ExitView, StartupView, StopView

HOST_OOM = "host-oom-killed"  # of the classes of causes
_OOM_RECENT_S = 300.0  # a helper that the kernel killed hours ago did not end the server


class EndKind(enum.StrEnum):
    """Who or what ended the attempt."""

    OPERATOR = "operator"
    STALL = "stall"
    DEAD = "dead"
    EXIT = "exit"
    SPAWN = "spawn"


class Attempt:
    """State of one attempt. Lives from the launch until the next attempt begins."""

    def __init__(self, number: int, settings: Settings, profile: Profile, facts: CommandFacts, now: float) -> None:
        self.number = number
        self.begun = now
        self.pid: int | None = None
        self.log_path = ""
        self.ready_at: float | None = None
        self.ending: EndKind | None = None
        self.ending_reason = ""
        self.permanent = False
        self.signals: set[int] = set()
        self.stop = StopView()
        self.oom: HostOomKilled | None = None
        self.oom_at = 0.0
        self._stop_began: float | None = None
        self.stuck: tuple[StuckProcess, ...] = ()
        self.evidence_path = ""
        self.evidence_asked = False
        self.exit: ExitView | None = None
        self.probing = False
        self.fatal_text = ""
        self.diagnosis: DiagnosisView | None = None
        self.health = HealthBook(settings.readiness, settings.model)
        self._settings = settings
        self._finder = CauseFinder(profile)
        self._tracker = PhaseTracker(profile, facts)
        self._profile = profile
        self._stages = profile.stages
        self._view: StartupView | None = None
        self._warming_delay_s = settings.readiness.warming_interval_s
        self._probes = 0
        self._tracker.begin(now)

    def spawned(self, event: Spawned) -> None:
        """The process runs."""
        self.pid = event.pid
        self.log_path = event.log_path

    def line(self, event: LineMatched, now: float) -> Advance:
        """Take in one matched record of the log."""
        advance = self._tracker.observe(event, now)
        self._view = None
        self._finder.observe(event, self.view(now).stage)
        return advance

    def probed(self, event: Probed, now: float, *, draining: bool) -> None:
        """Take in one probe's outcome."""
        self.probing = False
        self.health.observe(event, now, draining=draining)

    def next_probe(self) -> Probe:
        """The probe to make now; while starting every good answer is identified, later every few."""
        self.probing = True
        self._probes += 1
        settings = self._settings.readiness
        identify = self.ready_at is None or self._probes % settings.reidentify_every == 0
        return Probe(self.number, settings.timeout_s, identify)

    def probe_delay_s(self) -> float:
        """How long to wait before the next probe, by what the last one saw.

        A 503 of a warming server comes at once and ends within seconds, so it is asked ten times a second at first;
        the delay grows, since each answer costs the engine a line in its log.
        """
        settings = self._settings.readiness
        if self.ready_at is not None:
            return settings.interval_s
        if self.health.last_outcome is not ProbeOutcome.UNAVAILABLE:
            return settings.refused_interval_s
        delay = self._warming_delay_s
        self._warming_delay_s = min(settings.warming_interval_max_s, delay * 1.15)
        return delay

    def view(self, now: float) -> StartupView:
        """Phases per rank as the log tells them. Kept until the next line: it is asked for with every event."""
        if self._view is None:
            self._view = self._tracker.view(now)
        return self._view

    def last_progress(self, now: float) -> float:
        """The last moment at which the log showed recognised progress; the launch at the earliest."""
        return max(self.begun, self.view(now).last_progress)

    def stall_at(self, now: float) -> tuple[float, str, str]:
        """When the start is called stalled, the phase that says so, and by which rule ("stall" or "limit")."""
        view = self.view(now)
        limit = self._settings.limit(view.phase)
        silent = self.last_progress(now) + limit.stall_s
        over = max(self.begun, view.since) + limit.limit_s
        return (silent, view.phase, "stall") if silent <= over else (over, view.phase, "limit")

    def stall_reason(self, now: float) -> str:
        """Phase, for how long, how long is allowed, and which ranks hold the others up."""
        _, phase, rule = self.stall_at(now)
        view, limit = self.view(now), self._settings.limit(phase)
        if rule == "stall":
            what = f"no progress for {now - self.last_progress(now):.0f} s, {limit.stall_s:.0f} s are allowed"
        else:
            what = f"not done after {now - max(self.begun, view.since):.0f} s, {limit.limit_s:.0f} s are allowed"
        who = view.laggard or (f"all {len(view.ranks)} ranks are in it" if len(view.ranks) > 1 else "")
        return f"stalled in {phase}: {what}" + (f"; {who}" if who else "")

    def alive_by_log(self, now: float) -> bool:
        """Whether the log showed progress since the probes began to fail, or lately."""
        failing = self.health.failing_since
        recent = now - self._settings.readiness.liveness_stall_s
        return self.last_progress(now) > max(recent, failing if failing is not None else recent)

    def liveness_lost(self, now: float) -> bool:
        """Whether probes have failed for long and nothing else speaks for the server."""
        return self.health.opinion.liveness is Health.FAILURE and not self.alive_by_log(now)

    # --- how the end goes ---

    def stop_begins(self, stage: str, now: float) -> None:
        """The stop is at this stage (evidence, term, kill); it began with the first of them."""
        self._stop_began = now if self._stop_began is None else self._stop_began
        self.stop = replace(self.stop, stage=stage)

    def killing(self, now: float) -> None:
        """Everything that is left is killed; the first kill counts."""
        self.stop_begins("kill", now)
        if self.stop.kill_s is None:
            self.stop = replace(self.stop, kill_s=self._stop_lasts(now))

    def exited(self, event: Exited, now: float) -> None:
        """The leader has ended, asked or not."""
        self.exit = ExitView(self.number, now, event.code, self.ending_reason)
        self.stop = replace(self.stop, exit_s=self._stop_lasts(now))

    def emptied(self, event: TreeEmptied, now: float) -> None:
        """Its last process is gone."""
        self.stop = replace(self.stop, empty_s=self._stop_lasts(now), killed=event.killed)

    def memory_back(self, now: float) -> None:
        """Its devices were seen clean for the first time since."""
        if self.stop.empty_s is not None and self.stop.free_s is None:
            self.stop = replace(self.stop, free_s=self._stop_lasts(now))

    def _stop_lasts(self, now: float) -> float:
        return now - (self._stop_began if self._stop_began is not None else now)

    def oom_killed(self, event: HostOomKilled, now: float) -> None:
        """The kernel killed one of its processes for memory. What names the process outweighs a counter."""
        if self.oom is None or event.pid:
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
        code = self.exit.code if self.exit else None
        view = self.view(now)
        self.diagnosis = self._finder.conclude(code, frozenset(self.signals), alive=self.exit is None, stage=view.stage)
        if self.oom is not None and now - self.oom_at < _OOM_RECENT_S:
            self.diagnosis = self._oom_diagnosis(self.oom)
        return self.diagnosis

    def _oom_diagnosis(self, oom: HostOomKilled) -> DiagnosisView:
        """The kernel's own word outweighs everything that the log makes of a vanished process."""
        known = self._profile.cause(HOST_OOM)
        who = f"pid {oom.pid} ({oom.process})" if oom.pid else "a process of the server"
        return DiagnosisView(
            cause=HOST_OOM,
            restart=known.restart if known else "maybe",
            remedy=known.remedy if known else "",
            evidence=f"the kernel's OOM killer ended {who}: {oom.source}",
            confidence=0.97,
        )

    def stage_order(self, now: float) -> int:
        """How far the start came, as the index of its coarse stage."""
        stage = self.view(now).stage
        return self._stages.index(stage) if stage in self._stages else 0

    def summary(self) -> str:
        """The end in a few words."""
        code = self.exit.code if self.exit else None
        match self.ending:
            case EndKind.STALL | EndKind.DEAD | EndKind.SPAWN:
                return self.ending_reason
            case _ if code is None:
                return "ended, exit status unknown"
            case _ if code < 0:
                return f"ended by signal {-code}"
            case _:
                return f"exited with status {code}"
