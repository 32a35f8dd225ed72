"""A whole host in virtual time: servers, the device book, a world that fails, and a daemon that dies at any moment.

The cores and books are the product's own; what the shell does between them is done here as it does it: saved before it
is carried out, noted before it is spawned, inherited by the next daemon.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random

import msgspec
from msgspec.structs import replace

from supervisor import actions as a
from supervisor import events as e
from supervisor.config import Config, OnForeign, ServerConfig
from supervisor.config.groups import ties
from supervisor.core.fleet.needs import Admission, Go, Refuse, Wait
from supervisor.core.gpus.book import Claim, DeviceBook, Lease, LeaseRefused
from supervisor.core.lifecycle import ALIVE, WITHOUT_DEVICES, State
from supervisor.core.log.grammar import LogReader
from supervisor.core.memory import started_again
from supervisor.core.rolling import RollState, turn
from supervisor.core.server import Server
from supervisor.devices import GpuBlind, XidSeen
from supervisor.lines import LineCutter
from supervisor.ports import PortUse
from supervisor.profile import facts, load_profile
from supervisor.saved import SavedAttempt, SavedServer
from supervisor.shell.fleet import AGAIN_S
from supervisor.shell.loop import to_be_saved
from supervisor.shell.portbook import PortBook
from supervisor.snapshot import ServerSnapshot
from tests.fleet.host import Host, Tree
from tests.fleet.invariants import SPAWN_LIMIT_S, Bystander, check_facts, check_json, hold
from tests.fleet.overseer import Overseer
from tests.fleet.plans import Plan, plan_host, plans
from tests.fleet.router import Gateway, Keeper
from tests.fleet.shell import BOOT, Shell

PROFILE = load_profile("sglang")
FACTS = facts(PROFILE, ("python", "-m", "sglang.launch_server", "--model-path", "/m/kimi", "--tp", "2"))
_STEPS_AT_ONE_MOMENT = 200  # more than that, and somebody asks for the same moment again and again
_STEPS_A_SECOND = 2000
_KILL_TAKES_S = 0.03
ALL_START_S = 1500.0  # for starts one after another, after backoffs, and after a look that was not answered


@cache
def matched(text: str) -> tuple[e.LineMatched, ...]:
    """What the log reader makes of one line."""
    return tuple(LogReader(PROFILE, 0).read(LineCutter().feed(f"{text}\n".encode())))


class Life(msgspec.Struct):
    """What one server was told during one daemon's life: enough to play it again."""

    born: float
    last: int
    learnt: tuple[a.StartRecord, ...]
    saved: SavedServer | None
    lives: bool
    told: list[tuple[float, e.AnyEvent | tuple[e.LineMatched, float], list[a.AnyAction]]]


class Seat:
    """One server: its plan, its configuration in force, its core, its bystander."""

    def __init__(self, plan: Plan, config: ServerConfig) -> None:
        self.plan = plan
        self.name = plan.name
        self.watch = Bystander(plan.settings)
        self.learnt: list[a.StartRecord] = []
        self.lives: list[Life] = []
        self.config = config
        self.server: Server
        self.seated = False  # by the daemon of the moment
        self.tenure = 0  # grows with every core: what an earlier one has asked for, nobody waits for
        self.facts: dict[str, str] = {"goal": "down", "maintenance": "", "readiness": "unknown"}
        self.waiting_since: float | None = None
        self.silent: set[type[a.Action]] = set()
        self.spawn_errors: list[e.SpawnFailed] = []
        self._snapshot: ServerSnapshot | None = None

    def snapshot(self) -> ServerSnapshot:
        """As of the last event."""
        if self._snapshot is None:
            self._snapshot = self.server.snapshot()
        return self._snapshot

    def changed(self) -> None:
        """An event has been handled."""
        self._snapshot = None

    def sit(self, server: Server) -> None:
        """A core takes the seat."""
        self.server, self.seated, self._snapshot = server, True, None
        self.tenure += 1
        self.waiting_since = None

    def look(self) -> None:
        """What people see of it, as it is taken up."""
        snapshot = self.snapshot()
        self.facts = {"goal": snapshot.goal, "maintenance": "on" if snapshot.maintenance else ""}
        self.facts["readiness"] = snapshot.readiness.value


