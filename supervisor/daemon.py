"""The daemon: one loop per server, the control socket, systemd, and their orderly end."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
import structlog

from supervisor import __version__
from supervisor.actions import Announce
from supervisor.api import serve
from supervisor.api.control import Applied, ChangeRefusedError, Clock, DaemonInfo, EventRecord, Request, Upgrading
from supervisor.api.pulse import Pulse
from supervisor.config import CgroupUse, Config, ConfigError, Differences, GroupConfig, load
from supervisor.core.fleet.ends import by_need
from supervisor.core.fleet.view import FleetView
from supervisor.core.gpus.views import GpusView
from supervisor.core.lifecycle import RESTING, WITHOUT_DEVICES, State
from supervisor.core.rolling import Roll, RollKind, RollState, summary
from supervisor.core.traffic import HostTraffic
from supervisor.edge.cgroup import find_cgroup_root
from supervisor.edge.journal import Journal
from supervisor.edge.notify import Notifier
from supervisor.edge.probe import Prober
from supervisor.edge.process import Household, become_subreaper, ignore_orphan_signals, kernel_tells, protect_from_oom
from supervisor.edge.process.owner import server_of
from supervisor.edge.statelock import StateLockProblem, state_lock
from supervisor.edge.tail import watcher
from supervisor.edge.webhook import Messenger
from supervisor.events import SignalRequested
from supervisor.shell import clock, logs
from supervisor.shell.adoption import Inheritance, LeftoverProblem, inherit
from supervisor.shell.archive import Archivist
from supervisor.shell.changes import Changes, costs
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
from supervisor.shell.roster import Roster
from supervisor.shell.routing import Routing
from supervisor.shell.sockets import ListenProblem, bindings
from supervisor.shell.states import StateStore
from supervisor.shell.trees import TreeStore, boot_id
from supervisor.shell.upgrade import Handover, received
from supervisor.shell.upgrade_trial import own_command
from supervisor.shell.upgrades import Upgrades
from supervisor.snapshot import RouterView, ServerSnapshot

log = structlog.get_logger()

DEFAULT_CONFIG = "/etc/sglang-supervisor/supervisor.toml"
EXIT_CONFIG = 2

_STATUS_EVERY_S = 5.0
_LOOP_HUNG_S = 10.0
_SETTLE_LIMIT_S = 15.0  # for a spawn, or evidence, that an upgrade would break off
_UPGRADE_WATCHDOG_S = 60.0  # a new code that is read from a cold disk
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
        self._ending = anyio.Event()
        self._leaving = False  # the servers go on without us: the next daemon adopts them
        self._notifier = Notifier(os.environ)
        self._trees = TreeStore(Path(config.daemon.state_dir) / "trees")
        self._states = StateStore(Path(config.daemon.state_dir) / "servers", boot_id())
        self._fleet = FleetKeeper(self._hub, self._configured, lambda: (one.snapshot() for one in self._roster.loops()))
        self._places: dict[str, str] = {}
        self._inherited: set[str] = set()
        self._adoptions: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
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
                self._archivist = Archivist(host.log_dir, roster.configs, roster.hands)
                tasks = await stack.enter_async_context(anyio.create_task_group())
                roster.work_in(tasks)
                self._ends = Ends(self._fleet, roster.loop, self._hub, tasks)
                self._changes = Changes(roster, self.config, self._config_path, tasks)
                state = Path(self._config.daemon.state_dir)
                await self._routing.open(stack, roster.doors, state / "routers", os.environ, self._tell_router)
                site = Site(self.snapshot, self._routing.missing, self._mates, self.request)
                self._rolling = Rolling(
                    *(roster, self._changes, site, self._hub, state / "rolling.json"),
                    *(self._states.boot_id, self._tell_rolling),
                )
                for server in self._config.servers.values():
                    if inherited[server.name].saved is not None:
                        self._inherited.add(server.name)
                    await roster.add(server, inherited[server.name])
                bound = self._bindings()
                await stack.enter_async_context(serve.serving(bound))
                for what, work in (
                    ("gpus", host.devices.run),
                    ("orphans", host.household.reap_forever),
                    ("kernel log", HostNews(roster.effects, host.devices, heard=host.hear_kernel).run),
                    ("signals", self._signals),
                    ("systemd", self._tell_systemd),
                    ("hooks", self._hooks.run),
                    ("routers", partial(self._routing.run, self.changed)),
                    ("rolling", self._rolling.run),
                    ("log archive", self._archivist.run),
                    ("pulse", partial(self._pulse.run, roster.configs, self.gpus, roster.readers)),
                ):
                    tasks.start_soon(guarded, log_bug, what, work, name=what)
                await anyio.lowlevel.checkpoint()  # who reads "ready" may send a signal: its receiver must be there
                await self._begin()
                await self._ending.wait()  # as long as the daemon lives
                if self._upgrades.next is not None:
                    await self._make_way(bound)
                else:
                    await self._leave()
                tasks.cancel_scope.cancel()
        log.info("ended" if self._upgrades.next is None else "makes way for the new code")

    async def _leave(self) -> None:
        self._notifier.send(STOPPING="1")
        if not self._leaving:
            self._rolling.abandon("the daemon was asked to end")
            await self._stop_servers()
        await self._hooks.last_words()

    async def _make_way(self, bound: Sequence[serve.Binding]) -> None:
        """Leave everything as the next code is to find it: signals kept, nothing half done, records as of now."""
        patience_s = max(self._notifier.watchdog_s or 0.0, _UPGRADE_WATCHDOG_S)
        self._notifier.send(RELOADING="1", MONOTONIC_USEC=str(int(clock.monotonic() * 1e6)), WATCHDOG="1")
        if self._notifier.watchdog_s:
            self._notifier.send(WATCHDOG_USEC=str(int(patience_s * 1e6)))
        self._hearing.cancel()
        await self._deaf.wait()
        with anyio.move_on_after(_SETTLE_LIMIT_S):
            await self._changes.hold()
            seen = -1
            while self._roster.unsettled():
                seen = await self._hub.changed(seen)
        await self._hooks.last_words()
        self._roster.save()
        self._upgrades.pack(bound, self._events.records())

    async def _open(self, stack: AsyncExitStack) -> Host:
        daemon = self._config.daemon
        state = Path(daemon.state_dir)
        journal = stack.enter_context(Journal(str(state / "journal.db")))
        wanted = daemon.cgroups is CgroupUse.AUTO
        cgroups = await anyio.to_thread.run_sync(find_cgroup_root, _label(state)) if wanted else None
        if cgroups is not None:
            stack.callback(cgroups.remove)
        self._pulse = PulseKeeper(state, Path(daemon.log_dir), self._overdue_s, self._host_traffic)
        self._devices = Devices(state, lambda pid: server_of(pid, self._places), self._hub.publish)
        self._routing = Routing(self._config)
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
            heard=self._pulse.hear,
        )

    async def _inherit(self, host: Host) -> dict[str, Inheritance]:
        try:
            found = await inherit(self._config.servers, self._trees, self._states, host.cgroups, host.state_dir)
        except LeftoverProblem as problem:
            raise StartupProblem(str(problem)) from None
        self._adoptions.update(filter(None, (one.outcome for one in found.values())))
        return found

    def _host_traffic(self) -> HostTraffic:
        """What this daemon has counted for the whole host."""
        return HostTraffic(
            self._host.household.reaped,
            self._devices.reader_restarts,
            dict(self._adoptions),
            dict(self._requests),
            self._archivist.segments(),
        )

    def _observe(self, snapshot: ServerSnapshot) -> None:
        self._pulse.observe(self._with_devices(snapshot))

    def _bindings(self) -> list[serve.Binding]:
        try:
            return bindings(self._config.daemon, self, os.environ, self._left)
        except ListenProblem as problem:
            raise StartupProblem(str(problem)) from None

    async def _begin(self) -> None:
        log.info("ready", socket=self._config.daemon.socket, servers=len(self._roster.names()), version=__version__)
        if self._left is not None:
            self._tell_of_upgrade(self._left)
        self._notifier.send(READY="1", STATUS=self._summary())
        await self._ends.go_on()
        for name in by_need(self._fleet.ties, list(self._config.servers)):
            if self._autostart and self._config.servers[name].autostart and name not in self._inherited:
                await self._roster.start(name, "autostart")
        self.ready.set()

    def _tell_of_upgrade(self, left: Handover) -> None:
        if self._notifier.watchdog_s:
            self._notifier.send(WATCHDOG="1", WATCHDOG_USEC=str(int(self._notifier.watchdog_s * 1e6)))
        if left.problem:
            log.error("upgrade failed", problem=left.problem, by=left.by)
        else:
            log.info("upgraded", before=left.before, after=__version__, by=left.by)
        self._events.add(clock.now(), "", "upgrade", left.before, __version__, left.problem or left.by, 0)

    async def _stop_servers(self) -> None:
        """Whoever needs others first; as long as their own deadlines allow: each stop ends in stopped or quarantined.

        Our own end is nobody's wish about a server: what was wanted up is started again by the next daemon.
        """
        wanted = [loop for loop in self._roster.loops() if loop.snapshot().goal == "up"]
        await self._ends.stop_all("shutdown")
        seen = -1
        while any(loop.server.state not in RESTING for loop in self._roster.loops()):
            seen = await self._hub.changed(seen)
        for loop in wanted:
            if loop.server.state is not State.QUARANTINED:
                self._states.remove(loop.name)

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
            self._leaving = await leaves_servers(self._notifier.active)
        self._ending.set()

    async def _reload(self) -> None:
        """`systemctl reload` waits for the READY that follows RELOADING."""
        self._notifier.send(RELOADING="1", MONOTONIC_USEC=str(int(clock.monotonic() * 1e6)))
        self._pulse.read_config(usable=await reload(self._changes))
        self._notifier.send(READY="1", STATUS=self._summary())

    async def _kill_servers(self, by: str) -> None:
        """Who presses Ctrl-C twice does not want to wait for running requests."""
        for loop in self._roster.loops():
            await loop.post(SignalRequested(by, signal.SIGKILL))

    async def _tell_systemd(self) -> None:
        """The watchdog is fed only while every decision loop turns."""
        if not self._notifier.active:
            return
        watchdog_s = self._notifier.watchdog_s
        period_s = min(_STATUS_EVERY_S, watchdog_s / 3) if watchdog_s else _STATUS_EVERY_S
        while True:
            hung = [loop.name for loop in self._roster.loops() if loop.overdue_s() > _LOOP_HUNG_S]
            if not hung:
                self._notifier.send(WATCHDOG="1", STATUS=self._summary())
                self._pulse.fed_watchdog()
            await anyio.sleep(period_s)

    def _overdue_s(self) -> float:
        return max((loop.overdue_s() for loop in self._roster.loops()), default=0.0)

    def _summary(self) -> str:
        counts: dict[str, int] = {}
        for loop in self._roster.loops():
            state = str(loop.server.state)
            counts[state] = counts.get(state, 0) + 1
        return ", ".join(f"{number} {state}" for state, number in sorted(counts.items())) or "no servers"

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
            self._hooks.changed(own, change, lambda: self._with_devices(loop.snapshot()))
        self._events.add(moment, server, change.facet, change.before, change.after, change.reason, change.attempt)
        if change.facet in ("lifecycle", "verdict", "phase", "goal"):
            log.info(change.facet, server=server, **{"from": change.before, "to": change.after}, reason=change.reason)

    def _tell_router(self, server: str, before: RouterView, now: RouterView) -> None:
        """A router has taken a server, let go of it, or cannot be asked any more."""
        self._events.add(clock.now(), server, f"router {now.name}", before.state, now.state, now.reason, 0)
        log.info("router", server=server, router=now.name, **{"from": before.state, "to": now.state}, reason=now.reason)
        self._hub.publish()

    def _mates(self, server: str) -> tuple[str, ...]:
        """Who restarts together with it."""
        tied = self._fleet.ties.get(server)
        return tied.mates if tied is not None else ()

    def _tell_rolling(self, server: str, before: str, after: str, reason: str) -> None:
        self._events.add(clock.now(), server, "rolling", before, after, reason, 0)
        self._hub.publish()

    def _settle(self, server: str, change: Announce) -> None:
        """What the end of an attempt means for the devices."""
        if change.after in WITHOUT_DEVICES:
            self._host.release(server)
        elif change.after == State.RECLAIMING and change.before == State.STOPPING:
            loop = self._roster.loop(server)
            if loop is not None:
                self._devices.blame(loop.snapshot())

    # --- what the API asks (supervisor.api.control.Control) ------------------------------------------------------

    def snapshots(self) -> Sequence[ServerSnapshot]:
        """All servers in the order of the configuration."""
        return [self._with_devices(loop.snapshot()) for loop in self._roster.loops()]

    def snapshot(self, name: str) -> ServerSnapshot | None:
        """One server."""
        loop = self._roster.loop(name)
        return self._with_devices(loop.snapshot()) if loop else None

    def gpus(self) -> GpusView:
        """All devices."""
        return self._devices.view()

    def release_gpu(self, device: int) -> bool:
        """Put a quarantined device back into use; False when it was not quarantined."""
        return self._devices.release(device)

    def _with_devices(self, snapshot: ServerSnapshot) -> ServerSnapshot:
        leased, routers = self._devices.leased(snapshot.name), self._routing.views(snapshot.name)
        turn, ends = self._fleet.told(snapshot), self._ends.why(snapshot.name)
        if not (leased or routers or turn or ends):
            return snapshot
        gpus = leased or snapshot.gpus
        return msgspec.structs.replace(snapshot, gpus=gpus, routers=routers, turn=turn, ends=ends)

    def clock(self) -> Clock:
        """Now."""
        return clock.now()

    async def request(self, name: str, event: Request) -> None:
        """Deliver a request and wait until it has been handled."""
        await self._ends.request(name, event)

    def change(self) -> int:
        """Grows with every change."""
        return self._hub.count

    async def changed(self, after: int) -> int:
        """Wait for a change."""
        return await self._hub.changed(after)

    async def events(self, since: int | None, server: str | None, limit: int) -> Sequence[EventRecord]:
        """Changes as people follow them."""
        return self._events.read(since, server, limit)

    def config(self) -> Config:
        """The configuration that is in force."""
        return msgspec.structs.replace(self._config, servers=self._roster.configs(), groups=self._groups())

    def _groups(self) -> dict[str, GroupConfig]:
        return self._config.groups if self._changes.groups is None else self._changes.groups

    def _configured(self) -> Config:
        """What ties servers to each other; while they are taken up one after another all of them count."""
        return self.config() if self.ready.is_set() else self._config

    def available(self) -> Config:
        """The file as it was last read."""
        return self._changes.available

    async def reread(self) -> Differences:
        """What the file would change now."""
        return await self._changes.reread()

    async def update(self, names: Sequence[str], by: str, *, free_only: bool) -> Sequence[Applied]:
        """Bring the file into force."""
        return await self._changes.apply(names, by, free_only=free_only)

    async def add_server(self, name: str, by: str) -> None:
        """Add a server of the file as it was last read."""
        await self._changes.add(name, by)

    async def remove_server(self, name: str, by: str) -> None:
        """Take out a server that is at rest."""
        await self._changes.remove(name, by)

    def fleet(self) -> FleetView:
        """Who starts, who waits for a start, and when all will be ready."""
        return self._fleet.view()

    def rolling(self) -> Roll | None:
        """The rolling restart or update under way, else the last one."""
        return self._rolling.last

    def begin_rolling(self, kind: RollKind, names: Sequence[str], by: str, grace_s: float, reason: str) -> Roll:
        """Restart or update these one after another."""
        return self._rolling.begin(kind, names, by, grace_s, reason)

    def cancel_rolling(self, by: str) -> bool:
        """After the server under way nobody follows."""
        return self._rolling.cancel(by)

    async def last_start_s(self, name: str) -> float | None:
        """Seconds of the last good start."""
        records = await anyio.to_thread.run_sync(self._host.history.read, name)
        return records[-1].total_s if records else None

    def audit(self, server: str, command: str, by: str) -> None:
        """Note who asked for what."""
        self._events.add(clock.now(), server, "request", "", command, by, 0)
        self._hub.publish()
        log.info("request", server=server, command=command, by=by)

    def answered(self, operation: str, role: str, status: int) -> None:
        """Count a request."""
        self._requests[f"{operation} {status} {role}"] += 1

    def daemon_info(self) -> DaemonInfo:
        """Facts about the daemon."""
        daemon = self._config.daemon
        return DaemonInfo(
            *(__version__, os.getpid(), self._started.wall, self._config_path, daemon.state_dir, daemon.log_dir),
            log_path=daemon.log_file or "",
            upgrades=self._upgrades.number,
            upgrade_problem=self._upgrades.problem,
            routers=self._routing.facts(),
            rolling=summary(self._rolling.last) if self._rolling.last is not None else "",
        )

    def pulse(self) -> Pulse:
        """The daemon's own health and books."""
        return self._pulse.pulse(self._roster.names())

    async def shutdown(self, by: str) -> None:
        """Stop every server, then end."""
        log.info("asked to end", by=by)
        self._ending.set()

    async def upgrade(self, by: str) -> Upgrading:
        """Try the installed code; when it comes up, make way for it."""
        begun = await self._upgrades.begin(by, self._obstacle)
        log.info("upgrade begins", before=begun.before, after=begun.after, by=by)
        self._ending.set()
        return begun

    async def _obstacle(self) -> str:
        """Why the code cannot be replaced now. The next one goes by the file, and a server must not pay for that."""
        if self._ending.is_set():
            return "the daemon ends"
        if self._changes.busy:
            return "a change of the configuration is under way; try again when it is done"
        if self._rolling.last is not None and self._rolling.last.state is RollState.RUNNING:
            return f"a {summary(self._rolling.last)}; wait for it, or cancel it"
        try:
            found = await self._changes.reread()
        except (ConfigError, ChangeRefusedError) as problem:
            return "; ".join(str(problem).splitlines()[:3])
        costly = [change.name for change in found.servers if costs(change)]
        if costly:
            return f"the file wants {', '.join(costly)} stopped or restarted; sglctl update first, or take that back"
        return ""


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


