"""A whole host in virtual time: servers, the device book, a world that fails, and a daemon that dies at any moment.

The cores and books are the product's own; what the shell does between them is done here as it does it: saved before it
is carried out, noted before it is spawned, inherited by the next daemon.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from functools import cache, partial
from random import Random

import msgspec
from msgspec.structs import replace

from supervisor import actions as a
from supervisor import events as e
from supervisor.config import OnForeign
from supervisor.core.gpus.book import Claim, DeviceBook, Lease, LeaseRefused
from supervisor.core.lifecycle import WITHOUT_DEVICES, State
from supervisor.core.log.grammar import LogReader
from supervisor.core.server import Server
from supervisor.devices import GpuBlind, XidSeen
from supervisor.lines import LineCutter
from supervisor.ports import PortUse
from supervisor.profile import facts, load_profile
from supervisor.saved import SavedAttempt, SavedServer
from supervisor.shell.loop import to_be_saved
from supervisor.shell.portbook import PortBook
from tests.fleet.host import Host, Tree
from tests.fleet.invariants import Bystander, check_facts, check_json, hold
from tests.fleet.plans import Plan, plans

PROFILE = load_profile("sglang")
FACTS = facts(PROFILE, ("python", "-m", "sglang.launch_server", "--model-path", "/m/kimi", "--tp", "2"))
BOOT = "boot"
_STEPS_AT_ONE_MOMENT = 200  # more than that, and somebody asks for the same moment again and again
_KILL_TAKES_S = 0.03


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
    """One server: its plan, its core, its bystander."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.name = plan.name
        self.watch = Bystander(plan.settings)
        self.learnt: list[a.StartRecord] = []
        self.lives: list[Life] = []
        self.server: Server
        self.waiting_since: float | None = None
        self.silent: set[type[a.Action]] = set()
        self.spawn_errors: list[e.SpawnFailed] = []