class Fleet:
    """Everything. `step` does the next thing that is due; a broken invariant raises `BrokenError`."""

    def __init__(self, seed: int, folder: Path) -> None:
        """`folder`: for what the daemon writes to disk by itself."""
        self.chance = Random(seed ^ 0x5EED)
        self.host = Host(self.chance.randint(1, 4))
        self.now = 100.0
        self.blind = False
        self.twice = False
        self._queue: list[tuple[float, int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._life = 0  # which daemon; what a dead one was about to do is never done
        planned = plans(self.chance, self.host.gpus)
        self.file = plan_host([plan.name for plan in planned], self.chance)
        if self.file.routers:
            planned = tuple(plan.with_routers() for plan in planned)
        self.seats = [Seat(plan, self.file.servers[plan.name]) for plan in planned]
        self._by_name = {seat.name: seat for seat in self.seats}
        self._folder = folder
        self._edits = 0
        self.overseer = Overseer(self.file, self.seats, lambda: self.now)
        self.writes = seed  # by which the daemon's disk takes its time
        self.gateway = Gateway()
        self.routed = bool(self.file.routers)
        self.tied = self.file != Config(servers=self.file.servers) or any(
            ties(self.file)[name].before for name in self._by_name
        )
        self.host.ready_after_s = self.chance.choice((None, 5.0, 5.0, 30.0))
        self.recall_s = 0.0  # how long a daemon reads the log of a server that it takes up
        self._die_after: int | None = None
        self._lost: set[str] = set()
        self._written: dict[str, SavedServer] = {}
        self._returning: set[str] = set()  # whom a daemon that has died was about to start again
        self._at_once = 0
        self._second, self._steps = 0.0, 0
        self._daemon_starts()

    # --- time --------------------------------------------------------------------------------------------------------

    def until(self, end: float) -> None:
        """Let time pass."""
        self.turn()
        while self.step(end):
            pass
        self.now = max(self.now, end)

    def step(self, end: float) -> bool:
        """The next thing that is due by `end`. False when there is none."""
        when, seat = self._next_tick()
        queued = self._queue[0][0] if self._queue else None
        if queued is not None and queued <= end and (when is None or queued <= when):
            at, _, life, deed = heapq.heappop(self._queue)
            self._advance(at)
            if life in (0, self._life):
                deed()
            self.turn()
        elif seat is not None and when is not None and when <= end:
            self._advance(when if when > self.now else self.now + 1e-3)
            self.tell(seat, e.Ticked())
            self.turn()
        else:
            return False
        self._count_down()
        return True

    def turn(self) -> None:
        """Everybody in the shell who can go on does."""
        self.shell.loop.turn()
        hold(not self.overseer.broken, self.overseer.broken)

    def _next_tick(self) -> tuple[float | None, Seat | None]:
        best, chosen = None, None
        for seat in self.seats:
            deadline = seat.server.deadline() if seat.seated else None
            if deadline is not None and (best is None or deadline < best):
                best, chosen = deadline, seat
        return best, chosen

    def _advance(self, at: float) -> None:
        self._at_once = self._at_once + 1 if at - self.now < 1e-6 else 0
        hold(self._at_once < _STEPS_AT_ONE_MOMENT, "a moment that has come does not come again and again")
        if at - self._second > 1.0:
            self._second, self._steps = at, 0
        self._steps += 1
        hold(self._steps < _STEPS_A_SECOND, "nobody goes round in circles")
        self.now = max(self.now, at)

    def later(self, delay_s: float, deed: Callable[[], None], *, ours: bool = True) -> None:
        """`ours`: the daemon does it, unless it dies before; else the world does."""
        life = self._life if ours else 0
        heapq.heappush(self._queue, (self.now + delay_s, next(self._order), life, deed))

    def _post(self, delay_s: float, seat: Seat, event: e.AnyEvent) -> None:
        self.later(delay_s, partial(self._tell, seat, seat.tenure, event))

    def _tell(self, seat: Seat, tenure: int, event: e.AnyEvent) -> None:
        """Of what an earlier core has asked for, nobody waits for the answer."""
        if seat.tenure == tenure:
            self.tell(seat, event)

    # --- the daemon's loop -------------------------------------------------------------------------------------------

    def tell(self, seat: Seat, event: e.AnyEvent) -> None:
        """One server's core takes in an event; what it asks for is begun."""
        if not seat.seated:
            return
        seat.watch.event(event, self.now)
        out = seat.server.handle(event, self.now)
        seat.changed()
        seat.lives[-1].told.append((self.now, event, out))
        check_json(event, out)
        if to_be_saved(event, out):
            self._save(seat)
        if a.KillTree in seat.silent:
            seat.watch.excuse(self.now)
        self._perform(seat, out)
        self.overseer.told(seat, event, out)
        seat.watch.check(seat.server, self.host.living(seat.name), self.now)
        if out:
            self.shell.hub.publish()
            check_facts(seat.server, seat.snapshot())

    def _save(self, seat: Seat) -> None:
        saved = self._record(seat)
        if seat.name in self.shell.roster.returning:
            saved = started_again(saved, "the daemon ended before what it was stopped for was done", self.now)
        self.host.disk.saved[seat.name] = msgspec.json.encode(saved)
        self._written[seat.name] = saved

    def _record(self, seat: Seat) -> SavedServer:
        return replace(seat.server.save(BOOT), devices=self._book.leased(seat.name))

    def _perform(self, seat: Seat, actions: list[a.AnyAction]) -> None:
        for action in actions:
            seat.watch.action(action, self.now)
            if isinstance(action, a.Spawn):  # also when nobody answers
                self.later(SPAWN_LIMIT_S * 0.99, partial(self.overseer.tried, seat.name))
            if isinstance(action, a.Announce):
                if action.facet in seat.facts:
                    seat.facts[action.facet] = action.after
                self._announced(seat, action)
            elif type(action) not in seat.silent:
                self._carry(seat, action)

    def _announced(self, seat: Seat, action: a.Announce) -> None:
        if action.facet == "lifecycle" and action.after in WITHOUT_DEVICES:
            self._release(seat.name)
        if action.facet == "lifecycle":
            self.overseer.announced(seat, action)
            self.shell.announced(seat.name, action)

    def _release(self, name: str) -> None:
        self._book.release_lease(name)
        self._ports.release(name)

    def _carry(self, seat: Seat, action: a.AnyAction) -> None:
        match action:
            case a.Spawn():
                self.later(0.0005, partial(self._note, seat, action.attempt))
            case a.SignalTree():
                self._signal(seat, action)
            case a.KillTree():
                self.later(0.001, partial(self._kill, seat, action.attempt))
            case a.Probe():
                self._probe(seat, action)
            case a.CheckDevices():
                if self.tied or not self.shell.open:
                    self.shell.loop.start_soon(self._check, seat, seat.tenure, action, name=f"{seat.name}: check")
                else:
                    self._look(seat, action)
            case a.KeepEvidence():
                self._answer(self.chance.choice((0.2, 9.0)), seat, e.EvidenceKept(action.attempt, "/evidence/1"))
            case a.Remember():
                self.later(0.001, partial(seat.learnt.append, action.record))
            case a.LeaveRouters():
                self.shell.loop.start_soon(self._leave, seat, seat.tenure, action, name=f"{seat.name}: leave")
            case a.CountRequests():
                self._answer(0.1, seat, e.RequestsCounted(action.attempt, self.chance.choice((0, 3, None))))
            case a.AskCanary():
                sane = self.chance.choice(self.host.canaries)
                self._answer(0.3, seat, e.CanaryAnswered(action.attempt, sane))
            case _:
                raise AssertionError(f"an unknown action: {action}")

    def _answer(self, delay_s: float, seat: Seat, event: e.AnyEvent) -> None:
        self._post(delay_s, seat, event)
        if self.twice:
            self._post(delay_s + 0.05, seat, event)

    # --- spawning ----------------------------------------------------------------------------------------------------

    def _note(self, seat: Seat, attempt: int) -> None:
        self.host.disk.notes[seat.name] = e.Spawned(attempt, 0)
        self._spawning[seat.name] = attempt
        if seat.spawn_errors:
            failed = replace(seat.spawn_errors.pop(), attempt=attempt)
            self.later(0.001, partial(self._spawn_fails, seat, failed))
        else:
            takes_s = self.chance.choice((0.001, 0.001, 0.5, 45.0))
            self.later(min(takes_s, self.host.spawn_takes_s), partial(self._spawn, seat, attempt))

    def _spawn_fails(self, seat: Seat, event: e.SpawnFailed) -> None:
        self.host.disk.notes.pop(seat.name, None)
        self._spawning.pop(seat.name)
        self.overseer.tried(seat.name)
        self.tell(seat, event)

    def _spawn(self, seat: Seat, attempt: int) -> None:
        devices = self._book.leased(seat.name)
        rivals = [tree for device in devices for tree in self.host.on_device(device) if tree.server != seat.name]
        seat.watch.spawned(self.host.living(seat.name), rivals)
        tree = Tree(seat.name, attempt, devices, self.now)
        if self.host.ready_after_s is not None:
            self.later(self.host.ready_after_s, partial(tree.answers, e.ProbeOutcome.OK), ours=False)
        if seat.config.command in self.host.broken:
            self.later(2.0, partial(self.leader_ends, tree, 1), ours=False)
        tree.pid = 1000 * (1 + self.seats.index(seat)) + attempt
        self.host.trees.append(tree)
        self.overseer.tried(seat.name)
        self.host.disk.attempts[seat.name] = attempt
        self.later(0.001, partial(self._tell_spawned, seat, tree))

    def _tell_spawned(self, seat: Seat, tree: Tree) -> None:
        event = self.host.disk.notes[seat.name] = e.Spawned(tree.attempt, tree.pid, log_path="/log")
        self._post(0.001, seat, event)
        self._attached[seat.name] = tree
        self._spawning.pop(seat.name)
        if not tree.leader:
            self._post(0.002, seat, e.Exited(tree.attempt, tree.code))

    # --- ending ------------------------------------------------------------------------------------------------------

    def tree(self, seat: Seat) -> Tree | None:
        """The processes of the server."""
        return next(iter(self.host.living(seat.name)), None)

    def hears(self, seat: Seat, tree: Tree) -> bool:
        """Whether the daemon follows this tree: its log, its processes, its exit."""
        return self._attached.get(seat.name) is tree

    def _signal(self, seat: Seat, action: a.SignalTree) -> None:
        tree = self.tree(seat)
        if tree is None or tree.attempt != action.attempt or tree.stuck:
            return
        if action.signal == 9 or not tree.deaf:
            self.later(0.5, partial(self.leader_ends, tree, -action.signal), ours=False)

    def leader_ends(self, tree: Tree, code: int | None, *, whole: bool = True) -> None:
        """The leader exits, mostly with all that it started; the daemon of the moment hears of it."""
        if not tree.leader or tree.stuck:
            return
        tree.leader, tree.code = False, code
        if whole:
            self.host.bury(tree, self.now)
        seat = self._by_name[tree.server]
        if self.hears(seat, tree):
            self._post(0.001, seat, e.Exited(tree.attempt, code))

    def _kill(self, seat: Seat, attempt: int) -> None:
        tree = self._attached.get(seat.name)
        if self._spawning.get(seat.name) == attempt:
            return  # what comes of it is told, and killed then
        if tree is None or tree.attempt != attempt:
            self._answer(0.001, seat, e.TreeEmptied(attempt))
            return
        if tree.stuck:
            stuck = e.StuckProcess(tree.pid, "D", "nv_wait")
            self._answer(20.0, seat, e.TreeStuck(attempt, (stuck,)))
            return
        self.leader_ends(tree, -9)
        self.host.bury(tree, self.now)
        self.later(_KILL_TAKES_S, partial(self._emptied, seat, attempt))

    def _emptied(self, seat: Seat, attempt: int) -> None:
        self._attached.pop(seat.name, None)
        self.host.disk.notes.pop(seat.name, None)
        self._answer(0.0, seat, e.TreeEmptied(attempt, 3, _KILL_TAKES_S))

    # --- looking -----------------------------------------------------------------------------------------------------

    def _probe(self, seat: Seat, action: a.Probe) -> None:
        tree = self.tree(seat)
        outcome = tree.health if tree is not None and tree.leader else e.ProbeOutcome.REFUSED
        delay_s = action.timeout_s if outcome is e.ProbeOutcome.TIMEOUT else 0.01
        self._answer(delay_s, seat, e.Probed(action.attempt, outcome, 0, 0.01, e.Listener.OURS))

    async def _leave(self, seat: Seat, tenure: int, action: a.LeaveRouters) -> None:
        if self.routed:
            problem = await self._keeper.leave(seat.name, action.limit_s)
        else:
            problem = ""
            await self.shell.pause(0.1)
        if seat.tenure == tenure:
            self._answer(0.0, seat, e.RoutersLeft(action.attempt, problem))

    def _look(self, seat: Seat, action: a.CheckDevices) -> None:
        """On a host whose servers have nothing to do with each other nobody waits for his turn, once all are there."""
        if seat.waiting_since is None:
            seat.waiting_since = self.now
        if seat.plan.gpus.size:
            self.later(0.01, self.sample)
            self.later(0.15, self.sample)
        self.later(0.16, partial(self._looks, seat, seat.tenure, action))

    def _looks(self, seat: Seat, tenure: int, action: a.CheckDevices) -> None:
        if seat.tenure == tenure:
            self._answer(0.0, seat, self._looked(seat, action))

    async def _check(self, seat: Seat, tenure: int, action: a.CheckDevices) -> None:
        """As `shell.premises.Premises.look` does it."""
        found = await self._premises(seat, action)
        if self.shell.alive and seat.tenure == tenure:
            self._answer(0.0, seat, found)

    async def _premises(self, seat: Seat, action: a.CheckDevices) -> e.DevicesChecked:
        fleet = self.shell.keeper
        if action.start and (turn := await self._turn_of(seat, action.attempt, await fleet.admitted(seat.name))):
            seat.waiting_since = None
            return turn
        await self._samples(seat)
        found = self._looked(seat, action)
        if not action.start:
            return found
        turn = await self._turn_of(seat, action.attempt, fleet.looked(seat.name, free=found.clean is not False))
        return turn or found

    async def _turn_of(self, seat: Seat, attempt: int, answer: Admission) -> e.DevicesChecked | None:
        match answer:
            case Go():
                return None
            case Refuse(reason):
                return e.DevicesChecked(attempt, False, reason, refuse=True)
            case Wait(reason):
                if self._book.leased(seat.name):
                    await self._samples(seat)
                free = self._found(seat, a.CheckDevices(attempt, start=False)).clean is not False
                if free and self.shell.alive and self.shell.keeper.claims(seat.name):
                    self._release(seat.name)
                return e.DevicesChecked(attempt, False, reason, waiting=True, again_s=AGAIN_S)

    async def _samples(self, seat: Seat) -> None:
        """The feed's: the second one is surely younger than the wait."""
        if seat.waiting_since is None:
            seat.waiting_since = self.now
        if not seat.plan.gpus.size:
            return
        self.later(0.01, self.sample)
        self.later(0.15, self.sample)
        await self.shell.pause(0.16)

    def sample(self) -> None:
        """The feed reports."""
        if self.blind:
            self._book.observe(GpuBlind(self.now, "no answer"), (), self.now)
            return
        sample, owners = self.host.sample(self.now)
        news = self._book.observe(sample, owners, self.now)
        if news or self._baselines() != self._known:
            self._known = self._baselines()
            self._store_devices()

    def _baselines(self) -> frozenset[str]:
        return frozenset(record.uuid for record in self._book.records() if record.baseline is not None)

    def xid(self, device: int, code: int) -> None:
        """The driver reports a fault."""
        if self._book.observe(XidSeen(self.now, device % self.host.gpus, code), (), self.now):
            self._store_devices()

    def release_gpu(self, device: int) -> None:
        """Somebody puts a device back into use."""
        if self._book.release(device % self.host.gpus):
            self._store_devices()

    def _store_devices(self) -> None:
        self.host.disk.devices = msgspec.json.encode(self._book.records())

    def _looked(self, seat: Seat, action: a.CheckDevices) -> e.DevicesChecked:
        found = self._found(seat, action)
        if found.clean is not False and action.start:
            held = self._ports.claim(seat.name, (PortUse(seat.plan.settings.port, "requests"),))
            if held:
                if self.shell.keeper.claims(seat.name):
                    self._book.release_lease(seat.name)
                found = e.DevicesChecked(action.attempt, False, "; ".join(held), ports=tuple(held))
        if found.clean is not False:
            seat.waiting_since = None
        return found

    def _found(self, seat: Seat, action: a.CheckDevices) -> e.DevicesChecked:
        if not seat.plan.gpus.size:
            return e.DevicesChecked(action.attempt, True)
        lease = self._book.lease(seat.name, seat.plan.gpus) if action.start else None
        if isinstance(lease, LeaseRefused):
            waiting = not (lease.quarantined or lease.refuse)
            return e.DevicesChecked(
                action.attempt, False, lease.reason, quarantined=lease.quarantined, waiting=waiting, refuse=lease.refuse
            )
        devices = lease.devices if isinstance(lease, Lease) else self._book.leased(seat.name)
        after, foreign = seat.waiting_since or 0.0, seat.plan.on_foreign
        claim = Claim(seat.name, devices, on_foreign=foreign, after=after, rest=not action.start)
        if not devices:
            return e.DevicesChecked(action.attempt, True)
        finding, records = self._book.check(claim, self.now)
        if records:
            self._store_devices()
        for culprit in finding.kill:
            self._strike(culprit.pid, foreign)
        return finding.event(action.attempt)

    def _strike(self, pid: int, foreign: OnForeign) -> None:
        for tree in self.host.trees:
            if tree.pid == pid and not tree.stuck:
                self.host.bury(tree, self.now)
        if foreign is OnForeign.KILL_SAME_USER:
            self.host.strangers -= {pid - 800_000}

    # --- the daemon's death and return -------------------------------------------------------------------------------

    def daemon_dies_after(self, steps: int) -> None:
        """At any moment: between two of the next things that happen."""
        self._die_after = steps if self._die_after is None else self._die_after

    def lose(self, what: str) -> None:
        """A file of the state directory will be gone when the next daemon looks."""
        self._lost.add(what)

    def _count_down(self) -> None:
        if self._die_after is None:
            return
        if self._die_after <= 0:
            self._die_after = None
            self._daemon_dies()
        else:
            self._die_after -= 1

    def _daemon_dies(self, away_s: float | None = None) -> None:
        self._returning |= set(self.shell.roster.returning)  # the next one may die before it has taken them up
        self.shell.end()
        self._life += 1
        self._attached = {}
        for seat in self.seats:
            seat.seated = False
        self._queue = [entry for entry in self._queue if entry[2] == 0]
        heapq.heapify(self._queue)
        away_until = self.now + (self.chance.choice((0.0, 1.0, 40.0)) if away_s is None else away_s)
        while self._queue and self._queue[0][0] <= away_until:
            at, _, _, deed = heapq.heappop(self._queue)
            self.now = max(self.now, at)
            deed()
        self.now = max(self.now, away_until)
        if away_s is None and self.host.trees and self.chance.random() < 0.3:  # nobody watches
            self.leader_ends(self.chance.choice(self.host.trees), 1)
        self._daemon_starts()

    def hand_over(self) -> None:
        """The daemon executes other code: everything is written down as it is, and comes back a moment later."""
        for seat in self.seats:
            self._save(seat)
            seat.watch.handed_over()
        self.later(0.0, partial(self._daemon_dies, 0.2))

    def _daemon_starts(self) -> None:
        self._life += 1
        self._attached: dict[str, Tree] = {}
        self._spawning: dict[str, int] = {}
        self._known: frozenset[str] = frozenset()
        self._book = DeviceBook(now=self.now)
        self._ports = PortBook()
        self._forget_lost()
        self._book.restore(self.host.disk.records())
        for seat in self.seats:
            seat.config = self.file.servers[seat.name]
        inherited = {seat.name: self._inherit(seat) for seat in self.seats}
        adopted, self._attached = self._attached, {}
        for tree in list(self.host.trees):  # of which there is no note
            if adopted.get(tree.server) is not tree:
                self._end_leftover(tree)
        self.recall_s = self.chance.choice((0.0, 0.0, 0.05, 2.0))
        self.shell = Shell(self, self.file, self._folder)
        if self.routed:
            self._keeper = Keeper(self.gateway, self.shell.roster.snapshots, self.shell.hub.publish)
            self.shell.loop.start_soon(self._keeper.run, self.shell.hub.changed, name="router")
        self.overseer.daemon_came_back(self.recall_s * len(self.seats))
        self.shell.begin(lambda seat: self._sit(seat, inherited[seat.name], adopted.get(seat.name)))

    def edit_file(self, names: Sequence[str], *, good: bool) -> None:
        """Somebody writes new commands for these servers into the file; one that is not good ends at once."""
        self._edits += 1
        servers = dict(self.file.servers)
        for name in names:
            servers[name] = replace(servers[name], command=(name, str(self._edits)))
            if not good:
                self.host.broken.add(servers[name].command)
        self.file = self.shell.changes.file = replace(self.file, servers=servers)

    def missing(self, name: str) -> str:
        """Which routers do not have the server."""
        return self._keeper.missing(name) if self.routed else ""

    def seat(self, name: str) -> Seat:
        """One server's."""
        return self._by_name[name]

    def _forget_lost(self) -> None:
        for what in self._lost:
            kind, _, server = what.partition(" ")
            if kind == "record" and self.host.disk.saved.pop(server, None) is not None:
                self._by_name[server].watch.record_lost()
            if kind == "note":
                self.host.disk.notes.pop(server, None)
            if kind == "devices":
                self.host.disk.devices = b"[]"
        self._lost.clear()

    def _end_leftover(self, tree: Tree) -> None:
        """One that cannot be killed keeps the daemon from starting until the kernel lets go."""
        self.host.bury(tree, self.now)
        self.now += _KILL_TAKES_S

    def _inherit(self, seat: Seat) -> SavedServer | None:
        """As `shell.adoption.inherit` does it."""
        saved, note = self.host.disk.read(seat.name), self.host.disk.notes.get(seat.name)
        hold(saved is None or saved == self._written[seat.name], "a record does not survive JSON")
        if note is None:
            return saved
        trees = [tree for tree in self.host.living(seat.name) if tree.attempt == note.attempt]
        if not note.pid or not trees:
            for tree in trees:
                self._end_leftover(tree)
            self.host.disk.notes.pop(seat.name)
            return saved
        tree = self._attached[seat.name] = trees[0]
        if saved is None or saved.number != note.attempt:
            attempt = SavedAttempt(note.attempt, tree.born, note.pid, note.log_path)
            why = "found running"
            saved = SavedServer(seat.name, BOOT, True, "starting", tree.born, why, note.attempt)
            saved = replace(saved, tree_alive=True, attempt=attempt, devices=tree.devices)
        if saved.attempt is not None and saved.attempt.pid is None:
            known = replace(saved.attempt, pid=note.pid, log_path=note.log_path)
            saved = replace(saved, tree_alive=True, attempt=known)
        return saved

    def _sit(self, seat: Seat, saved: SavedServer | None, tree: Tree | None) -> bool:
        """One is taken up; False when nothing is left of it."""
        number, state = (saved.number, saved.state) if saved is not None else (0, State.STOPPED.value)
        last = self.host.disk.attempts.get(seat.name, 0)
        lives = tree is not None and tree.leader
        if saved is not None and saved.goal_up and seat.name in self._returning:
            self._returning.discard(seat.name)
            seat.watch.returns()
        seat.watch.daemon_came_back(self.now, max(last, number), state, lives=lives)
        if tree is not None:
            self._attached[seat.name] = tree
        self._sit_down(seat, saved)
        return saved is not None

    def sit_again(self, config: ServerConfig) -> None:
        """Another configuration for the same processes: a new core, from the record of the old one."""
        seat = self._by_name[config.name]
        saved = msgspec.json.decode(msgspec.json.encode(self._record(seat)), type=SavedServer)
        seat.config = config
        seat.watch.sat_again()
        self.shell.config = replace(self.shell.config, servers=self.shell.roster.configs())
        self._sit_down(seat, saved)

    def _sit_down(self, seat: Seat, saved: SavedServer | None) -> None:
        last, learnt = self.host.disk.attempts.get(seat.name, 0), tuple(seat.learnt)
        tree = self._attached.get(seat.name)
        seat.sit(Server(seat.plan.settings, PROFILE, FACTS, self.now, last, learnt))
        life = Life(self.now, last, learnt, saved, tree is not None, [])
        seat.lives.append(life)
        actions: list[a.AnyAction] = []
        if saved is not None:
            if saved.devices and saved.state not in WITHOUT_DEVICES:
                self._book.adopt(Lease(seat.name, saved.devices))
            actions = seat.server.restore(saved, self.now, tree_lives=tree is not None)
            if tree is not None:
                self._take(seat, tree, life)
        seat.changed()
        seat.look()
        self.overseer.look_at(seat)
        self._perform(seat, actions)
        seat.watch.check(seat.server, self.host.living(seat.name), self.now)

    def _take(self, seat: Seat, tree: Tree, life: Life) -> None:
        self._ports.claim(seat.name, (PortUse(seat.plan.settings.port, "requests"),))
        if tree.written:
            seat.watch.recalled()
        for at, text in tree.written:
            for event in matched(text):
                recalled = replace(event, attempt=tree.attempt)
                seat.server.recall(recalled, at)
                life.told.append((self.now, (recalled, at), []))
        if not tree.leader:
            self._post(0.001, seat, e.Exited(tree.attempt, tree.code))

    def last_words(self, count: int = 25) -> str:
        """What the servers were told last, and what they asked for."""
        told = [
            (at, f"{at:.4f} {seat.name} {event} -> {out}")
            for seat in self.seats
            for life in seat.lives
            for at, event, out in life.told
        ]
        texts = [text[:300] for _, text in sorted(told)]
        return "\n".join(texts[-count:])

    # --- the end of a history ----------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everything that ails the host passes."""
        self.blind = self.twice = False
        self._die_after = None
        self.gateway.reachable = True
        self.host.strangers.clear()
        self.host.broken.clear()
        self.host.leftover_s = 0.3
        self.host.ready_after_s = 5.0
        self.host.spawn_takes_s = 0.5
        self.host.canaries = (True,)
        self.host.crumbs = {}
        for tree in self.host.trees:
            tree.stuck = tree.deaf = False
            tree.health = e.ProbeOutcome.OK
        for seat in self.seats:
            seat.silent.clear()
            seat.spawn_errors.clear()

    def all_start(self) -> None:
        """Whoever should run and can run is healthy, once all that ails the host has passed."""
        self.heal()
        self.until(self.now + 50.0)
        for seat in self.seats:
            self.tell(seat, e.ResumeRequested("test"))
        self._release_all()
        self.shell.request_group(tuple(seat.name for seat in self.seats), e.StartRequested("test"))
        self.turn()
        end = self.now + ALL_START_S
        while self.now < end and not (all(map(self._stands, self.seats)) and self._rolled()):
            self.until(self.now + 50.0)
            if self.now < end - ALL_START_S / 2:
                self._look_why()
        hold(self._rolled(), "a rolling ends, or says what the start of whoever has his turn waits for")
        self._cancel_what_waits()
        for seat in self.seats:
            why = seat.snapshot().lifecycle.reason
            hold(self._stands(seat), f"{seat.name} should run and is {seat.server.state}: {why}")

    def _look_why(self) -> None:
        """As people do: what was put aside, or given up, before all that ailed it had passed is asked for again."""
        self._release_all()
        for seat in self.seats:
            if seat.server.state in (State.FATAL, State.QUARANTINED):
                self.shell.request(seat.name, e.StartRequested("test"))

    def _release_all(self) -> None:
        for device in range(self.host.gpus):
            self.release_gpu(device)

    def _rolled(self) -> bool:
        """A rolling waits for whoever has his turn, as long as others have his devices or port, and says so."""
        roll = self.shell.rolling.last
        member = turn(roll) if roll is not None else None
        if member is None:
            return True
        seat = self._by_name[member.name]
        return bool(member.waits) and not seat.snapshot().healthy and self._stands(seat)

    def _cancel_what_waits(self) -> None:
        """At once: not a moment passes."""
        self.shell.cancel()
        self.turn()
        roll = self.shell.rolling.last
        hold(roll is None or roll.state is not RollState.RUNNING, "a rolling that waits ends when it is cancelled")

    def _stands(self, seat: Seat) -> bool:
        """Healthy; or others that are have its devices or its port; or one that it needs is excused like that."""
        if seat.snapshot().healthy:
            return True
        before = self.overseer.ties[seat.name].before
        needed = [one for one in self.seats if one.name in before and not one.snapshot().healthy]
        return self._taken(seat) or any(self._stands(one) for one in needed)

    def _taken(self, seat: Seat) -> bool:
        others = [one for one in self.seats if one is not seat and one.server.state in ALIVE]
        ports = {one.plan.settings.port for one in others}
        held = {device for one in others for device in self._book.leased(one.name)}
        gpus = seat.plan.gpus
        free = self.host.gpus - len(held)
        return seat.plan.settings.port in ports or bool(held & set(gpus.indices)) or free < gpus.size

    def come_to_rest(self) -> None:
        """Stop all, let everything pass: every server is stopped, nothing lives, nothing is leased."""
        self.heal()
        self.until(self.now + 50.0)
        for _ in range(3):  # whoever is quarantined looks again when he is asked again, as people do
            self._release_all()
            self.shell.loop.start_soon(self.shell.ends.stop_all, "test", name="stop all")
            self.turn()
            self.until(self.now + 500.0)
            if all(seat.server.state is State.STOPPED for seat in self.seats):
                break
        for seat in self.seats:
            hold(seat.server.state is State.STOPPED, f"{seat.name} ends {seat.server.state}, which is not stopped")
            hold(not self._book.leased(seat.name), f"{seat.name} is stopped and has devices")
        hold(not self.host.trees, "all are stopped and a process lives")

    def replay(self) -> None:
        """The same events at the same times give the same actions."""
        for seat in self.seats:
            for life in seat.lives:
                again = Server(seat.plan.settings, PROFILE, FACTS, life.born, life.last, life.learnt)
                if life.saved is not None:
                    again.restore(life.saved, life.born, tree_lives=life.lives)
                for at, event, out in life.told:
                    if isinstance(event, tuple):
                        again.recall(*event)
                    else:
                        hold(again.handle(e.decode(e.encode(event)), at) == out, f"a replay of {seat.name} differs")
