"""The daemon as a whole: what it is made of, how it begins, which signals it heeds, and its orderly end."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup

from supervisor import __version__
from supervisor.actions import Announce
from supervisor.api import serve
from supervisor.config import CgroupUse, Config, ServerConfig
from supervisor.core.fleet.ends import by_need
from supervisor.core.lifecycle import WITHOUT_DEVICES, State
from supervisor.core.traffic import HostTraffic
from supervisor.edge.cgroup import find_cgroup_root
from supervisor.edge.fdstore import DescriptorStore, left_behind
from supervisor.edge.journal import Journal
from supervisor.edge.notify import Notifier
from supervisor.edge.probe import Prober
from supervisor.edge.process import Household, become_subreaper, ignore_orphan_signals, kernel_tells, protect_from_oom
from supervisor.edge.process.owner import server_of
from supervisor.edge.statelock import StateLockProblem, state_lock
from supervisor.edge.tail import watcher
from supervisor.edge.webhook import Messenger
from supervisor.events import SignalRequested, StopRequested
from supervisor.shell import clock
from supervisor.shell.adoption import Inheritance, LeftoverProblem, inherit
from supervisor.shell.answers import Answers, Parts
from supervisor.shell.archive import Archivist
from supervisor.shell.changes import Changes
from supervisor.shell.devices import Devices
from supervisor.shell.endings import leaves_servers
from supervisor.shell.ends import Ends
from supervisor.shell.eventlog import EventLog
from supervisor.shell.fleet import FleetKeeper
from supervisor.shell.guard import guarded, log_bug
from supervisor.shell.history import HistoryStore
from supervisor.shell.hooks import Hooks
from supervisor.shell.host import Host
from supervisor.shell.hostnews import HostNews
from supervisor.shell.hub import Hub
from supervisor.shell.pulse import PulseKeeper
from supervisor.shell.reload import reload
from supervisor.shell.rolling import Rolling, Site
from supervisor.shell.roster import ChangeProblem, Roster, rests
from supervisor.shell.routing import Routing
from supervisor.shell.service import Service
from supervisor.shell.socketfile import SocketFile
from supervisor.shell.sockets import ListenProblem, bindings, explained
from supervisor.shell.states import StateStore
from supervisor.shell.trees import TreeStore, boot_id
from supervisor.shell.upgrade.books import Upgrades
from supervisor.shell.upgrade.handover import Handover
from supervisor.shell.views import Views
from supervisor.shell.writer import THREADS, StateWriter
from supervisor.snapshot import RouterView, ServerSnapshot

log = structlog.get_logger()

STATE_WRITTEN = "all that the next daemon must know is on disk again"
_SETTLE_LIMIT_S = 15.0  # for a spawn, or evidence, that an upgrade would break off
_COUNTED = ("lifecycle", "goal", "readiness", "verdict")  # facets whose changes begin or end what the tally counts


class StartupProblem(Exception):  # noqa: N818 - a fact for the operator, not a bug
    """The daemon cannot start; the text is the one line that says why."""


class Daemon:
    """Owns all servers of one configuration. `run` lasts as long as the daemon."""

    def __init__(
        self,
        config: Config,
        config_path: str = "",
        *,
        autostart: bool = True,
        upgrades: Upgrades | None = None,
        record_exits: bool | None = None,
    ) -> None:
        """`record_exits` None: where the kernel tells an exit status to the parent alone."""
        self._config = config
        self._config_path = config_path
        self._autostart = autostart
        self._started = clock.now()
        self._hub = Hub()
        self._record_exits = record_exits
        self._upgrades = upgrades or Upgrades()
        self._left = self._upgrades.received
        self._events = EventLog(self._started, self._left.events if self._left is not None else ())
        self._writer = StateWriter(self._tell_state, threads=THREADS)
        self._ending = anyio.Event()
        self._notifier = Notifier(os.environ)
        self._leaving = False  # the servers go on without us: the next daemon adopts them
        self._trees = TreeStore(Path(config.daemon.state_dir) / "trees")
        self._states = StateStore(Path(config.daemon.state_dir) / "servers", boot_id())
        self._fleet = FleetKeeper(self._hub, self._configured, lambda: (one.snapshot() for one in self._roster.loops()))
        self._places: dict[str, str] = {}
        self._inherited: set[str] = set()
        self._adoptions: Counter[str] = Counter()
        self._deaf = anyio.Event()
        self.ready = anyio.Event()

    # --- the daemon's life ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until asked to end; then stop every server and return. StartupProblem when that is not possible."""
        self._hearing = anyio.CancelScope()
        ignore_orphan_signals()
        become_subreaper()
        protect_from_oom()
        _make_directories(self._config)
        with _held(Path(self._config.daemon.state_dir)):
            async with AsyncExitStack() as stack:
                host = self._host = await self._open(stack)
                inherited = await self._inherit(host)
                roster = self._roster = Roster(host, self._states, self._places, self._announce, self._observe)
                self._service = Service(self._notifier, roster.loops, self._pulse.fed_watchdog)
                self._archivist = Archivist(host.log_dir, roster.configs, roster.hands)
                tasks = await stack.enter_async_context(anyio.create_task_group())
                roster.work_in(tasks)
                self.answers = await self._furnish(stack, roster, tasks)
                for server in self._config.servers.values():
                    if inherited[server.name].saved is not None:
                        self._inherited.add(server.name)
                    await self._seat(server, inherited[server.name])
                bound = self._upgrades.bound = await self._bindings()
                served = await stack.enter_async_context(serve.serving(bound))
                for what, work in (
                    ("gpus", host.devices.run),
                    ("orphans", host.household.reap_forever),
                    ("kernel log", HostNews(roster.effects, host.devices, heard=host.hear_kernel).run),
                    ("signals", self._signals),
                    ("systemd", self._service.run),
                    ("control socket", SocketFile(served, self._config.daemon).run),
                    ("hooks", self._hooks.run),
                    ("routers", partial(self._routing.run, self._hub.changed)),
                    ("rolling", self._rolling.run),
                    ("log archive", self._archivist.run),
                    ("pulse", partial(self._pulse.run, roster.configs, self._devices.view, roster.readers)),
                ):
                    tasks.start_soon(guarded, log_bug, what, work, name=what)
                await anyio.lowlevel.checkpoint()  # who reads "ready" may send a signal: its receiver must be there
                await self._begin()
                await self._ending.wait()  # as long as the daemon lives
                if self._upgrades.next is not None:
                    await self._make_way()
                else:
                    await self._leave()
                tasks.cancel_scope.cancel()
        log.info("ended" if self._upgrades.next is None else "makes way for the new code")

    def ask_to_end(self, by: str) -> None:
        """Stop every server, then end; at any time."""
        log.info("asked to end", by=by)
        self._ending.set()

    async def _leave(self) -> None:
        self._service.stopping()
        if not self._leaving:
            self._rolling.abandon("the daemon was asked to end")
            await self._stop_servers()
        await self._hooks.last_words()

    async def _make_way(self) -> None:
        """Leave everything as the next code is to find it: signals kept, nothing half done, records as of now."""
        self._service.makes_way()
        self._hearing.cancel()
        await self._deaf.wait()
        with anyio.move_on_after(_SETTLE_LIMIT_S):
            await self._changes.hold()
            seen = -1
            while self._roster.unsettled():
                seen = await self._hub.changed(seen)
        await self._hooks.last_words()
        self._roster.save()
        await self._writer.flush()
        self._upgrades.pack(self._events.records())

    async def _open(self, stack: AsyncExitStack) -> Host:
        daemon = self._config.daemon
        state = Path(daemon.state_dir)
        # Before the first child. After an upgrade systemd's numbers are those of the first start, and others' by now.
        left = left_behind(os.environ, os.getpid()) if self._left is None else {}
        stack.push_async_callback(self._writer.close)  # what is told at the very end is written as well
        journal = stack.enter_context(Journal(str(state / "journal.db")))
        wanted = daemon.cgroups is CgroupUse.AUTO
        cgroups = await anyio.to_thread.run_sync(find_cgroup_root, _label(state)) if wanted else None
        if cgroups is not None:
            stack.callback(cgroups.remove)
        self._pulse = PulseKeeper(state, Path(daemon.log_dir), self._overdue_s, self._host_traffic, self._writer)
        self._devices = Devices(
            *(state, lambda pid: server_of(pid, self._places), self._hub.publish), writer=self._writer
        )
        self._routing = Routing(self._config, self._writer)
        self._hooks = Hooks(state / "hooks", await stack.enter_async_context(Messenger()), daemon.hooks)
        watch = await stack.enter_async_context(watcher())
        if watch.problem:
            log.warning("logs", problem=watch.problem)
        return Host(
            journal=journal,
            watcher=watch,
            prober=await stack.enter_async_context(Prober()),
            cgroups=cgroups,
            hub=self._hub,
            trees=self._trees,
            store=DescriptorStore(self._notifier.send, left),
            log_dir=Path(daemon.log_dir),
            state_dir=state,
            environment=dict(os.environ),
            devices=self._devices,
            household=Household(),  # before the first helper process: they inherit its mark
            history=HistoryStore(state / "history"),
            hooks=self._hooks,
            fleet=self._fleet,
            routing=self._routing,
            evidence_dir=state / "evidence",
            records_exits=not await kernel_tells() if self._record_exits is None else self._record_exits,
            writer=self._writer,
            heard=self._pulse.hear,
        )

    async def _furnish(self, stack: AsyncExitStack, roster: Roster, tasks: TaskGroup) -> Answers:
        """What works on the servers of the roster together, and what answers for all of it."""
        state = Path(self._config.daemon.state_dir)
        self._ends = Ends(self._fleet, roster.loop, self._hub, tasks)
        self._views = Views(roster, self._devices, self._routing, self._fleet, self._ends)
        self._changes = Changes(roster, self._in_force, self._config_path, tasks, lambda: self._fleet.ties)
        await self._routing.open(stack, roster.doors, state / "routers", os.environ, self._tell_router)
        site = Site(self._views.one, self._routing.missing, self._fleet.mates, self._ends.request)
        self._rolling = Rolling(
            *(roster, self._changes, site, self._hub, state / "rolling.json"),
            *(self._states.boot_id, self._tell_rolling),
            writer=self._writer,
        )
        return Answers(
            Parts(
                config=self._config,
                config_path=self._config_path,
                started=self._started,
                hub=self._hub,
                roster=roster,
                views=self._views,
                devices=self._devices,
                routing=self._routing,
                fleet=self._fleet,
                ends=self._ends,
                changes=self._changes,
                rolling=self._rolling,
                events=self._events,
                history=self._host.history,
                pulse=self._pulse,
                upgrades=self._upgrades,
                ending=self._ending,
                ask_to_end=self.ask_to_end,
            )
        )

    def _in_force(self) -> Config:
        return self.answers.config()

    def _configured(self) -> Config:
        """What ties servers to each other; while they are taken up one after another all of them count."""
        return self._in_force() if self.ready.is_set() else self._config

    async def _inherit(self, host: Host) -> dict[str, Inheritance]:
        try:
            found = await inherit(
                *(self._config.servers, self._trees, self._states, host.cgroups, host.state_dir, host.store)
            )
        except LeftoverProblem as problem:
            raise StartupProblem(str(problem)) from None
        self._adoptions.update(filter(None, (one.outcome for one in found.values())))
        return found

    async def _seat(self, server: ServerConfig, inherited: Inheritance) -> None:
        try:
            await self._roster.add(server, inherited)
        except ChangeProblem as problem:
            raise StartupProblem(f"cannot start: {problem}") from None

    def _overdue_s(self) -> float:
        return self._roster.overdue_s()

    def _host_traffic(self) -> HostTraffic:
        """What this daemon has counted for the whole host."""
        return HostTraffic(
            self._host.household.reaped,
            self._devices.reader_restarts,
            dict(self._adoptions),
            dict(self.answers.requests),
            self._archivist.segments(),
        )

    def _observe(self, snapshot: ServerSnapshot) -> None:
        self._pulse.observe(self._views.whole(snapshot))

    async def _bindings(self) -> list[serve.Binding]:
        try:
            return bindings(self._config.daemon, self.answers, os.environ, self._left)
        except ListenProblem as problem:
            raise StartupProblem(await explained(problem)) from None

    async def _begin(self) -> None:
        log.info("ready", socket=self._config.daemon.socket, servers=len(self._roster.names()), version=__version__)
        if self._left is not None:
            self._tell_of_upgrade(self._left)
        self._service.ready()
        await self._ends.go_on()
        for name in by_need(self._fleet.ties, list(self._config.servers)):
            if self._autostart and self._config.servers[name].autostart and name not in self._inherited:
                await self._roster.start(name, "autostart")
        self.ready.set()

    def _tell_of_upgrade(self, left: Handover) -> None:
        self._service.took_over()
        if left.problem:
            log.error("upgrade failed", problem=left.problem, by=left.by)
        else:
            log.info("upgraded", before=left.before, after=__version__, by=left.by)
        self._events.add(clock.now(), "", "upgrade", left.before, __version__, left.problem or left.by, 0)

    async def _stop_servers(self) -> None:
        """Whoever needs others first; as long as their own deadlines allow: each stop ends in stopped or quarantined.

        Our own end is nobody's wish about a server: what was wanted up is started again by the next daemon.
        """
        wanted = {*self._wanted_up(), *self._roster.returning}
        await self._ends.stop_all("shutdown")
        seen = -1
        while not all(map(rests, self._roster.loops())):
            for name in (late := self._wanted_up()):  # somebody has started it meanwhile: it would never rest
                await self._ends.request(name, StopRequested("shutdown"))
            wanted.update(late)
            seen = await self._hub.changed(seen)
        await self._roster.evidence_kept()  # of who failed just before
        for loop in self._roster.loops():
            if loop.name in wanted and loop.server.state is not State.QUARANTINED:
                self._roster.forget(loop.name)

    def _wanted_up(self) -> list[str]:
        return [loop.name for loop in self._roster.loops() if loop.snapshot().goal == "up"]

    # --- signals and systemd -------------------------------------------------------------------------------------

    async def _signals(self) -> None:
        # `sglsup run` has no file to read again, and its closed terminal ends it.
        hang_up = (signal.SIGHUP,) if self._config_path else ()
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *hang_up) as arriving:
            for number in self._upgrades.unheard.take():
                await self._heed(signal.Signals(number))
            with self._hearing:
                async for number in arriving:
                    await self._heed(number)
        self._upgrades.unheard.listen()  # nobody else does, until the next code is there
        self._deaf.set()

    async def _heed(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            await self._reload()
        else:
            await self._end(number)

    async def _end(self, number: signal.Signals) -> None:
        name = signal.Signals(number).name
        log.info("asked to end", by=name)
        if self._ending.is_set() and number == signal.SIGINT:
            await self._kill_servers(f"a second {name}")
        elif not self._ending.is_set() and number == signal.SIGTERM:
            self._leaving = await leaves_servers(self._service.active)
        self._ending.set()

    async def _reload(self) -> None:
        self._service.reloading()
        self._pulse.read_config(usable=await reload(self._changes))
        self._service.ready()

    async def _kill_servers(self, by: str) -> None:
        """Who presses Ctrl-C twice does not want to wait for running requests."""
        for loop in self._roster.loops():
            await loop.post(SignalRequested(by, signal.SIGKILL))

    # --- what is told of servers ---------------------------------------------------------------------------------

    def _announce(self, server: str, change: Announce) -> None:
        moment = clock.now()
        if change.facet == "lifecycle":
            self._settle(server, change)
            self._ends.changed(server, change)
        loop = self._roster.loop(server)
        if change.facet in _COUNTED and loop is not None:
            self._observe(loop.snapshot())
        if loop is not None:
            own = self._roster.configs()[server].hooks
            self._hooks.changed(own, change, lambda: self._views.whole(loop.snapshot()))
        self._events.add(moment, server, change.facet, change.before, change.after, change.reason, change.attempt)
        if change.facet in ("lifecycle", "verdict", "phase", "goal"):
            log.info(change.facet, server=server, **{"from": change.before, "to": change.after}, reason=change.reason)

    def _tell_router(self, server: str, before: RouterView, now: RouterView) -> None:
        """A router has taken a server, let go of it, or cannot be asked any more."""
        self._events.add(clock.now(), server, f"router {now.name}", before.state, now.state, now.reason, 0)
        log.info("router", server=server, router=now.name, **{"from": before.state, "to": now.state}, reason=now.reason)
        self._hub.publish()

    def _tell_rolling(self, server: str, before: str, after: str, reason: str) -> None:
        self._events.add(clock.now(), server, "rolling", before, after, reason, 0)
        self._hub.publish()

    def _tell_state(self, problem: str) -> None:
        """The disk of the state directory refuses or does not answer; "": all is written again."""
        if problem:
            log.warning("state", problem=problem)
        else:
            log.info("state", reason=STATE_WRITTEN)
        self._events.add(
            clock.now(), "", "state", "", "unwritten" if problem else "written", problem or STATE_WRITTEN, 0
        )
        self._hub.publish()

    def _settle(self, server: str, change: Announce) -> None:
        """What the end of an attempt means for the devices."""
        if change.after in WITHOUT_DEVICES:
            self._host.release(server)
        elif change.after == State.RECLAIMING and change.before == State.STOPPING:
            loop = self._roster.loop(server)
            if loop is not None:
                self._devices.blame(loop.snapshot())


def _make_directories(config: Config) -> None:
    for path in (config.daemon.state_dir, config.daemon.log_dir):
        try:
            Path(path).mkdir(parents=True, exist_ok=True, mode=0o750)
        except OSError as problem:
            raise StartupProblem(f"cannot make {path}: {problem.strerror}; nothing was started") from None


@contextmanager
def _held(state_dir: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(state_lock(state_dir))
        except StateLockProblem as problem:
            raise StartupProblem(f"{problem}; nothing was started") from None
        yield


def _label(state_dir: Path) -> str:
    """Two daemons with different state directories do not share cgroups."""
    return str(state_dir).strip("/").replace("/", "-") or "default"
