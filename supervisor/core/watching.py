"""Watches a living attempt: its log, probes, processes and counters; says when it is ready, and when it must end."""

from __future__ import annotations

import math
from collections.abc import Iterable

from supervisor.actions import Announce, AskCanary, Remember, StartRecord
from supervisor.config import DetectorMode
from supervisor.core.attempt import Attempt
from supervisor.core.budgets import Budgets
from supervisor.core.desk import CATCH_UP_S, REPLY_SLACK_S, Desk
from supervisor.core.endcause import EndKind
from supervisor.core.ending import Ender
from supervisor.core.health import Health
from supervisor.core.history import History
from supervisor.core.lifecycle import State, Trigger
from supervisor.core.log.traceback import HEAD
from supervisor.core.serving import Charge, standstill_charge
from supervisor.core.timers import Timer
from supervisor.events import (
    CanaryAnswered,
    DeviceMemorySampled,
    EngineSampled,
    HostOomKilled,
    LineMatched,
    LogUnreadable,
    Probed,
    RoleDied,
    TreeSampled,
)

_LIVING = (State.STARTING, State.RUNNING)


class Watcher:
    """Judges one server's living attempts; its memory of earlier starts outlives them."""

    def __init__(self, desk: Desk, ender: Ender, history: Iterable[StartRecord]) -> None:
        self._desk = desk
        self._ender = ender
        self._history = History(history)
        self.budgets = Budgets(desk.settings, self._history)
        self.would_have_killed: dict[str, int] = {}
        self._observed: set[str] = set()  # detectors that have spoken in this attempt

    def new_attempt(self) -> int | None:
        """Detectors may speak again. Answers how many tokens the last good start had room for."""
        self._observed.clear()
        return self._history.usual_capacity(self._desk.settings.history_key)

    def resume(self) -> None:
        """An adopted attempt is watched from now on; nothing is judged before its log has been read."""
        desk = self._desk
        desk.after(Timer.PROBE, 0.0)
        if desk.state is State.RUNNING:
            self._plan_canary()
        if desk.current().fatal_text:
            desk.after(Timer.FATAL_LINE, desk.settings.fatal_grace_s)

    def recall(self, event: LineMatched, at: float) -> None:
        """A record of the log from before the adoption, with the time at which it was written."""
        if self._desk.current().line(event, at).fatal:
            self._last_words(event.text, event.rank)

    # --- the log -------------------------------------------------------------------------------------------------

    def line(self, event: LineMatched) -> None:
        """A record of the log."""
        desk, attempt = self._desk, self._desk.current()
        advance = attempt.line(event, desk.now)
        if advance.fatal:
            self._last_words(event.text, event.rank)
        if advance.listening or advance.ready:
            self._probe_soon()

    def blind(self, event: LogUnreadable) -> None:
        """The log cannot be read: silence means nothing from now on."""
        self._desk.current().patience.blind = event.reason

    def _probe_soon(self) -> None:
        """The engine says that something has changed: ask at once, or right after the probe that is under way."""
        if self._desk.timers.at(Timer.PROBE) is not None:
            self._desk.after(Timer.PROBE, 0.0)
        else:
            self._desk.current().probe_again = True

    def role_died(self, event: RoleDied) -> None:
        """A process without which the server is dead has ended; its leader may need a minute to notice, or never."""
        who = self._desk.current().role_died(event)
        if not event.with_leader:
            self._last_words(f"{who} is gone{_how(event.code)}")

    def fatal_line_over(self) -> None:
        """The engine had its time for a dump of its own."""
        self._condemn(EndKind.DEAD, "dead", f"dead: {self._desk.current().fatal_text}")

    def _last_words(self, text: str, rank: str = "") -> None:
        desk, attempt = self._desk, self._desk.current()
        if desk.state in _LIVING and not attempt.fatal_text:
            said = text.partition(HEAD)[0].rstrip(" :") or text
            attempt.fatal_text = f"{said} ({rank})" if rank else said
            desk.after(Timer.FATAL_LINE, desk.settings.fatal_grace_s)

    def oom_killed(self, event: HostOomKilled) -> None:
        """The kernel took a process for want of memory."""
        if self._desk.attempt is not None:
            self._desk.attempt.oom_killed(event, self._desk.now)

    # --- probes --------------------------------------------------------------------------------------------------

    def probe(self) -> None:
        """Ask the readiness path, unless tokens prove the server's life: a full engine would only queue the probe."""
        desk = self._desk
        if desk.state not in _LIVING:
            return
        attempt = desk.current()
        if attempt.progressing(desk.now, desk.settings.readiness.interval_s) and attempt.health.failing_since is None:
            desk.after(Timer.PROBE, attempt.probe_delay_s(desk.now))
            return
        probe = attempt.next_probe()
        desk.after(Timer.PROBE_LOST, probe.timeout_s + REPLY_SLACK_S)
        desk.do(probe)

    def probed(self, event: Probed) -> None:
        """A probe ended."""
        desk, attempt = self._desk, self._desk.current()
        desk.timers.cancel(Timer.PROBE_LOST)
        attempt.probed(event, desk.now, draining=desk.state in (State.DRAINING, State.STOPPING))
        if desk.state is State.STARTING and attempt.health.opinion.startup is Health.SUCCESS:
            self._ready(attempt)
        if desk.state in _LIVING:
            again, attempt.probe_again = attempt.probe_again, False
            desk.after(Timer.PROBE, 0.0 if again and desk.state is State.STARTING else attempt.probe_delay_s(desk.now))

    def _ready(self, attempt: Attempt) -> None:
        desk = self._desk
        record = attempt.start_record(desk.now)
        attempt.ready(desk.now)
        desk.timers.cancel(Timer.PHASE, Timer.OBSERVED)
        desk.move(Trigger.READY, f"healthy {desk.now - attempt.begun:.1f} s after the start")
        self._history.add(record)
        self.budgets.learn_anew()
        desk.do(Remember(desk.number, record))
        self._plan_canary()

    # --- the processes, the engine's counters, the devices -------------------------------------------------------

    def sampled(self, event: TreeSampled | EngineSampled | DeviceMemorySampled) -> None:
        """Something besides the log was looked at."""
        desk, attempt = self._desk, self._desk.current()
        attempt.sampled(event, desk.now)
        if desk.state is State.STARTING:
            for still in attempt.vitals.standstills():
                self._charge(standstill_charge(still, desk.settings))

    def canary(self, event: CanaryAnswered) -> None:
        """A canary request was answered, or was not."""
        self._desk.current().canary(event, self._desk.now)
        if self._desk.state is State.RUNNING:  # the answer may come when the server has been stopped meanwhile
            self._plan_canary()

    def ask_canary(self) -> None:
        """Only an idle server is asked: a busy one proves itself, and a full one must not get more."""
        desk = self._desk
        if desk.state is not State.RUNNING:
            return
        self._plan_canary()
        if desk.facets.view("verdict").value == "idle" or desk.current().canary_failures:
            desk.do(AskCanary(desk.number, desk.settings.serving.canary_timeout_s))

    def _plan_canary(self) -> None:
        self._desk.after(Timer.CANARY, self._desk.settings.serving.canary_interval_s)

    # --- deadlines and charges -----------------------------------------------------------------------------------

    def judge(self) -> None:
        """After every event: bring the phase's deadline up to date, or judge the serving server."""
        desk, attempt = self._desk, self._desk.attempt
        if attempt is None or attempt.pid is None or attempt.ending is not None:
            return
        if desk.state is State.STARTING:
            self._set_deadlines(attempt)
        elif desk.state is State.RUNNING and not attempt.fatal_text and desk.now >= desk.late_until:
            self._charge(attempt.serving(desk.now).charge)

    def _set_deadlines(self, attempt: Attempt) -> None:
        desk = self._desk
        told = desk.paused and "deadline" in self._observed  # a passed deadline would be due again at once
        if not told and math.isfinite(at := attempt.patience.stall_at().at):
            desk.timers.set(Timer.PHASE, max(at, desk.late_until))
        observed = attempt.patience.observed_stall_at()
        if observed is not None and "learned" not in self._observed:
            desk.timers.set(Timer.OBSERVED, max(observed, desk.late_until))

    def phase_over(self) -> None:
        """The phase's deadline has come; progress since it was set, or our own absence, moves it instead."""
        desk, attempt = self._desk, self._desk.current()
        if desk.state is State.STARTING and max(attempt.patience.stall_at().at, desk.late_until) <= desk.now:
            self._condemn(EndKind.STALL, "deadline", attempt.patience.stall_reason(desk.now))

    def observed_over(self) -> None:
        """A learned deadline that does not act yet has passed."""
        desk, attempt = self._desk, self._desk.current()
        at = attempt.patience.observed_stall_at()
        if desk.state is State.STARTING and at is not None and max(at, desk.late_until) <= desk.now:
            self._would_have("learned", f"no progress for {desk.now - attempt.patience.last_progress():.0f} s")

    def _charge(self, charge: Charge | None) -> None:
        """A detector wants the attempt ended: act, or count what would have been done."""
        if charge is None:
            return
        if self._desk.settings.detectors.of(charge.detector) is DetectorMode.ENFORCE:
            self._condemn(EndKind.STALL, charge.detector, charge.reason)
        else:
            self._would_have(charge.detector, charge.reason)

    def _condemn(self, kind: EndKind, detector: str, reason: str) -> None:
        """Unless people work on the server: then it is counted, once."""
        if self._desk.paused:
            self._would_have(detector, reason)
        else:
            self._ender.condemn(kind, reason)

    def judge_again(self) -> None:
        """People have done their work: nothing is held against the server before news have been taken in."""
        desk, attempt = self._desk, self._desk.attempt
        self._observed.clear()
        desk.late_until = max(desk.late_until, desk.now + CATCH_UP_S)
        if attempt is not None and attempt.fatal_text and desk.state in _LIVING:
            desk.after(Timer.FATAL_LINE, desk.settings.fatal_grace_s)

    def _would_have(self, detector: str, reason: str) -> None:
        if detector in self._observed:
            return
        self._observed.add(detector)
        self.would_have_killed[detector] = self.would_have_killed.get(detector, 0) + 1
        self._desk.do(Announce("detector", "", detector, f"would have killed: {reason}", self._desk.number))


def _how(code: int | None) -> str:
    if code is None:
        return ""
    return f" (signal {-code})" if code < 0 else f" (status {code})"
