"""One server's decisions: events in, actions out, and the moment at which it wants to be asked again.

`Server` never waits, never reads a clock and never does I/O: it is told `now` (seconds of CLOCK_MONOTONIC) with every
event. Whoever carries it must deliver each action's result as an event of the same attempt and call `handle` with
`Ticked` when `deadline()` has come.

Its parts share a `Desk`: `Requests` carries out what people ask for, `Course` what follows what, `Claimer` waits for
devices, `Watcher` judges the living attempt, `Ender` ends it. Here each event and each timer finds its part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import assert_never

from msgspec.structs import replace

from supervisor.actions import AnyAction, StartRecord
from supervisor.core import verdict
from supervisor.core.course import Course
from supervisor.core.desk import CATCH_UP_S, Desk
from supervisor.core.ending import Ender
from supervisor.core.lifecycle import State
from supervisor.core.maintenance import FACET, Maintenance
from supervisor.core.mates import Mates
from supervisor.core.memory import Memory
from supervisor.core.requests import Requests
from supervisor.core.restart import Disposition
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
from supervisor.snapshot import IncidentView, ServerSnapshot

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
        past: Collection[IncidentView] = (),
    ) -> None:
        self.settings = settings
        self._desk = Desk(settings, now, last_attempt)
        self._desk.incidents.extend(past)
        self._desk.number = max(last_attempt, *(one.attempt for one in past), 0)  # no number is given twice
        self._ender = Ender(self._desk)
        self._watcher = Watcher(self._desk, self._ender, history)
        self._course = Course(self._desk, self._ender, self._watcher, profile, facts)
        self._requests = Requests(self._desk, self._ender, self._course)
        self._maintenance = Maintenance(self._desk, self._watcher, self._requests.begin)
        self._mates = Mates(self._desk, self._ender, self._course.claim)
        self._memory = Memory(self._desk, self._ender, self._watcher, self._course.claimer, self._maintenance)

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
    def pauses(self) -> bool:
        """Whether its start waits for the next look at what it needs: nothing of it is under way."""
        claimer = self._course.claimer
        return self.state is State.RECLAIMING and claimer.asked_to_start and not claimer.asking

    @property
    def follows(self) -> Disposition:
        """What has been decided to follow the present attempt."""
        return self._desk.next

    # --- across the daemon's own death ---------------------------------------------------------------------------

    def save(self, boot_id: str) -> SavedServer:
        """What the next daemon needs to go on."""
        return self._memory.save(boot_id)

    def restore(self, saved: SavedServer, now: float, *, tree_lives: bool, ended: int | None = None) -> list[AnyAction]:
        """Take up what an earlier daemon of this boot left. `tree_lives`: processes of the attempt were found; else
        `ended` is how its leader has ended, None when nobody knows.

        Before any event; afterwards the shell recalls the log of a living attempt and answers the actions as usual.
        """
        desk = self._desk
        desk.now, desk.out = now, []
        desk.late_until = now + CATCH_UP_S
        self._memory.restore(saved, self._course.new_attempt, tree_lives=tree_lives, ended=ended)
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
                self._requests.start(event.by, force=event.force)
            case StopRequested():
                self._requests.stop(event.by, event.grace_s, hold=event.hold)
            case RestartRequested():
                self._requests.restart(event.by, event.reason, event.grace_s)
            case SignalRequested():
                self._requests.pass_signal(event)
            case PauseRequested():
                self._maintenance.pause(event.by)
            case ResumeRequested():
                self._maintenance.resume(event.by, wanted_up=self._desk.goal_up)
            case MateFailed():
                self._mates.failed(event)
            case Spawned():
                self._course.spawned(event)
            case SpawnFailed():
                self._course.spawn_failed(event)
            case Exited():
                self._ender.exited(event)
            case TreeEmptied():
                self._course.emptied(event)
            case TreeStuck():
                self._ender.stuck(event)
            case LineMatched():
                self._watcher.line(event)
            case Probed():
                self._watcher.probed(event)
            case DevicesChecked():
                self._course.claimer.answered(event)
            case EvidenceKept():
                self._course.evidence(event)
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
                self._course.claimer.ask()
            case Timer.CHECK_LOST:
                self._course.claimer.unanswered()
            case Timer.BACKOFF:
                self._course.backoff_over()
            case _:
                assert_never(timer)