class Fleet:
    """Everything. `step` does the next thing that is due; a broken invariant raises `BrokenError`."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed ^ 0x5EED)
        self.host = Host(self.chance.randint(1, 4))
        self.now = 100.0
        self.blind = False
        self.twice = False
        self._queue: list[tuple[float, int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._life = 0  # which daemon; what a dead one was about to do is never done
        self.seats = [Seat(plan) for plan in plans(self.chance, self.host.gpus)]
        self._by_name = {seat.name: seat for seat in self.seats}
        self._die_after: int | None = None
        self._lost: set[str] = set()
        self._written: dict[str, SavedServer] = {}
        self._at_once = 0
        self._daemon_starts()

    # --- time --------------------------------------------------------------------------------------------------------

    def until(self, end: float) -> None:
        """Let time pass."""
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
        elif seat is not None and when is not None and when <= end:
            self._advance(when if when > self.now else self.now + 1e-3)
            self.tell(seat, e.Ticked())
        else:
            return False
        self._count_down()
        return True

    def _next_tick(self) -> tuple[float | None, Seat | None]:
        best, chosen = None, None
        for seat in self.seats:
            deadline = seat.server.deadline()
            if deadline is not None and (best is None or deadline < best):
                best, chosen = deadline, seat
        return best, chosen

    def _advance(self, at: float) -> None:
        self._at_once = self._at_once + 1 if at - self.now < 1e-6 else 0
        hold(self._at_once < _STEPS_AT_ONE_MOMENT, "a moment that has come does not come again and again")
        self.now = max(self.now, at)

    def _later(self, delay_s: float, deed: Callable[[], None], *, ours: bool = True) -> None:
        """`ours`: the daemon does it, unless it dies before; else the world does."""
        life = self._life if ours else 0
        heapq.heappush(self._queue, (self.now + delay_s, next(self._order), life, deed))

    def _post(self, delay_s: float, seat: Seat, event: e.AnyEvent) -> None:
        self._later(delay_s, partial(self.tell, seat, event))

    # --- the daemon's loop -------------------------------------------------------------------------------------------

    def tell(self, seat: Seat, event: e.AnyEvent) -> None:
        """One server's core takes in an event; what it asks for is begun."""
        seat.watch.event(event, self.now)
        out = seat.server.handle(event, self.now)
        seat.lives[-1].told.append((self.now, event, out))
        check_json(event, out)
        if to_be_saved(event, out):
            self._save(seat)
        if a.KillTree in seat.silent:
            seat.watch.excuse(self.now)
        self._perform(seat, out)
        seat.watch.check(seat.server, self.host.living(seat.name), self.now)
        if out:
            check_facts(seat.server)

    def _save(self, seat: Seat) -> None:
        saved = replace(seat.server.save(BOOT), devices=self._book.leased(seat.name))
        self.host.disk.saved[seat.name] = msgspec.json.encode(saved)
        self._written[seat.name] = saved

    def _perform(self, seat: Seat, actions: list[a.AnyAction]) -> None:
        for action in actions:
            seat.watch.action(action, self.now)
            if isinstance(action, a.Announce):
                self._announced(seat, action)
            elif type(action) not in seat.silent:
                self._carry(seat, action)

    def _announced(self, seat: Seat, action: a.Announce) -> None:
        if action.facet == "lifecycle" and action.after in WITHOUT_DEVICES:
            self._book.release_lease(seat.name)
            self._ports.release(seat.name)

    def _carry(self, seat: Seat, action: a.AnyAction) -> None:
        match action:
            case a.Spawn():
                self._later(0.0005, partial(self._note, seat, action.attempt))
            case a.SignalTree():
                self._signal(seat, action)
            case a.KillTree():
                self._later(0.001, partial(self._kill, seat, action.attempt))
            case a.Probe():
                self._probe(seat, action)
            case a.CheckDevices():
                self._look(seat, action)
            case a.KeepEvidence():
                self._answer(self.chance.choice((0.2, 9.0)), seat, e.EvidenceKept(action.attempt, "/evidence/1"))
            case a.Remember():
                self._later(0.001, partial(seat.learnt.append, action.record))
            case a.LeaveRouters():
                self._answer(0.1, seat, e.RoutersLeft(action.attempt))
            case a.CountRequests():
                self._answer(0.1, seat, e.RequestsCounted(action.attempt, self.chance.choice((0, 3, None))))
            case a.AskCanary():
                sane = self.chance.choice((True, True, False, None))
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
            self._later(0.001, partial(self._spawn_fails, seat, failed))
        else:
            self._later(self.chance.choice((0.001, 0.001, 0.5, 45.0)), partial(self._spawn, seat, attempt))

    def _spawn_fails(self, seat: Seat, event: e.SpawnFailed) -> None:
        self.host.disk.notes.pop(seat.name, None)
        self._spawning.pop(seat.name)
        self.tell(seat, event)

    def _spawn(self, seat: Seat, attempt: int) -> None:
        devices = self._book.leased(seat.name)
        rivals = [tree for device in devices for tree in self.host.on_device(device) if tree.server != seat.name]
        seat.watch.spawned(self.host.living(seat.name), rivals)
        tree = Tree(seat.name, attempt, devices, self.now)
        tree.pid = 1000 * (1 + self.seats.index(seat)) + attempt
        self.host.trees.append(tree)
        self.host.disk.attempts[seat.name] = attempt
        self._later(0.001, partial(self._tell_spawned, seat, tree))

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
            self._later(0.5, partial(self.leader_ends, tree, -action.signal), ours=False)

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
        self._later(_KILL_TAKES_S, partial(self._emptied, seat, attempt))

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

    def _look(self, seat: Seat, action: a.CheckDevices) -> None:
        if seat.waiting_since is None:
            seat.waiting_since = self.now
        self._later(0.01, self.sample)
        self._later(0.15, self.sample)
        self._later(0.16, partial(self._looked, seat, action))

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

    def _looked(self, seat: Seat, action: a.CheckDevices) -> None:
        found = self._found(seat, action)
        if found.clean is not False and action.start:
            held = self._ports.claim(seat.name, (PortUse(seat.plan.settings.port, "requests"),))
            found = replace(found, clean=False, reason="; ".join(held), ports=tuple(held)) if held else found
        if found.clean is not False:
            seat.waiting_since = None
        self._answer(0.0, seat, found)

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

    def _daemon_dies(self) -> None:
        self._life += 1
        self._queue = [entry for entry in self._queue if entry[2] == 0]
        heapq.heapify(self._queue)
        away_until = self.now + self.chance.choice((0.0, 1.0, 40.0))
        while self._queue and self._queue[0][0] <= away_until:
            at, _, _, deed = heapq.heappop(self._queue)
            self.now = max(self.now, at)
            self._attached = {}
            deed()
        self.now = max(self.now, away_until)
        self._daemon_starts()

    def _daemon_starts(self) -> None:
        self._life += 1
        self._attached: dict[str, Tree] = {}
        self._spawning: dict[str, int] = {}
        self._known: frozenset[str] = frozenset()
        self._book = DeviceBook(now=self.now)
        self._ports = PortBook()
        self._forget_lost()
        self._book.restore(self.host.disk.records())
        inherited = {seat.name: self._inherit(seat) for seat in self.seats}
        for tree in list(self.host.trees):  # of which there is no note
            if self._attached.get(tree.server) is not tree:
                self._end_leftover(tree)
        for seat in self.seats:
            self._sit(seat, inherited[seat.name])
        for seat in self.seats:
            if inherited[seat.name] is None:
                self.tell(seat, e.StartRequested("autostart"))

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

    def _sit(self, seat: Seat, saved: SavedServer | None) -> None:
        last, learnt = self.host.disk.attempts.get(seat.name, 0), tuple(seat.learnt)
        seat.server = Server(seat.plan.settings, PROFILE, FACTS, self.now, last, learnt)
        seat.waiting_since = None
        tree = self._attached.get(seat.name)
        life = Life(self.now, last, learnt, saved, tree is not None, [])
        seat.lives.append(life)
        number, state = (saved.number, saved.state) if saved is not None else (0, State.STOPPED.value)
        seat.watch.daemon_came_back(self.now, max(last, number), state)
        if saved is None:
            return
        if saved.devices and saved.state not in WITHOUT_DEVICES:
            self._book.adopt(Lease(seat.name, saved.devices))
        actions = seat.server.restore(saved, self.now, tree_lives=tree is not None)
        if tree is not None:
            self._take(seat, tree, life)
        self._perform(seat, actions)
        seat.watch.check(seat.server, self.host.living(seat.name), self.now)

    def _take(self, seat: Seat, tree: Tree, life: Life) -> None:
        self._ports.claim(seat.name, (PortUse(seat.plan.settings.port, "requests"),))
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
        self.host.strangers.clear()
        self.host.leftover_s = 0.3
        self.host.crumbs = {}
        for tree in self.host.trees:
            tree.stuck = tree.deaf = False
        for seat in self.seats:
            seat.silent.clear()
            seat.spawn_errors.clear()

    def come_to_rest(self) -> None:
        """Stop all, let everything pass: every server is stopped, nothing lives, nothing is leased."""
        self.heal()
        self.until(self.now + 50.0)
        for _ in range(3):  # whoever is quarantined looks again when he is asked again, as people do
            for device in range(self.host.gpus):
                self.release_gpu(device)
            for seat in self.seats:
                self.tell(seat, e.StopRequested("test"))
            self.until(self.now + 500.0)
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
