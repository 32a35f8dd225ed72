"""What must hold after every step of every history, judged by what a bystander sees and not by the core's own books.

docs/testing.md lists them; each check names its own.
"""

from __future__ import annotations

import math

import msgspec

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import RESTING, TABLE, State
from supervisor.core.server import Server
from supervisor.core.settings import Settings
from supervisor.saved import SavedServer
from supervisor.snapshot import ServerSnapshot
from tests.fleet.host import Tree
from tests.fleet.plans import LEAST_PATIENCE_S

_LEGAL = {(source.value, row.dest.value) for row in TABLE for source in row.sources}
_WITH_ATTEMPT = (State.STARTING.value, State.STOPPING.value)
SPAWN_LIMIT_S = 30.0
_PROBE_SLACK_S = 10.0
# A stop ends within its grace, the evidence, three tries to kill, and the patience with memory that stays.
_STOP_LIMIT_S = 400.0
HELD_FACTOR = 3.0  # a stop that waits until others have ended


class BrokenError(AssertionError):
    """An invariant does not hold."""


def hold(what: bool, told: str) -> None:
    """Fail with the invariant's own words."""
    if not what:
        raise BrokenError(told)


class Bystander:
    """One server's. It sees every event, every action and every spawn."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.number = 0  # of the present attempt
        self._credit = 0  # starts that somebody or the policy has asked for
        self._asked = 0  # those of them that somebody asked for
        self._failures: list[float] = []  # followed by a restart, since an operator last asked for one
        self._grounds: set[str] = set()  # why the present attempt may be ended
        self._failed_probes = 0
        self._last_sign = 0.0
        self._ready_at: float | None = None
        self._down_since: float | None = None
        self._probe_until = 0.0
        self._spawn_until = math.inf
        self._paused = False
        self._patience = 1.0
        self._handed_over = False
        self._state = State.STOPPED.value
        self._emptied = False  # whether the last event told that the tree is empty
        self._last_look: e.DevicesChecked | None = None

    @property
    def spawning(self) -> bool:
        """Whether a spawn has been asked for and not been answered."""
        return self._spawn_until < math.inf

    # --- what is seen ------------------------------------------------------------------------------------------------

    def event(self, event: e.AnyEvent, now: float) -> None:  # noqa: C901 - one flat table of events
        """An event is about to be handled."""
        if getattr(event, "attempt", self.number) != self.number and not isinstance(event, e.EvidenceKept):
            return
        self._emptied = isinstance(event, e.TreeEmptied)
        match event:
            case e.StartRequested() | e.RestartRequested() | e.ResumeRequested():
                self._asked_up(isinstance(event, e.ResumeRequested))
            case e.StopRequested():
                self._grounds |= set() if event.hold else {"asked"}
                self._patience = HELD_FACTOR if event.hold else 1.0
                self._credit, self._asked, self._down_since = 0, 0, now
            case e.PauseRequested():
                self._paused, self._credit = True, min(self._credit, self._asked)
            case e.MateFailed() if not self._paused and self._down_since is None:
                self._grounds.add("mate")
            case e.SignalRequested():
                self._grounds.add("asked")
            case e.Probed():
                self._probe_until = 0.0
                self._probed(event)
            case e.LineMatched():
                self._last_sign = now
                self._grounds.add("fatal line")
            case e.Spawned():
                self._last_sign, self._spawn_until = now, math.inf
            case e.SpawnFailed():
                self._grounds.add("death" if event.permanent else "refused")
            case e.Exited() | e.RoleDied() | e.HostOomKilled() | e.TreeStuck() | e.TreeEmptied():
                self._grounds.add("death")
            case e.TreeSampled() | e.EngineSampled() | e.CanaryAnswered():
                self._grounds.add("samples")
            case e.DevicesChecked() if self._state == State.RECLAIMING:
                self._last_look = event
            case _:
                pass

    def _asked_up(self, resumed: bool) -> None:
        self._paused = self._paused and not resumed
        self._credit = self._asked = 1
        self._down_since = None
        self._failures.clear()
        if not resumed:
            self._grounds.add("asked")

    def _probed(self, event: e.Probed) -> None:
        if event.outcome is e.ProbeOutcome.UNKNOWN:
            return
        good = event.outcome is e.ProbeOutcome.OK and event.listener is not e.Listener.FOREIGN
        self._failed_probes = 0 if good else self._failed_probes + 1

    def action(self, action: a.AnyAction, now: float) -> None:
        """An action was decided."""
        match action:
            case a.Announce(facet="lifecycle"):
                self._moved(action, now)
            case a.Spawn():
                self._start(action, now)
            case a.Probe():
                hold(now >= self._probe_until, "never two probes at once")
                self._probe_until = now + action.timeout_s + _PROBE_SLACK_S
            case a.KeepEvidence() | a.KillTree():
                self._ended(now)
            case a.SignalTree() if action.signal == self._settings.stop.signal:
                self._ended(now)
            case _:
                pass

    def _start(self, action: a.Spawn, now: float) -> None:
        hold(self._credit > 0, "no start that nobody asked for: after fatal, after a stop, or beyond the policy")
        hold(len(self._failures) <= self._settings.restart.budget, "no more restarts than the budget allows")
        look = self._last_look
        hold(look is None or look.clean is not False, "never a spawn on devices whose last look found them dirty")
        self.number, self._credit, self._asked, self._spawn_until = action.attempt, 0, 0, now + SPAWN_LIMIT_S
        self._grounds.clear()
        self._failed_probes, self._ready_at, self._probe_until = 0, None, 0.0

    def _moved(self, action: a.Announce, now: float) -> None:
        if action.before != action.after:
            hold((action.before, action.after) in _LEGAL, f"no such transition: {action.before} to {action.after}")
        self._state = action.after
        match action.after:
            case State.RUNNING.value:
                self._ready_at = now
            case State.RECLAIMING.value if action.before in _WITH_ATTEMPT or self._emptied:
                self._attempt_over(now)
            case State.FATAL.value | State.QUARANTINED.value:
                self._credit = self._asked = self._asked if action.after == State.QUARANTINED.value else 0
            case _:
                pass

    def _attempt_over(self, now: float) -> None:
        """The policy may start another one, within its budget."""
        served_s = now - self._ready_at if self._ready_at is not None else 0.0
        if served_s >= self._settings.restart.reset_after_s:
            self._failures.clear()
        self._failures = [at for at in self._failures if now - at < self._settings.restart.window_s]
        if not self._grounds & {"asked", "mate", "refused", "spawn unanswered"}:
            self._failures.append(now)
        if self._down_since is None and not self._paused:
            self._credit = 1

    def _ended(self, now: float) -> None:
        """Somebody's word, a death, a silence or a row of failed probes; never one probe or a blind feed."""
        silent = self._ready_at is None and now - self._last_sign >= LEAST_PATIENCE_S
        if now >= self._spawn_until:
            self._grounds.add("spawn unanswered")
        failing = self._failed_probes >= self._settings.readiness.failure_threshold
        hold(bool(self._grounds) or silent or failing, "no end without a ground")
        hold(not self._paused or bool(self._grounds - {"fatal line", "samples"}), "nothing is ended while it is paused")
        self._grounds.add("decided")

    def daemon_came_back(self, now: float, number: int, state: str, *, lives: bool) -> None:
        """What was asked of the world is asked again; a spawn that was lost is decided again."""
        self.number, self._state, self._probe_until = number, state, 0.0
        if self._spawn_until < math.inf:
            self._grounds.add("asked")
        elif not (self._handed_over and lives):
            self._grounds.add("the daemon died")
        self._handed_over = False
        if self._down_since is None:
            self._credit = 1
            self._asked = self._asked if self._spawn_until == math.inf else 1
        if self._down_since is not None:
            self._down_since = now

    def returns(self) -> None:
        """It was stopped only to be started again, and the daemon died meanwhile: the next one starts it, as asked."""
        self._credit = self._asked = 1
        self._down_since = None
        self._failures.clear()

    def handed_over(self) -> None:
        """Other code takes the daemon's place: that ends nobody."""
        self._handed_over = True

    def recalled(self) -> None:
        """The log is read again: what was written while nobody read it may be a ground."""
        self._grounds.add("fatal line")

    def sat_again(self) -> None:
        """Another core takes the seat: what was asked of the world is asked again."""
        self._probe_until = 0.0

    def excuse(self, now: float) -> None:
        """Nobody answers a kill: then nothing proves that it is over."""
        if self._down_since is not None:
            self._down_since = now

    def record_lost(self) -> None:
        """The next daemon starts it as configured."""
        self._paused, self._last_look = False, None
        self._credit = self._asked = 1
        self._down_since = None
        self._failures.clear()

    def spawned(self, others: list[Tree], rivals: list[Tree]) -> None:
        """A process tree has just been started beside `others` of the same server and `rivals` on its devices."""
        hold(not others, "never two trees for one server")
        hold(not rivals, "never a device held by two servers")

    # --- what holds at any time --------------------------------------------------------------------------------------

    def check(self, server: Server, trees: list[Tree], now: float) -> None:
        """After every step that concerned this server."""
        state, deadline = server.state, server.deadline()
        if state not in RESTING:
            hold(deadline is not None, f"{state} waits without a deadline")
        if state is State.STOPPED:
            hold(not trees, "stopped with a living tree")
            hold(deadline is None, "stopped and still waiting for something")
        if state in RESTING and self._down_since is not None:
            self._down_since = now
        limit_s = (_STOP_LIMIT_S + self._settings.stop.grace_s) * self._patience
        late = self._down_since is not None and now - self._down_since > limit_s
        hold(not late, f"goal down for {limit_s:.0f} s and still {state}")


def check_facts(server: Server, facts: ServerSnapshot) -> None:
    """The facts can be told at any time, and make sense."""
    hold(facts.goal in ("up", "down"), "a goal")
    hold(facts.budget_remaining >= 0, "no negative budget")
    hold(facts.lifecycle.value != State.RUNNING or facts.ready_since is not None, "running since some moment")
    saved = server.save("boot")
    read = msgspec.json.decode(msgspec.json.encode(saved), type=SavedServer)
    hold(read == saved, "a record survives JSON")


def check_json(event: e.AnyEvent, out: list[a.AnyAction]) -> None:
    """Every event and action survives JSON."""
    hold(e.decode(e.encode(event)) == event, f"{type(event).__name__} does not survive JSON")
    hold([a.decode(a.encode(action)) for action in out] == out, "an action does not survive JSON")
