"""The daemon's life: it opens what it needs, takes up its servers, serves until it is asked to end, and leaves."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import AsyncExitStack
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
from supervisor.config import Config, ServerConfig
from supervisor.core.fleet.ends import by_need
from supervisor.core.lifecycle import WITHOUT_DEVICES, State
from supervisor.core.traffic import HostTraffic
from supervisor.edge.fdstore import DescriptorStore, left_behind
from supervisor.edge.notify import Notifier
from supervisor.edge.process import become_subreaper, ignore_orphan_signals, protect_from_oom
from supervisor.shell import clock
from supervisor.shell.adoption import Inheritance, LeftoverProblem, inherit, taken_over
from supervisor.shell.answers import Answers, Parts
from supervisor.shell.archive import Archivist
from supervisor.shell.changes import Changes
from supervisor.shell.ends import Ends
from supervisor.shell.eventlog import EventLog
from supervisor.shell.fleet import FleetKeeper
from supervisor.shell.guard import guarded, log_bug
from supervisor.shell.host import Host
from supervisor.shell.hostnews import HostNews
from supervisor.shell.hub import Hub
from supervisor.shell.news import News
from supervisor.shell.opening import open_host
from supervisor.shell.pulse import PulseKeeper
from supervisor.shell.reload import reload
from supervisor.shell.rolling import Rolling, Site
from supervisor.shell.roster import ChangeProblem, Roster
from supervisor.shell.service import Service
from supervisor.shell.shutdown import stop_servers
from supervisor.shell.signals import Signals
from supervisor.shell.socketfile import SocketFile
from supervisor.shell.sockets import ListenProblem, bindings, explained
from supervisor.shell.startup import StartupProblem, places_held
from supervisor.shell.states import StateStore
from supervisor.shell.trees import boot_id
from supervisor.shell.unfinished import finished, tell
from supervisor.shell.upgrade.books import Upgrades
from supervisor.shell.views import Views
from supervisor.shell.writer import THREADS, StateWriter
from supervisor.snapshot import ServerSnapshot

log = structlog.get_logger()

_SETTLE_LIMIT_S = 15.0  # for a spawn, or evidence, that an upgrade would break off
_COUNTED = ("lifecycle", "goal", "readiness", "verdict")  # facets whose changes begin or end what the tally counts


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
        self._news = News(self._events, self._hub)
        self._writer = StateWriter(self._news.state, threads=THREADS)
        self._ending = anyio.Event()
        self._notifier = Notifier(os.environ)
        self._states = StateStore(Path(config.daemon.state_dir) / "servers", boot_id())
        self._fleet = FleetKeeper(self._hub, self._configured, lambda: (one.snapshot() for one in self._roster.loops()))
        self._inherited: set[str] = set()
        self._adoptions: Counter[str] = Counter()
        self.ready = anyio.Event()

    # --- the daemon's life ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until asked to end; then stop every server and return. StartupProblem when that is not possible."""
        ignore_orphan_signals()
        become_subreaper()
        protect_from_oom()
        with places_held(self._config):
            async with AsyncExitStack() as stack:
                host = self._host = await self._open(stack)
                inherited = await self._inherit(host)
                unfinished = await finished(host.evidence_dir)  # before anybody begins another one
                roster = self._roster = Roster(host, self._states, self._announce, self._observe)
                self._service = Service(self._notifier, roster.loops, self._pulse.fed_watchdog)
                self._archivist = Archivist(host.log_dir, roster.configs, roster.hands)
                tasks = await stack.enter_async_context(anyio.create_task_group())
                roster.work_in(tasks)
                self.answers = await self._furnish(stack, roster, tasks)
                reread = partial(reload, self._changes, self._service) if self._config_path else None
                self._signals = Signals(roster, self._service, self._upgrades.unheard, self._ending, reread)
                for server in self._config.servers.values():
                    if inherited[server.name].saved is not None:
                        self._inherited.add(server.name)
                    await self._seat(server, inherited[server.name])
                await tell(unfinished, roster.loop)
                bound = self._upgrades.bound = await self._bindings()
                served = await stack.enter_async_context(serve.serving(bound))
                journal = host.journal.state
                for what, work in (
                    ("gpus", host.devices.run),
                    ("orphans", host.household.reap_forever),
                    ("kernel log", HostNews(roster.effects, host.devices, heard=host.hear_kernel).run),
                    ("signals", self._signals.run),
                    ("systemd", self._service.run),
                    ("control socket", SocketFile(served, self._config.daemon).run),
                    ("hooks", host.hooks.run),
                    ("routers", partial(host.routing.run, self._hub.changed)),
                    ("rolling", self._rolling.run),
                    ("log archive", self._archivist.run),
                    ("pulse", partial(self._pulse.run, roster.configs, host.devices.view, roster.readers, journal)),
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
        if not self._signals.leave_servers:
            self._rolling.abandon("the daemon was asked to end")
            await stop_servers(self._roster, self._ends, self._hub)
        await self._host.hooks.last_words()

    async def _make_way(self) -> None:
        """Leave everything as the next code is to find it: signals kept, nothing half done, records as of now."""
        self._service.makes_way()
        await self._signals.stop()
        with anyio.move_on_after(_SETTLE_LIMIT_S):
            await self._changes.hold()
            seen = -1
            while self._roster.unsettled():
                seen = await self._hub.changed(seen)
        await self._host.hooks.last_words()
        self._roster.save()
        await self._writer.flush()
        self._upgrades.pack(self._events.records())

    async def _open(self, stack: AsyncExitStack) -> Host:
        daemon = self._config.daemon
        # Before the first child. After an upgrade systemd's numbers are those of the first start, and others' by now.
        left = left_behind(os.environ, os.getpid()) if self._left is None else {}
        state_dir, log_dir = Path(daemon.state_dir), Path(daemon.log_dir)
        self._pulse = PulseKeeper(state_dir, log_dir, self._overdue_s, self._host_traffic, self._writer)
        return await open_host(
            stack,
            self._config,
            hub=self._hub,
            fleet=self._fleet,
            writer=self._writer,
            store=DescriptorStore(self._notifier.send, left),
            heard=self._pulse.hear,
            record_exits=self._record_exits,
        )

    async def _furnish(self, stack: AsyncExitStack, roster: Roster, tasks: TaskGroup) -> Answers:
        """What works on the servers of the roster together, and what answers for all of it."""
        state = Path(self._config.daemon.state_dir)
        self._ends = Ends(self._fleet, roster.loop, self._hub, tasks)
        self._views = Views(roster, self._host.devices, self._host.routing, self._fleet, self._ends)
        self._changes = Changes(
            roster,
            self._in_force,
            self._config_path,
            tasks,
            lambda: self._fleet.ties,
            self._host.routing,
            lambda usable: self._pulse.read_config(usable=usable),
        )
        await self._host.routing.open(stack, roster.doors, state / "routers", os.environ, self._news.router)
        site = Site(self._views.one, self._host.routing.missing, self._fleet.mates, self._ends.request)
        self._rolling = Rolling(
            roster,
            self._changes,
            site,
            self._hub,
            state / "rolling.json",
            self._states.boot_id,
            self._news.rolling,
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
                devices=self._host.devices,
                routing=self._host.routing,
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
        servers = self._config.servers
        try:
            found = await inherit(servers, host.trees, self._states, host.cgroups, host.state_dir, host.store)
        except LeftoverProblem as problem:
            raise StartupProblem(str(problem)) from None
        self._adoptions.update(filter(None, (one.outcome for one in found.values())))
        return found

    async def _seat(self, server: ServerConfig, inherited: Inheritance) -> None:
        try:
            await self._roster.add(server, inherited)
        except ChangeProblem as problem:
            raise StartupProblem(f"cannot start: {problem}") from None
        if self._left is None and (told := taken_over(inherited)):  # an upgrade tells of itself
            self._announce(server.name, told)

    def _overdue_s(self) -> float:
        return self._roster.overdue_s()

    def _host_traffic(self) -> HostTraffic:
        """What this daemon has counted for the whole host."""
        return HostTraffic(
            self._host.household.reaped,
            self._host.devices.reader_restarts,
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
            self._service.took_over()
            self._news.upgrade(self._left)
        self._service.ready()
        await self._ends.go_on()
        await self._start_by_itself()
        self.ready.set()

    async def _start_by_itself(self) -> None:
        """One by one, so that the first in order is the first to a slot. Who is next may be removed by then."""
        for name in by_need(self._fleet.ties, list(self._config.servers) if self._autostart else []):
            config = self._config.servers.get(name)
            if config and config.autostart and name not in self._inherited and self._roster.loop(name) is not None:
                await self._roster.start(name, "autostart")

    # --- what follows from a change of a server ------------------------------------------------------------------

    def _announce(self, server: str, change: Announce) -> None:
        if change.facet == "lifecycle":
            self._settle(server, change)
            self._ends.changed(server, change)
        loop = self._roster.loop(server)
        if change.facet in _COUNTED and loop is not None:
            self._observe(loop.snapshot())
        if loop is not None:
            own = self._roster.configs()[server].hooks
            self._host.hooks.changed(own, change, lambda: self._views.whole(loop.snapshot()))
        self._news.server(server, change)

    def _settle(self, server: str, change: Announce) -> None:
        """What the end of an attempt means for the devices."""
        if change.after in WITHOUT_DEVICES:
            self._host.release(server)
        elif change.after == State.RECLAIMING and change.before == State.STOPPING:
            loop = self._roster.loop(server)
            if loop is not None:
                self._host.devices.blame(loop.snapshot())