def main(arguments: Sequence[str]) -> int:
    """`sglsup daemon -c FILE`: in the foreground until asked to end."""
    options = vars(parser().parse_args(arguments))
    left = received(os.environ)
    os.umask(0o027)  # the journal and the records are for root and our group; servers have a umask of their own
    try:
        config = load(options["config"])
    except ConfigError as problem:
        sys.stderr.write(f"{problem}\n")
        return EXIT_CONFIG
    if options["try"]:
        sys.stdout.write(f"{__version__}\n")
        return 0
    return serve_and_upgrade(config, options["config"], autostart=not options["no_autostart"], left=left)


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    result = argparse.ArgumentParser(prog="sglsup daemon", description="Own every server of a configuration file.")
    result.add_argument("-c", "--config", default=DEFAULT_CONFIG, metavar="FILE", help=f"default {DEFAULT_CONFIG}")
    result.add_argument("--no-autostart", action="store_true", help="start no server by itself")
    result.add_argument("--try", action="store_true", help="read the file, print the version and start nothing")
    return result


def serve_and_upgrade(config: Config, path: str, *, autostart: bool, left: Handover | None = None) -> int:
    """Run daemons until one ends for good: after an upgrade whose exec failed, the old code goes on as the next one."""
    while True:
        upgrades = Upgrades(own_command(), left)
        if left is not None:
            upgrades.unheard.listen()
        close_log = logs.configure(file=config.daemon.log_file)
        daemon = Daemon(config, path, autostart=autostart, upgrades=upgrades)
        status = serve_until_ended(daemon)
        if upgrades.next is None:
            return status
        close_log()
        left, config = upgrades.execute(), daemon.config()


def serve_until_ended(daemon: Daemon) -> int:
    """Run a daemon in this process; the exit status."""
    try:
        anyio.run(daemon.run)
    except BaseExceptionGroup as group:
        problems, bugs = group.split(StartupProblem)
        if bugs is not None:
            raise bugs from None
        return _cannot_start(problems)
    except StartupProblem as problem:
        return _cannot_start(problem)
    return 0


def _cannot_start(problem: BaseException | None) -> int:
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    sys.stderr.write(f"sglsup: {problem}\n")
    return EXIT_CONFIG
