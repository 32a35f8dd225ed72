"""A world in virtual time for one server: it answers actions after a delay, and a test scripts the rest.

Nothing here sleeps. `until(t)` delivers every scripted event, every answer and every tick in order of time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import RESTING, State
from supervisor.core.log.grammar import LogReader
from supervisor.core.server import Server
from supervisor.core.settings import Settings
from supervisor.lines import LineCutter
from supervisor.profile import facts, load_profile
from supervisor.saved import SavedServer
from supervisor.snapshot import ServerSnapshot

Answer = Callable[[Any], "list[tuple[float, e.AnyEvent]]"]

COMMAND = ("python", "-m", "sglang.launch_server", "--model-path", "/m/kimi", "--tp", "2", "--port", "30000")
SETTINGS = Settings(name="kimi", engine="sglang", port=30000, gpus=(0, 1))


class World:
    """One server and everything around it."""

    def __init__(
        self, settings: Settings = SETTINGS, command: tuple[str, ...] = COMMAND, last_attempt: int = 0
    ) -> None:
        self.first_attempt = last_attempt
        self.profile = load_profile("sglang")
        self.facts = facts(self.profile, command)
        self.server = Server(settings, self.profile, self.facts, 0.0, last_attempt)
        self.now = 0.0
        self.did: list[tuple[float, a.AnyAction]] = []
        self.written: list[tuple[float, str]] = []  # the present attempt's log
        self.remembered: list[a.StartRecord] = []
        self.reborn: list[tuple[Any, Any]] = []  # snapshots before and after each death of the daemon
        self.diagnoses: list[tuple[float, Any]] = []
        self.history: list[tuple[float, e.AnyEvent, list[a.AnyAction]]] = []
        self.health = e.ProbeOutcome.REFUSED
        self.listener = e.Listener.OURS
        self.dirty: e.DevicesChecked | None = None
        self.last_check: e.DevicesChecked | None = None
        self.trees: set[int] = set()  # attempts whose processes live
        self.leaders: set[int] = set()
        self.silent: set[type] = set()  # kinds of actions that are never answered
        self.ignores_term = False
        self.requests: int | None = 0  # what the engine's counters say
        self.router_problem = ""
        self.unkillable = False
        self.spawn_error: e.SpawnFailed | None = None
        self._queue: list[tuple[float, int, e.AnyEvent]] = []
        self._order = itertools.count()
        self._cutter, self._reader = LineCutter(), LogReader(self.profile, 1)

    # --- telling the story ---------------------------------------------------------------------------------------

    def tell(self, event: e.AnyEvent) -> list[a.AnyAction]:
        """Deliver an event now."""
        match event:
            case e.Exited():
                self.leaders.discard(event.attempt)
            case e.TreeEmptied():
                self.trees.discard(event.attempt)
            case e.DevicesChecked():
                self.last_check = event
        out = self.server.handle(event, self.now)
        self.history.append((self.now, event, out))
        self.diagnoses.append((self.now, self.server.snapshot().diagnosis))
        self.carry(out)
        self.check()
        return out

    def start(self) -> None:
        self.tell(e.StartRequested("test"))

    def stop(self) -> None:
        self.tell(e.StopRequested("test"))

    def log(self, *texts: str) -> None:
        """The server writes lines into its log."""
        self.written += [(self.now, text) for text in texts]
        lines = self._cutter.feed("".join(f"{text}\n" for text in texts).encode())
        for event in self._reader.read(lines):
            self.tell(event)

    def at(self, when: float, event: e.AnyEvent) -> None:
        """Script an event for later."""
        heapq.heappush(self._queue, (when, next(self._order), event))

    def until(self, end: float) -> None:
        """Let time pass."""
        while True:
            deadline = self.server.deadline()
            due = min(self._queue[0][0] if self._queue else end, deadline if deadline is not None else end)
            if due >= end and due > self.now:
                break
            self.now = max(self.now, due)
            if self.now > end:
                break
            if self._queue and self._queue[0][0] <= self.now:
                self.tell(heapq.heappop(self._queue)[2])
            elif deadline is not None and deadline <= self.now:
                self.tell(e.Ticked())
            else:
                break
        self.now = max(self.now, end)

    def settle(self, limit_s: float = 10_000.0) -> State:
        """Let time pass until the server rests."""
        end = self.now + limit_s
        while self.now < end:
            moments = [m for m in (self.server.deadline(), self._queue[0][0] if self._queue else None) if m is not None]
            if not moments:
                break
            self.until(max(min(moments), self.now) + 1e-6)
        return self.server.state

    def daemon_dies(self, away_s: float = 0.0, *, leader_dies: bool = False, ended: int | None = None) -> None:
        """The daemon is killed and comes back after a while: what it had asked for is lost, processes go on."""
        saved = self.server.save("boot")
        before = self.server.snapshot()
        for _, _, event in list(self._queue):
            if isinstance(event, e.TreeEmptied):  # the kill had been carried out
                self.trees.discard(event.attempt)
                self.leaders.discard(event.attempt)
        self._queue = [entry for entry in self._queue if isinstance(entry[2], e.Exited)]
        if leader_dies:
            self.leaders.clear()
            self._queue.clear()
        self.now += away_s
        # msgspec round trip: what is not written down is lost
        saved = msgspec.json.decode(msgspec.json.encode(saved), type=SavedServer)
        self.server = Server(self.server.settings, self.profile, self.facts, self.now, saved.number, self.remembered)
        self.carry(self.server.restore(saved, self.now, tree_lives=saved.number in self.trees, ended=ended))
        reader, cutter = LogReader(self.profile, saved.number), LineCutter()
        for at, text in self.written:
            for event in reader.read(cutter.feed(f"{text}\n".encode())):
                self.server.recall(event, at)
        self.reborn.append((before, self.server.snapshot()))
        self.check()

    def carry(self, actions: list[a.AnyAction]) -> None:
        for action in actions:
            self.did.append((self.now, action))
            self._answer(action)

    # --- reading the story ---------------------------------------------------------------------------------------

    def done(self, kind: type) -> list[Any]:
        return [action for _, action in self.did if isinstance(action, kind)]

    def when(self, kind: type) -> list[float]:
        return [at for at, action in self.did if isinstance(action, kind)]

    def path(self, facet: str = "lifecycle") -> list[str]:
        """The values that a facet went through."""
        return [action.after for action in self.done(a.Announce) if action.facet == facet]

    @property
    def state(self) -> State:
        return self.server.state

    @property
    def facts_now(self) -> ServerSnapshot:
        return self.server.snapshot()

    # --- the world's answers -------------------------------------------------------------------------------------

    def _answer(self, action: a.AnyAction) -> None:
        if type(action) in self.silent:
            return
        match action:
            case a.Spawn():
                self._spawn(action)
            case a.SignalTree() if not self.ignores_term and action.attempt in self.leaders:
                self.later(0.5, e.Exited(action.attempt, -action.signal))
            case a.KillTree():
                self._kill(action)
            case a.Probe():
                self.later(0.01, e.Probed(action.attempt, self.health, 0, 0.01, self.listener))
            case a.CheckDevices():
                clean = e.DevicesChecked(action.attempt, True, devices=self.server.settings.gpus)
                self.later(0.01, replace(self.dirty, attempt=action.attempt) if self.dirty else clean)
            case a.LeaveRouters():
                self.later(0.02, e.RoutersLeft(action.attempt, self.router_problem))
            case a.CountRequests():
                self.later(0.01, e.RequestsCounted(action.attempt, self.requests, "no page"))
            case a.Remember():
                self.remembered.append(action.record)
            case a.KeepEvidence():
                self.later(0.2, e.EvidenceKept(action.attempt, "/evidence/1"))
            case _:
                pass

    def later(self, delay_s: float, event: e.AnyEvent) -> None:
        self.at(self.now + delay_s, event)

    def _spawn(self, action: a.Spawn) -> None:
        assert not self.trees, "a second tree was started"
        assert self.done(a.CheckDevices)[-1].start, "spawned after a look that asked for nothing but the end"
        if self.spawn_error:
            self.later(0.001, replace(self.spawn_error, attempt=action.attempt))
            return
        assert self.last_check is None or self.last_check.clean is not False, "spawned on dirty devices"
        self.written.clear()
        self.trees.add(action.attempt)
        self.leaders.add(action.attempt)
        self._cutter, self._reader = LineCutter(), LogReader(self.profile, action.attempt)
        self.later(0.001, e.Spawned(action.attempt, 4000 + action.attempt, log_path="/log"))

    def _kill(self, action: a.KillTree) -> None:
        if self.unkillable:
            stuck = e.StuckProcess(4242, "D", "nv_wait")
            self.later(5.0, e.TreeStuck(action.attempt, (stuck,)))
            return
        if action.attempt in self.leaders:
            self.later(0.02, e.Exited(action.attempt, -9))
        self.later(0.03, e.TreeEmptied(action.attempt, 3, 0.03))

    # --- what must always hold -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Invariants after every event."""
        if self.state not in RESTING:
            assert self.server.deadline() is not None, f"{self.state} waits without a deadline"
        if self.state is State.STOPPED:
            assert not self.trees, "stopped with a living tree"
        for _, event, out in self.history[-1:]:
            assert e.decode(e.encode(event)) == event
            assert [a.decode(a.encode(action)) for action in out] == out
