"""One server's decisions: events in, actions out, and the moment at which it wants to be asked again.

`Server` never waits, never reads a clock and never does I/O: it is told `now` (seconds of CLOCK_MONOTONIC) with every
event. Whoever carries it must deliver each action's result as an event of the same attempt and call `handle` with
`Ticked` when `deadline()` has come.

Its parts share a `Desk`: `Watcher` judges the living attempt, `Ender` ends it, `Claimer` waits for devices; what
follows what, and what people ask for, is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from supervisor.actions import AnyAction, SignalTree, Spawn, StartRecord
from supervisor.core import verdict
from supervisor.core.attempt import Attempt
from supervisor.core.claiming import Claimer
from supervisor.core.desk import CATCH_UP_S, Desk
from supervisor.core.endcause import EndKind
from supervisor.core.ending import Ender
from supervisor.core.lifecycle import ALIVE, State, Trigger
from supervisor.core.maintenance import FACET, Maintenance
from supervisor.core.mates import Mates
from supervisor.core.memory import Memory
from supervisor.core.restart import Disposition, Ending, Next
from supervisor.core.settings import Settings
from supervisor.core.timers import Timer
from supervisor.core.watching import Watcher
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
    MateFailed,
    PauseRequested,
    Probed,
    RequestsCounted,
    RestartRequested,
    ResumeRequested,
    RoleDied,
    RoutersLeft,
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
from supervisor.saved import SavedServer
from supervisor.snapshot import ServerSnapshot

# A tick that comes this late means that we ourselves did not run (SIGSTOP, swap, a suspended machine): what the server
# wrote meanwhile has not been read yet, so nothing may be called stalled before it has.
_OWN_DELAY_S = 2.0


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
        self._desk = Desk(settings, now, last_attempt)
        self._ender = Ender(self._desk)
        self._watcher = Watcher(self._desk, self._ender, history)
        self._claimer = Claimer(self._desk, self._wants_start, self._proceed)
        self._maintenance = Maintenance(self._desk, self._watcher, self._begin)
        self._mates = Mates(self._desk, self._ender, self._claim)
        self._memory = Memory(self._desk, self._ender, self._watcher, self._claimer, self._maintenance)

    # --- the three questions -------------------------------------------------------------------------------------

    def handle(self, event: AnyEvent, now: float) -> list[AnyAction]:
        """Take in one event; return what is to be done, in order."""
        desk = self._desk
        desk.now, desk.out = now, []
        if not self._stale(event):
            self._dispatch(event)
            self._watcher.judge()
            for facet, value, reason in verdict.judge(desk.state, desk.attempt, now):
                desk.set(facet, value, reason)
        return desk.out

    def deadline(self) -> float | None:
        """When to call `handle(Ticked())`; None only at rest."""
        return self._desk.timers.earliest()

    def snapshot(self) -> ServerSnapshot:
        """All facets as of the last event."""
        desk, watcher = self._desk, self._watcher
        facts = verdict.snapshot(
            self.settings, desk.facets, desk.attempt, desk.number, self._desk.book, desk.timers, desk.now
        )
        return replace(
            facts,
            deadlines=watcher.budgets.views(),
            would_have_killed=dict(watcher.would_have_killed),
            maintenance=desk.facets.view(FACET) if desk.paused else None,
            incidents=tuple(self._desk.incidents),
            drain=self._ender.drainer.view(),
        )

    @property
    def state(self) -> State:
        """The lifecycle state."""
        return self._desk.state

    @property
    def follows(self) -> Disposition:
        """What has been decided to follow the present attempt."""
        return self._desk.next

    # --- across the daemon's own death ---------------------------------------------------------------------------

    def save(self, boot_id: str, config_hash: str = "") -> SavedServer:
        """What the next daemon needs to go on."""
        return self._memory.save(boot_id, config_hash)

    def restore(self, saved: SavedServer, now: float, *, tree_lives: bool, ended: int | None = None) -> list[AnyAction]:
        """Take up what an earlier daemon of this boot left. `tree_lives`: processes of the attempt were found; else
        `ended` is how its leader has ended, None when nobody knows.

        Before any event; afterwards the shell recalls the log of a living attempt and answers the actions as usual.
        """
        desk = self._desk
        desk.now, desk.out = now, []
        desk.late_until = now + CATCH_UP_S
        self._memory.restore(saved, self._new_attempt, tree_lives=tree_lives, ended=ended)
        return desk.out

    def recall(self, event: LineMatched, at: float) -> None:
        """A record that the adopted attempt wrote before; `at` is when. Asks for nothing."""
        if self._desk.attempt is not None and event.attempt == self._desk.number:
            self._watcher.recall(event, at)

    # --- events --------------------------------------------------------------------------------------------------

    def _stale(self, event: AnyEvent) -> bool:
        """Whether the event belongs to an attempt that is over; only its evidence may come late."""
        if isinstance(event, EvidenceKept):
            return False
        return getattr(event, "attempt", self._desk.number) != self._desk.number

    def _dispatch(self, event: AnyEvent) -> None:  # noqa: C901 - one flat table of event types
        match event:
            case StartRequested():
                self._start(event.by, event.force)
            case StopRequested():
                self._stop(event.by, event.grace_s, event.hold)
            case RestartRequested():
                self._restart(event.by, event.reason, event.grace_s)
            case SignalRequested():
                self._pass_signal(event)
            case PauseRequested():
                self._maintenance.pause(event.by)
            case ResumeRequested():
                self._maintenance.resume(event.by, wanted_up=self._desk.goal_up)
            case MateFailed():
                self._mates.failed(event)
            case Spawned():
                self._spawned(event)
            case SpawnFailed():
                self._spawn_failed(event)
            case Exited():
                self._ender.exited(event)
            case TreeEmptied():
                self._emptied(event)
            case TreeStuck():
                self._ender.stuck(event)
            case LineMatched():
                self._watcher.line(event)
            case Probed():
                self._watcher.probed(event)
            case DevicesChecked():
                self._claimer.answered(event)
            case EvidenceKept():
                self._evidence(event)
            case RoleDied():
                self._watcher.role_died(event)
            case HostOomKilled():
                self._watcher.oom_killed(event)
            case TreeSampled() | EngineSampled() | DeviceMemorySampled():
                self._watcher.sampled(event)
            case RoutersLeft():
                self._ender.drainer.left(event)
            case RequestsCounted():
                self._ender.drainer.counted(event)
            case CanaryAnswered():
                self._watcher.canary(event)
            case LogUnreadable():
                self._watcher.blind(event)
            case LogGrew():
                pass
            case Ticked():
                self._tick()
            case _:
                assert_never(event)

    # --- requests ------------------------------------------------------------------------------------------------

    def _start(self, by: str, force: bool) -> None:
        reason = f"start asked by {by}"
        if force or not self._desk.goal_up or self.state in (State.FATAL, State.QUARANTINED):
            self._claimer.force = force
        if self._set_goal("up", reason) or self.state in (State.FATAL, State.QUARANTINED):
            self._begin(reason)
        elif self.state is State.BACKOFF:
            self._claim(Disposition(Next.RELAUNCH, reason, self._desk.now))

    def _begin(self, reason: str) -> None:
        """Start as soon as the table allows: at once from rest, else when the present attempt is over."""
        desk = self._desk
        self._desk.book.forgive()
        relaunch = Disposition(Next.RELAUNCH, reason, desk.now)
        if desk.state is State.QUARANTINED and desk.tree_alive:
            self._desk.next = relaunch
            self._ender.kill()
        elif desk.standing.may(Trigger.CLAIM):
            self._claim(relaunch)
        else:
            self._desk.next = relaunch

    def _stop(self, by: str, grace_s: float | None, hold: bool) -> None:
        desk = self._desk
        reason = f"stop asked by {by}" if grace_s is None else f"drain of at most {grace_s:.0f} s asked by {by}"
        self._set_goal("down", reason)
        self._desk.next = Disposition(Next.REST, reason, desk.now)
        match desk.state:
            case State.STARTING | State.RUNNING if hold:
                pass
            case State.STARTING | State.RUNNING:
                self._ender.by_operator(reason, grace_s)
            case State.DRAINING:
                self._ender.hurry(grace_s)
            case State.BACKOFF | State.FATAL:
                desk.timers.clear()
                desk.move(Trigger.CANCEL, reason)
            case State.QUARANTINED if desk.tree_alive:
                self._ender.kill()
            case State.QUARANTINED:
                self._claim(self._desk.next)
            case _:
                pass

    def _restart(self, by: str, why: str, grace_s: float | None) -> None:
        reason = why or f"restart asked by {by}"
        self._set_goal("up", reason)
        if self.state in (State.STARTING, State.RUNNING):
            self._desk.book.forgive()
            self._desk.next = Disposition(Next.RELAUNCH, reason, self._desk.now)
            self._ender.by_operator(reason, grace_s)
        else:
            self._begin(reason)

    def _pass_signal(self, event: SignalRequested) -> None:
        attempt = self._desk.attempt
        if attempt and attempt.pid and self.state in ALIVE:
            attempt.signals.add(event.signal)
            self._desk.do(SignalTree(self._desk.number, event.signal))

    def _set_goal(self, goal: str, reason: str) -> bool:
        """Change what is wanted. False when it was wanted already."""
        changed = self._desk.goal_up != (goal == "up")
        self._desk.goal_up = goal == "up"
        self._desk.set("goal", goal, reason)
        return changed

    # --- from claim to spawn -------------------------------------------------------------------------------------

    def _claim(self, disposition: Disposition) -> None:
        self._desk.timers.clear()
        self._desk.next = disposition
        self._desk.move(Trigger.CLAIM, disposition.reason)
        self._claimer.look()

    def _wants_start(self) -> bool:
        return self._desk.goal_up and self._desk.next.next is Next.RELAUNCH

    def _proceed(self, note: str) -> None:
        """All is free (or nobody can tell, which is no reason to wait): do what was decided."""
        desk = self._desk
        if desk.attempt is not None:
            self._amend(desk.number, stop=desk.attempt.stop)
        decision = self._desk.next if self._desk.goal_up else Disposition(Next.REST, self._desk.next.reason, desk.now)
        decision = self._maintenance.held(decision)
        reason = f"{decision.reason} ({note})" if note else decision.reason
        match decision.next:
            case Next.REST:
                desk.move(Trigger.REST, reason)
            case Next.RELAUNCH if not self._claimer.asked_to_start:
                self._claimer.look()  # what was proven is the end of the last attempt, not that a new one may start
            case Next.RELAUNCH:
                self._launch(reason)
            case Next.BACKOFF if decision.due <= desk.now:
                self._desk.next = Disposition(Next.RELAUNCH, decision.reason, desk.now, by_itself=True)
                self._claimer.look()
            case Next.BACKOFF:
                desk.move(Trigger.DELAY, reason)
                desk.timers.set(Timer.BACKOFF, decision.due)
            case Next.FATAL:
                desk.move(Trigger.GIVE_UP, reason)
            case Next.QUARANTINE:
                desk.move(Trigger.ISOLATE, reason)
            case _:
                assert_never(decision.next)

    def _launch(self, reason: str) -> None:
        desk = self._desk
        desk.number += 1
        desk.attempt = self._new_attempt(desk.number, desk.now)
        desk.move(Trigger.LAUNCH, reason)
        desk.after(Timer.SPAWN, self.settings.spawn_limit_s)
        desk.do(Spawn(desk.number))

    def _new_attempt(self, number: int, begun: float) -> Attempt:
        expected = self._watcher.new_attempt()
        return Attempt(number, self.settings, self._profile, self._facts, begun, self._watcher.budgets, expected)

    def _spawned(self, event: Spawned) -> None:
        desk, attempt = self._desk, self._desk.current()
        attempt.spawned(event)
        desk.tree_alive = True
        desk.timers.cancel(Timer.SPAWN)
        if desk.state is State.STOPPING:
            self._ender.kill()
        elif attempt.ending is EndKind.OPERATOR:
            self._ender.by_operator(attempt.ending_reason)
        else:
            desk.after(Timer.PROBE, self.settings.readiness.refused_interval_s)

    def _spawn_failed(self, event: SpawnFailed) -> None:
        if self.state not in (State.STARTING, State.STOPPING):
            return
        attempt = self._desk.current()
        attempt.end(EndKind.SPAWN, event.reason)
        attempt.permanent = event.permanent
        self._emptied(TreeEmptied(event.attempt))

    # --- from the end of an attempt to the next decision ---------------------------------------------------------

    def _emptied(self, event: TreeEmptied) -> None:
        desk = self._desk
        if not desk.standing.may(Trigger.EMPTIED):
            return
        attempt = desk.current()
        attempt.emptied(event, desk.now)
        attempt.stuck = ()
        desk.tree_alive = False
        desk.timers.clear()
        if attempt.ending is not EndKind.OPERATOR:
            self._desk.next = self._decide(attempt)
        elif self._desk.goal_up and self._desk.next.next is Next.REST:
            self._desk.next = Disposition(Next.RELAUNCH, attempt.ending_reason, desk.now)
        desk.move(Trigger.EMPTIED, attempt.summary())
        self._claimer.look()

    def _decide(self, attempt: Attempt) -> Disposition:
        """Ask the policy what follows a failure."""
        now = self._desk.now
        diagnosis = attempt.conclude(now)
        if not attempt.evidence_asked:
            self._ender.ask_evidence(attempt, attempt.summary())
        ending = Ending(
            self._desk.number,
            now,
            diagnosis,
            serving_s=now - attempt.ready_at if attempt.ready_at is not None else 0.0,
            stage_order=attempt.stage_order(),
            permanent=attempt.permanent,
            host_refused=attempt.ending is EndKind.SPAWN and not attempt.permanent,
            summary=attempt.summary(),
        )
        decision = self._desk.book.decide(ending)
        self._desk.incidents.append(attempt.incident(now, f"{decision.next}: {decision.reason}"))
        return decision

    def _evidence(self, event: EvidenceKept) -> None:
        self._amend(event.attempt, evidence_path=event.path)
        if event.attempt == self._desk.number and self._desk.attempt is not None:
            self._ender.evidence(event)

    def _amend(self, attempt: int, **known: object) -> None:
        """What came after the decision: where the evidence is, when the devices had their memory back."""
        for at, incident in enumerate(self._desk.incidents):
            if incident.attempt == attempt:
                self._desk.incidents[at] = replace(incident, **known)

    # --- time ----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        desk = self._desk
        deadline = desk.timers.earliest()
        if deadline is not None and desk.now - deadline > _OWN_DELAY_S:
            desk.late_until = desk.now + CATCH_UP_S
        while (timer := desk.timers.pop_due(desk.now)) is not None:
            self._ripe(timer)

    def _ripe(self, timer: Timer) -> None:  # noqa: C901 - one flat table of timers
        match timer:
            case Timer.SPAWN:
                self._ender.unanswered_spawn()
            case Timer.PROBE:
                self._watcher.probe()
            case Timer.PROBE_LOST:
                self._desk.after(Timer.PROBE, 0.0)
            case Timer.PHASE:
                self._watcher.phase_over()
            case Timer.OBSERVED:
                self._watcher.observed_over()
            case Timer.CANARY:
                self._watcher.ask_canary()
            case Timer.FATAL_LINE:
                self._watcher.fatal_line_over()
            case Timer.EVIDENCE:
                self._ender.evidence_over()
            case Timer.LEAVE:
                self._ender.drainer.unanswered()
            case Timer.COUNT:
                self._ender.drainer.count()
            case Timer.DRAINED:
                self._ender.drainer.over()
            case Timer.GRACE:
                self._ender.grace_over()
            case Timer.KILL:
                self._ender.kill()
            case Timer.CHECK:
                self._claimer.ask()
            case Timer.CHECK_LOST:
                self._claimer.unanswered()
            case Timer.BACKOFF:
                self._claim(Disposition(Next.RELAUNCH, self._desk.next.reason, self._desk.now, by_itself=True))
            case _:
                assert_never(timer)
