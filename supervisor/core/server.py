"""One server's decisions: events in, actions out, and the moment at which it wants to be asked again.

`Server` never waits, never reads a clock and never does I/O: it is told `now` (seconds of CLOCK_MONOTONIC) with every
event. Whoever carries it must deliver each action's result as an event of the same attempt and call `handle` with
`Ticked` when `deadline()` has come.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from supervisor.actions import (
    Announce,
    AnyAction,
    AskCanary,
    CheckDevices,
    KeepEvidence,
    KillTree,
    Remember,
    SignalTree,
    Spawn,
    StartRecord,
)
from supervisor.config import DetectorMode
from supervisor.core import verdict
from supervisor.core.attempt import Attempt, EndKind
from supervisor.core.budgets import Budgets
from supervisor.core.claims import Answer, weigh
from supervisor.core.facets import Facets
from supervisor.core.health import Health
from supervisor.core.history import History
from supervisor.core.lifecycle import ALIVE, Standing, State, Trigger
from supervisor.core.restart import Disposition, Ending, Next, RestartBook
from supervisor.core.serving import Charge, standstill_charge
from supervisor.core.settings import Settings
from supervisor.core.timers import Timer, Timers
from supervisor.events import (
    AnyEvent,
    CanaryAnswered,
    DeviceMemorySampled,
    DevicesChecked,
    EngineSampled,
    EvidenceKept,
    Exited,
    HostOomKilled,
    LineMatched,
    LogGrew,
    LogUnreadable,
    Probed,
    RestartRequested,
    RoleDied,
    SignalRequested,
    Spawned,
    SpawnFailed,
    StartRequested,
    StopRequested,
    Ticked,
    TreeEmptied,
    TreeSampled,
    TreeStuck,
)
from supervisor.profile import CommandFacts, Profile
from supervisor.snapshot import ServerSnapshot

_REST = Disposition(Next.REST, "stopped on request")
# A tick that comes this late means that we ourselves did not run (SIGSTOP, swap, a suspended machine): what the server
# wrote meanwhile has not been read yet, so nothing may be called stalled before it has.
_OWN_DELAY_S = 2.0
_CATCH_UP_S = 5.0
_REPLY_SLACK_S = 10.0
_STUCK_RETRY_S = 60.0


class Server:
    """Decisions about one server. `attempt` counts spawns from 1; 0 means that it never ran."""

    def __init__(
        self,
        settings: Settings,
        profile: Profile,
        facts: CommandFacts,
        now: float = 0.0,
        last_attempt: int = 0,
        history: Iterable[StartRecord] = (),
    ) -> None:
        self.settings = settings
        self._profile = profile
        self._facts = facts
        self._standing = Standing()
        self._timers = Timers()
        self._facets = Facets(now)
        self._book = RestartBook(settings.name, settings.restart)
        self._history = History(history)
        self._budgets = Budgets(settings, self._history)
        self._would_have_killed: dict[str, int] = {}
        self._observed: set[str] = set()  # detectors that have spoken in this attempt
        self._attempt: Attempt | None = None
        self._number = last_attempt
        self._goal_up = False
        self._next = _REST
        self._claim_since = 0.0
        self._checking = False
        self._asked_to_start = False  # whether the last look was for a start
        self._dirty = ""
        self._check_delay_s = settings.reclaim.recheck_s
        self._tree_alive = False
        self._late_until = -math.inf
        self._now = now
        self._out: list[AnyAction] = []

    # --- the three questions -------------------------------------------------------------------------------------

    def handle(self, event: AnyEvent, now: float) -> list[AnyAction]:
        """Take in one event; return what is to be done, in order."""
        self._now = now
        self._out = []
        if not self._stale(event):
            self._dispatch(event)
            self._refresh()
        return self._out

    def deadline(self) -> float | None:
        """When to call `handle(Ticked())`; None only at rest."""
        return self._timers.earliest()

    def snapshot(self) -> ServerSnapshot:
        """All facets as of the last event."""
        facts = verdict.snapshot(
            self.settings, self._facets, self._attempt, self._number, self._book, self._timers, self._now
        )
        return replace(facts, deadlines=self._budgets.views(), would_have_killed=dict(self._would_have_killed))

    @property
    def state(self) -> State:
        """The lifecycle state."""
        return self._standing.state

    # --- events --------------------------------------------------------------------------------------------------

    def _stale(self, event: AnyEvent) -> bool:
        """Whether the event belongs to an attempt that is over. Late evidence and log lines of it are of no use."""
        return getattr(event, "attempt", self._number) != self._number

    def _dispatch(self, event: AnyEvent) -> None:  # noqa: C901 - one flat table of event types
        match event:
            case StartRequested():
                self._start(event.by)
            case StopRequested():
                self._stop(event.by)
            case RestartRequested():
                self._restart(event.by, event.reason)
            case SignalRequested():
                self._pass_signal(event)
            case Spawned():
                self._spawned(event)
            case SpawnFailed():
                self._spawn_failed(event)
            case Exited():
                self._exited(event)
            case TreeEmptied():
                self._emptied(event)
            case TreeStuck():
                self._stuck(event)
            case LineMatched():
                self._line(event)
            case Probed():
                self._probed(event)
            case DevicesChecked():
                self._devices(event)
            case EvidenceKept():
                self._evidence(event)
            case RoleDied():
                self._role_died(event)
            case HostOomKilled():
                self._oom_killed(event)
            case TreeSampled() | EngineSampled() | DeviceMemorySampled():
                self._sampled(event)
            case CanaryAnswered():
                self._canary(event)
            case LogGrew() | LogUnreadable():
                pass
            case Ticked():
                self._tick()
            case _:
                assert_never(event)

    # --- requests ------------------------------------------------------------------------------------------------

    def _start(self, by: str) -> None:
        reason = f"start asked by {by}"
        if not self._set_goal("up", reason):
            if self.state is State.BACKOFF:
                self._claim(Disposition(Next.RELAUNCH, reason, self._now))
            return
        self._begin(reason)

    def _begin(self, reason: str) -> None:
        """Start as soon as the table allows: at once from rest, else when the present attempt is over."""
        self._book.forgive()
        relaunch = Disposition(Next.RELAUNCH, reason, self._now)
        if self.state is State.QUARANTINED and self._tree_alive:
            self._next = relaunch
            self._kill()
        elif self._standing.may(Trigger.CLAIM):
            self._claim(relaunch)
        else:
            self._next = relaunch

    def _stop(self, by: str) -> None:
        reason = f"stop asked by {by}"
        self._set_goal("down", reason)
        self._next = Disposition(Next.REST, reason, self._now)
        match self.state:
            case State.STARTING | State.RUNNING:
                self._end_by_operator(reason)
            case State.BACKOFF | State.FATAL:
                self._timers.clear()
                self._move(Trigger.CANCEL, reason)
            case State.QUARANTINED if self._tree_alive:
                self._kill()
            case State.QUARANTINED:
                self._claim(self._next)
            case _:
                pass

    def _restart(self, by: str, why: str) -> None:
        reason = why or f"restart asked by {by}"
        self._set_goal("up", reason)
        if self.state in (State.STARTING, State.RUNNING):
            self._book.forgive()
            self._next = Disposition(Next.RELAUNCH, reason, self._now)
            self._end_by_operator(reason)
        else:
            self._begin(reason)

    def _pass_signal(self, event: SignalRequested) -> None:
        attempt = self._attempt
        if attempt and attempt.pid and self.state in ALIVE:
            attempt.signals.add(event.signal)
            self._do(SignalTree(self._number, event.signal))

    def _end_by_operator(self, reason: str) -> None:
        attempt = self._current()
        attempt.end(EndKind.OPERATOR, reason)
        if attempt.pid is None:
            return  # Spawn is on its way: its answer ends it
        if self.state is State.RUNNING:
            self._move(Trigger.DRAIN, reason)
            self._terminate(self.settings.stop.grace_s)
        else:
            self._move(Trigger.END, reason)
            self._terminate(self.settings.stop.startup_grace_s)

    # --- from claim to spawn -------------------------------------------------------------------------------------

    def _claim(self, disposition: Disposition) -> None:
        self._timers.clear()
        self._next = disposition
        self._move(Trigger.CLAIM, disposition.reason)
        self._look_at_devices()

    def _look_at_devices(self) -> None:
        """Begin the wait for free devices and ports."""
        self._claim_since = self._now
        self._check_delay_s = self.settings.reclaim.recheck_s
        self._check()

    def _check(self) -> None:
        self._checking = True
        self._asked_to_start = self._starting()
        self._timers.set(Timer.CHECK_LOST, self._now + _REPLY_SLACK_S)
        self._do(CheckDevices(self._number, self._asked_to_start))

    def _starting(self) -> bool:
        return self._goal_up and self._next.next is Next.RELAUNCH

    def _devices(self, event: DevicesChecked) -> None:
        if self.state is not State.RECLAIMING or not self._checking:
            return
        self._checking = False
        self._dirty = event.reason if event.clean is False else ""
        self._timers.cancel(Timer.CHECK_LOST)
        match weigh(event, starting=self._starting(), waited_long=self._waited_long()):
            case Answer.PROCEED:
                if event.clean and self._attempt:
                    self._attempt.memory_back(self._now)
                self._proceed(event.reason)
            case Answer.WAIT:
                self._check_later(event.reason)
            case Answer.WAIT_FOR_OTHERS:
                self._claim_since = self._now
                self._check_later(event.reason)
            case Answer.GIVE_UP:
                self._move(Trigger.GIVE_UP, event.reason)
            case Answer.ISOLATE:
                waited = f"not free after {self._now - self._claim_since:.0f} s: " if not event.quarantined else ""
                self._move(Trigger.ISOLATE, f"{waited}{event.reason}")

    def _waited_long(self) -> bool:
        return self._now - self._claim_since >= self.settings.reclaim.own_limit_s

    def _check_lost(self) -> None:
        """No answer at all. What was dirty is not taken for clean; else not knowing is no reason to wait."""
        self._checking = False
        unanswered = f"{self._dirty}; the last look was not answered"
        if self._dirty and self._next.next is not Next.RELAUNCH and self._waited_long():
            self._move(Trigger.ISOLATE, unanswered)
        elif self._dirty:
            self._check_later(unanswered)
        else:
            self._proceed("nobody could tell whether the devices are free")

    def _check_later(self, reason: str) -> None:
        self._facets.set("lifecycle", self.state, reason, self._now, self._number)
        self._timers.set(Timer.CHECK, self._now + self._check_delay_s)
        self._check_delay_s = min(self.settings.reclaim.recheck_max_s, self._check_delay_s * 1.5)

    def _proceed(self, note: str) -> None:
        """All is free (or nobody can tell, which is no reason to wait): do what was decided."""
        decision = self._next if self._goal_up else Disposition(Next.REST, self._next.reason, self._now)
        reason = f"{decision.reason} ({note})" if note else decision.reason
        match decision.next:
            case Next.REST:
                self._move(Trigger.REST, reason)
            case Next.RELAUNCH if not self._asked_to_start:
                self._look_at_devices()  # what was proven is the end of the last attempt, not that a new one may start
            case Next.RELAUNCH:
                self._launch(reason)
            case Next.BACKOFF if decision.due <= self._now:
                self._next = Disposition(Next.RELAUNCH, decision.reason, self._now)
                self._look_at_devices()
            case Next.BACKOFF:
                self._move(Trigger.DELAY, reason)
                self._timers.set(Timer.BACKOFF, decision.due)
            case Next.FATAL:
                self._move(Trigger.GIVE_UP, reason)
            case Next.QUARANTINE:
                self._move(Trigger.ISOLATE, reason)
            case _:
                assert_never(decision.next)

    def _launch(self, reason: str) -> None:
        self._number += 1
        expected = self._history.usual_capacity(self.settings.history_key)
        self._attempt = Attempt(
            self._number, self.settings, self._profile, self._facts, self._now, self._budgets, expected
        )
        self._observed.clear()
        self._move(Trigger.LAUNCH, reason)
        self._timers.set(Timer.SPAWN, self._now + self.settings.spawn_limit_s)
        self._do(Spawn(self._number))

    def _spawned(self, event: Spawned) -> None:
        attempt = self._current()
        attempt.spawned(event)
        self._tree_alive = True
        self._timers.cancel(Timer.SPAWN)
        if self.state is State.STOPPING:
            self._kill()
        elif attempt.ending is EndKind.OPERATOR:
            self._end_by_operator(attempt.ending_reason)
        else:
            self._timers.set(Timer.PROBE, self._now + self.settings.readiness.refused_interval_s)

    def _spawn_failed(self, event: SpawnFailed) -> None:
        if self.state not in (State.STARTING, State.STOPPING):
            return
        attempt = self._current()
        attempt.end(EndKind.SPAWN, event.reason)
        attempt.permanent = event.permanent
        self._emptied(TreeEmptied(event.attempt))

    # --- the log and the probes ----------------------------------------------------------------------------------

    def _line(self, event: LineMatched) -> None:
        attempt = self._current()
        advance = attempt.line(event, self._now)
        if advance.fatal and self.state in (State.STARTING, State.RUNNING) and not attempt.fatal_text:
            attempt.fatal_text = event.text
            self._timers.set(Timer.FATAL_LINE, self._now + self.settings.fatal_grace_s)
        if (advance.listening or advance.ready) and self._timers.at(Timer.PROBE) is not None:
            self._timers.set(Timer.PROBE, self._now)

    def _role_died(self, event: RoleDied) -> None:
        attempt = self._current()
        if self.state in (State.STARTING, State.RUNNING) and not attempt.fatal_text:
            attempt.fatal_text = f"{event.role} {event.rank} (pid {event.pid}) is gone".replace("  ", " ")
            self._timers.set(Timer.FATAL_LINE, self._now + self.settings.fatal_grace_s)

    def _oom_killed(self, event: HostOomKilled) -> None:
        if self._attempt is not None:
            self._attempt.oom_killed(event, self._now)

    def _probed(self, event: Probed) -> None:
        attempt = self._current()
        self._timers.cancel(Timer.PROBE_LOST)
        draining = self.state in (State.DRAINING, State.STOPPING)
        attempt.probed(event, self._now, draining=draining)
        if self.state not in (State.STARTING, State.RUNNING):
            return
        if self.state is State.STARTING and attempt.health.opinion.startup is Health.SUCCESS:
            self._ready(attempt)
        self._timers.set(Timer.PROBE, self._now + attempt.probe_delay_s())

    def _ready(self, attempt: Attempt) -> None:
        record = attempt.start_record(self._now)
        attempt.ready_at = self._now
        self._timers.cancel(Timer.PHASE, Timer.OBSERVED)
        self._move(Trigger.READY, f"healthy {self._now - attempt.begun:.1f} s after the start")
        self._history.add(record)
        self._budgets.learn_anew()
        self._do(Remember(self._number, record))
        self._plan_canary()

    # --- the processes, the engine's counters, the devices -------------------------------------------------------

    def _sampled(self, event: TreeSampled | EngineSampled | DeviceMemorySampled) -> None:
        attempt = self._current()
        attempt.sampled(event, self._now)
        if self.state is State.STARTING:
            for still in attempt.vitals.standstills():
                if charge := standstill_charge(still, self.settings, self._now):
                    self._charge(charge)

    def _canary(self, event: CanaryAnswered) -> None:
        self._current().canary(event)
        self._plan_canary()

    def _ask_canary(self) -> None:
        """Only an idle server is asked: a busy one proves itself, and a full one must not get more."""
        attempt = self._current()
        if self.state is not State.RUNNING:
            return
        self._plan_canary()
        if self._facets.view("verdict").value == "idle" or attempt.canary_failures:
            self._do(AskCanary(self._number, self.settings.serving.canary_timeout_s))

    def _plan_canary(self) -> None:
        if math.isfinite(interval_s := self.settings.serving.canary_interval_s):
            self._timers.set(Timer.CANARY, self._now + interval_s)

    def _charge(self, charge: Charge) -> None:
        """A detector wants the attempt ended: act, or count what would have been done."""
        if self.settings.detectors.of(charge.detector) is DetectorMode.ENFORCE:
            self._condemn(EndKind.STALL, charge.reason)
        elif charge.detector not in self._observed:
            self._would_have(charge.detector, charge.reason)

    def _would_have(self, detector: str, reason: str) -> None:
        self._observed.add(detector)
        self._would_have_killed[detector] = self._would_have_killed.get(detector, 0) + 1
        self._do(Announce("detector", "", detector, f"would have killed: {reason}", self._number))

    # --- from the end of an attempt to the next decision ---------------------------------------------------------

    def _condemn(self, kind: EndKind, reason: str) -> None:
        """The attempt is to be killed, its evidence first."""
        attempt = self._current()
        if not attempt.end(kind, reason):
            return
        self._timers.clear()
        self._move(Trigger.END, reason)
        attempt.stop_begins("evidence", self._now)
        self._ask_evidence(attempt, reason)
        self._timers.set(Timer.EVIDENCE, self._now + self.settings.evidence_limit_s + _REPLY_SLACK_S)

    def _ask_evidence(self, attempt: Attempt, reason: str) -> None:
        attempt.evidence_asked = True
        self._do(KeepEvidence(self._number, reason, self.settings.evidence_limit_s))

    def _evidence(self, event: EvidenceKept) -> None:
        attempt = self._current()
        attempt.evidence_path = event.path
        if self._timers.at(Timer.EVIDENCE) is not None:
            self._timers.cancel(Timer.EVIDENCE)
            self._terminate(self.settings.stop.stall_grace_s)

    def _terminate(self, grace_s: float) -> None:
        attempt = self._current()
        attempt.stop_begins("term", self._now)
        attempt.signals.add(self.settings.stop.signal)
        self._timers.clear()
        self._timers.set(Timer.GRACE, self._now + grace_s)
        self._do(SignalTree(self._number, self.settings.stop.signal))

    def _kill(self) -> None:
        if self._attempt is not None:
            self._attempt.killing(self._now)
        self._timers.clear()
        self._timers.set(Timer.KILL, self._now + self.settings.kill_limit_s + _REPLY_SLACK_S)
        self._do(KillTree(self._number))

    def _exited(self, event: Exited) -> None:
        attempt = self._current()
        attempt.exited(event, self._now)
        attempt.end(EndKind.EXIT, "the leader exited")
        if self.state in (State.STARTING, State.RUNNING, State.DRAINING):
            self._move(Trigger.END, attempt.summary())
        if self.state is State.STOPPING and attempt.stop.stage != "kill":
            self._kill()  # the leader's end is not the tree's end: sweep what is left

    def _emptied(self, event: TreeEmptied) -> None:
        if not self._standing.may(Trigger.EMPTIED):
            return
        attempt = self._current()
        attempt.emptied(event, self._now)
        self._tree_alive = False
        attempt.stuck = ()
        self._timers.clear()
        if attempt.ending is not EndKind.OPERATOR:
            self._next = self._decide(attempt)
        elif self._goal_up and self._next.next is Next.REST:
            self._next = Disposition(Next.RELAUNCH, attempt.ending_reason, self._now)
        self._move(Trigger.EMPTIED, attempt.summary())
        self._look_at_devices()

    def _decide(self, attempt: Attempt) -> Disposition:
        """Ask the policy what follows a failure."""
        diagnosis = attempt.conclude(self._now)
        if not attempt.evidence_asked:
            self._ask_evidence(attempt, attempt.summary())
        ending = Ending(
            self._number,
            self._now,
            diagnosis,
            serving_s=self._now - attempt.ready_at if attempt.ready_at is not None else 0.0,
            stage_order=attempt.stage_order(self._now),
            permanent=attempt.permanent,
            summary=attempt.summary(),
        )
        return self._book.decide(ending)

    def _stuck(self, event: TreeStuck) -> None:
        if self.state not in ALIVE and not (self.state is State.QUARANTINED and self._tree_alive):
            return  # the answer to an earlier kill; a later one has succeeded meanwhile
        self._tree_alive = True
        attempt = self._current()
        attempt.stuck = event.processes
        names = ", ".join(f"pid {p.pid} ({p.state}, {p.wait_channel or 'no wait channel'})" for p in event.processes)
        reason = f"cannot be killed: {names}; it stays until the kernel lets go"
        if self.state in (State.STARTING, State.RUNNING, State.DRAINING):
            self._move(Trigger.END, reason)
        if self.state is State.STOPPING:
            self._move(Trigger.ISOLATE, reason)
        self._timers.clear()
        self._timers.set(Timer.KILL, self._now + _STUCK_RETRY_S)

    # --- time ----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        deadline = self._timers.earliest()
        if deadline is not None and self._now - deadline > _OWN_DELAY_S:
            self._late_until = self._now + _CATCH_UP_S
        for timer in self._timers.due(self._now):
            self._ripe(timer)

    def _ripe(self, timer: Timer) -> None:  # noqa: C901 - one flat table of timers
        match timer:
            case Timer.SPAWN:
                self._current().end(EndKind.SPAWN, "the spawn was never answered")
                self._move(Trigger.END, "the spawn was never answered")
                self._kill()
            case Timer.PROBE:
                self._probe()
            case Timer.PROBE_LOST:
                self._timers.set(Timer.PROBE, self._now)
            case Timer.PHASE:
                self._phase_over()
            case Timer.OBSERVED:
                self._observed_over()
            case Timer.CANARY:
                self._ask_canary()
            case Timer.FATAL_LINE:
                self._condemn(EndKind.DEAD, f"dead: {self._current().fatal_text}")
            case Timer.EVIDENCE:
                self._terminate(self.settings.stop.stall_grace_s)
            case Timer.GRACE:
                if self.state is State.DRAINING:
                    self._move(Trigger.END, "the grace period is over")
                self._kill()
            case Timer.KILL:
                self._kill()
            case Timer.CHECK:
                self._check()
            case Timer.CHECK_LOST:
                self._check_lost()
            case Timer.BACKOFF:
                self._claim(Disposition(Next.RELAUNCH, self._next.reason, self._now))
            case _:
                assert_never(timer)

    def _probe(self) -> None:
        if self.state not in (State.STARTING, State.RUNNING):
            return
        attempt = self._current()
        if attempt.progressing(self._now, self.settings.readiness.interval_s) and attempt.health.failing_since is None:
            # A saturated engine proves its life by tokens; a probe would only join its queue (upstream issue 35884).
            self._timers.set(Timer.PROBE, self._now + attempt.probe_delay_s())
            return
        probe = attempt.next_probe()
        self._timers.set(Timer.PROBE_LOST, self._now + probe.timeout_s + _REPLY_SLACK_S)
        self._do(probe)

    def _phase_over(self) -> None:
        attempt = self._current()
        if self.state is not State.STARTING or max(attempt.stall_at(self._now).at, self._late_until) > self._now:
            return  # progress since the timer was set, or we were away: `_refresh` sets it anew
        self._condemn(EndKind.STALL, attempt.stall_reason(self._now))

    def _observed_over(self) -> None:
        """A learned deadline that does not act yet has passed."""
        attempt = self._current()
        at = attempt.observed_stall_at(self._now)
        if self.state is not State.STARTING or at is None or "learned" in self._observed:
            return
        if max(at, self._late_until) <= self._now:
            self._would_have("learned", f"no progress for {self._now - attempt.last_progress(self._now):.0f} s")

    # --- facets --------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Bring the derived facets and the phase's deadline up to date."""
        attempt = self._attempt
        if attempt and attempt.pid and self.state is State.STARTING and attempt.ending is None:
            self._set_deadlines(attempt)
        if attempt and self.state is State.RUNNING and not attempt.fatal_text and self._now >= self._late_until:
            self._judge_serving(attempt)
        for facet, value, reason in verdict.judge(self.state, attempt, self.settings, self._now):
            self._set(facet, value, reason)

    def _judge_serving(self, attempt: Attempt) -> None:
        if charge := attempt.serving(self._now).charge:
            self._charge(charge)

    def _set_deadlines(self, attempt: Attempt) -> None:
        if math.isfinite(at := attempt.stall_at(self._now).at):
            self._timers.set(Timer.PHASE, max(at, self._late_until))
        observed = attempt.observed_stall_at(self._now)
        if observed is not None and "learned" not in self._observed:
            self._timers.set(Timer.OBSERVED, max(observed, self._late_until))

    def _set(self, facet: str, value: str, reason: str) -> None:
        if announcement := self._facets.set(facet, value, reason, self._now, self._number):
            self._do(announcement)

    def _set_goal(self, goal: str, reason: str) -> bool:
        """Change what is wanted. False when it was wanted already."""
        changed = self._goal_up != (goal == "up")
        self._goal_up = goal == "up"
        self._set("goal", goal, reason)
        return changed

    def _move(self, trigger: Trigger, reason: str) -> None:
        self._set("lifecycle", self._standing.move(trigger), reason)

    def _current(self) -> Attempt:
        if self._attempt is None:
            raise AssertionError("an event of an attempt came before the first spawn")
        return self._attempt

    def _do(self, action: AnyAction) -> None:
        self._out.append(action)
