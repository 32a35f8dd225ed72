"""A daemon in memory: what the API and the client are tested against."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from supervisor.api.access import Access
from supervisor.api.app import build_app, build_tcp_app
from supervisor.api.control import (
    Applied,
    ChangeRefusedError,
    Clock,
    DaemonInfo,
    EventRecord,
    Request,
    RouterFacts,
    UpgradeRefusedError,
    Upgrading,
)
from supervisor.api.limits import DEFAULTS, Limits
from supervisor.api.listeners import bind_tcp, bind_unix
from supervisor.api.pulse import Pulse
from supervisor.api.serve import Binding, serving
from supervisor.config import Config, Differences, ServerConfig, differences, load
from supervisor.config.groups import ties
from supervisor.core.fleet.view import FleetView
from supervisor.core.gpus.views import GpusView, GpuView
from supervisor.core.rolling import Roll, RollKind, RollState, begin
from supervisor.snapshot import FacetView, ServerSnapshot


def snapshot(name: str = "kimi", state: str = "stopped", **fields: object) -> ServerSnapshot:
    """A server that has been like this since second 100 of the monotonic clock."""
    plain = ServerSnapshot(
        name=name,
        at=100.0,
        goal="down" if state == "stopped" else "up",
        lifecycle=FacetView(state, 100.0),
        verdict=FacetView("unknown", 100.0),
        startup=FacetView("unknown", 100.0),
        readiness=FacetView("success" if state == "running" else "unknown", 100.0),
        liveness=FacetView("unknown", 100.0),
        pid=4242 if state in ("running", "starting", "stopping") else None,
    )
    return msgspec.structs.replace(plain, **fields)


class FakeControl:
    """Servers that do at once what is asked of them."""

    def __init__(self, *servers: ServerSnapshot, monotonic: float = 160.0, wall: float = 1764420000.0) -> None:
        self.servers = {server.name: server for server in servers}
        self.now = Clock(monotonic, wall)
        self.requests: list[tuple[str, Request]] = []
        self.records: list[EventRecord] = []
        self.shutdown_by: list[str] = []
        self.version, self.installed, self.upgrades = "0.1.0", "0.2.0", 0
        self.upgrades_shown: int | None = None
        self.pid, self.pid_after = os.getpid(), os.getpid()
        self.upgrade_problem = self.refusal = ""
        self.log_path = ""
        self.state_dir = "/var/lib/sglang-supervisor"
        self.beat = Pulse()
        self.view = GpusView("absent", 100.0, "NVML finds no GPU")
        self.broken: Exception | None = None
        self.slow_stop = False
        self.config_path = "/etc/sglang-supervisor/supervisor.toml"
        self.configuration = Config(servers={name: ServerConfig(name, ("engine",)) for name in self.servers})
        self.read: Config | None = None
        self.updates: list[tuple[tuple[str, ...], str, bool]] = []
        self.rerouted: list[tuple[str, bool]] = []
        self.rerouting_fails = ""
        self.router_says = ""
        self.audited: list[tuple[str, str, str]] = []
        self.answers: list[tuple[str, str, int]] = []
        self.roll: Roll | None = None
        self.starts = FleetView()
        self.routers: tuple[RouterFacts, ...] = ()
        self.refuses = ""
        self.unwritten = ""  # why the next daemon would not know of a rolling
        self._waiting = 0
        self._waiting_changed = asyncio.Event()
        self._change = 0
        self._changed = asyncio.Condition()

    def snapshots(self) -> Sequence[ServerSnapshot]:
        return tuple(self.servers.values())

    def snapshot(self, name: str) -> ServerSnapshot | None:
        return self.servers.get(name)

    def gpus(self) -> GpusView:
        return self.view

    def put_gpus(self, *gpus: GpuView, **fields: object) -> None:
        """The host has these GPUs, seen a second ago."""
        plain = GpusView("seeing", 100.0, "", "580.159.04", at=self.now.monotonic - 1, gpus=gpus)
        self.view = msgspec.structs.replace(plain, **fields)

    def release_gpu(self, device: int) -> bool:
        known = next(gpu for gpu in self.view.gpus if gpu.index == device)
        healed = msgspec.structs.replace(known, state="free", reason="", quarantined_since_wall_s=None)
        self.put_gpus(*(healed if gpu is known else gpu for gpu in self.view.gpus))
        return known.state == "quarantined"

    def clock(self) -> Clock:
        return self.now

    def fleet(self) -> FleetView:
        return self.starts

    def rolling(self) -> Roll | None:
        return self.roll

    async def begin_rolling(
        self, kind: RollKind, names: Sequence[str], by: str, grace_s: float, reason: str
    ) -> tuple[Roll, str]:
        if self.refuses:
            raise ChangeRefusedError(self.refuses)
        self.roll = begin(kind, names, by, grace_s, self.now.wall, reason)
        return self.roll, self.unwritten

    async def cancel_rolling(self, by: str) -> str | None:
        return self.unwritten if self.roll is not None and self.roll.state is RollState.RUNNING else None

    async def request(self, name: str, event: Request) -> None:
        self.requests.append((name, event))
        match type(event).__name__:
            case "StartRequested" | "RestartRequested":
                await self.put(snapshot(name, "starting"))
            case "StopRequested":
                await self.put(snapshot(name, "stopping" if self.slow_stop else "stopped"))
            case "PauseRequested" | "ResumeRequested" as kind:
                on = FacetView("on", 100.0, f"pause asked by {event.by}") if kind == "PauseRequested" else None
                await self.put(msgspec.structs.replace(self.servers[name], maintenance=on))
            case _:
                pass

    async def put(self, server: ServerSnapshot) -> None:
        """The server becomes this, and everybody who waits is woken."""
        self.servers[server.name] = server
        await self._announce()

    async def record(
        self, server: str, after: str, reason: str = "", *, facet: str = "lifecycle", before: str = ""
    ) -> None:
        """Another row in the journal."""
        number = len(self.records) + 1
        self.records.append(EventRecord(number, self.now.wall + number, server, facet, before, after, reason, 1))
        await self._announce()

    async def _announce(self) -> None:
        async with self._changed:
            self._change += 1
            self._changed.notify_all()

    def answered(self, operation: str, role: str, status: int) -> None:
        self.answers.append((operation, role, status))

    def change(self) -> int:
        return self._change

    async def changed(self, after: int) -> int:
        self._count_waiting(1)
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self._change > after)
                return self._change
        finally:
            self._count_waiting(-1)

    def _count_waiting(self, step: int) -> None:
        self._waiting += step
        self._waiting_changed.set()

    async def waiters(self, count: int) -> None:
        """Returns when so many wait for a change."""
        async with asyncio.timeout(20):
            while self._waiting != count:
                self._waiting_changed.clear()
                await self._waiting_changed.wait()

    async def remove(self, name: str) -> None:
        """The server is gone from the configuration."""
        del self.servers[name]
        await self._announce()

    async def events(self, since: int | None, server: str | None, limit: int) -> Sequence[EventRecord]:
        if self.broken is not None:
            raise self.broken
        rows = [row for row in self.records if server is None or row.server == server]
        if since is None:
            return rows[-limit:]
        return [row for row in rows if row.id > since][:limit]

    def config(self) -> Config:
        return self.configuration

    def available(self) -> Config:
        return self.read or self.configuration

    async def reread(self) -> Differences:
        if not self.config_path:
            raise ChangeRefusedError("there is no configuration file: the daemon runs without one")
        self.read = await asyncio.to_thread(load, self.config_path)
        return differences(self.configuration, self.read)

    async def update(self, names: Sequence[str], by: str, *, free_only: bool) -> Sequence[Applied]:
        kinds = {"available": "added", "disappeared": "removed", "changed": "restarted"}
        found = (await self.reread()).servers
        wanted = [one for one in found if not names or one.name in names]
        skipped = [one for one in wanted if free_only and (one.kind == "disappeared" or one.restart_needed)]
        applied = [Applied(one.name, "skipped" if one in skipped else kinds[one.kind]) for one in wanted]
        self.updates.append((tuple(names), by, free_only))
        for one in applied:
            if one.kind != "skipped":
                await self._follow(one.name)
        return applied

    async def _follow(self, name: str) -> None:
        others = {key: value for key, value in self.configuration.servers.items() if key != name}
        wanted = {key: value for key, value in self.available().servers.items() if key == name}
        self.configuration = msgspec.structs.replace(self.configuration, servers=others | wanted)
        if wanted:
            await self.put(snapshot(name, "starting"))
        else:
            await self.remove(name)

    async def update_routers(self, by: str, *, free_only: bool) -> Sequence[Applied]:
        found = (await self.reread()).routers
        kinds = {"available": "added", "changed": "changed", "disappeared": "skipped" if free_only else "removed"}
        kept = {one.name for one in found if kinds[one.kind] == "skipped"}
        routers = self.available().routers | {name: self.configuration.routers[name] for name in kept}
        self.configuration = msgspec.structs.replace(self.configuration, routers=routers)
        self.rerouted.append((by, free_only))
        if self.rerouting_fails:
            return [Applied("", "failed", self.rerouting_fails)]
        return [Applied(one.name, kinds[one.kind], self.router_says) for one in found]

    def restarts(self, found: Differences) -> Sequence[tuple[str, ...]]:
        known = ties(self.available())
        up = [name for name, one in self.servers.items() if one.lifecycle.value not in ("stopped", "fatal")]
        steps: list[tuple[str, ...]] = []
        for change in found.servers:
            if change.restart_needed and change.name in up and not any(change.name in step for step in steps):
                mates = known[change.name].mates if change.name in known else ()
                steps.append((change.name, *(mate for mate in mates if mate in up)))
        return steps

    async def add_server(self, name: str, by: str) -> None:
        if name not in self.available().servers or name in self.servers:
            raise ChangeRefusedError(f"cannot add {name}")
        await self.put(snapshot(name, "starting" if self.available().servers[name].autostart else "stopped"))

    async def remove_server(self, name: str, by: str) -> None:
        if self.servers[name].lifecycle.value not in ("stopped", "fatal"):
            raise ChangeRefusedError(f"cannot remove {name}: it is still running; stop it first")
        await self.remove(name)

    async def last_start_s(self, name: str) -> float | None:
        return 432.0 if name == "kimi" else None

    def audit(self, server: str, command: str, by: str) -> None:
        self.audited.append((server, command, by))

    def daemon_info(self) -> DaemonInfo:
        return DaemonInfo(
            version=self.version,
            pid=self.pid,
            started_wall=self.now.wall - 3600,
            config_path=self.config_path,
            state_dir=self.state_dir,
            log_dir="/var/log/sglang-supervisor",
            log_path=self.log_path,
            upgrades=self.upgrades if self.upgrades_shown is None else self.upgrades_shown,
            upgrade_problem=self.upgrade_problem,
            routers=self.routers,
        )

    def pulse(self) -> Pulse:
        return self.beat

    async def shutdown(self, by: str) -> None:
        self.shutdown_by.append(by)

    async def upgrade(self, by: str) -> Upgrading:
        if self.refusal:
            raise UpgradeRefusedError(self.refusal)
        begun = Upgrading(self.version, self.installed, self.upgrades)
        self.pid = self.pid_after
        self.upgrades, self.version = self.upgrades + 1, self.version if self.upgrade_problem else self.installed
        return begun


OWNER = Access(admin_uids=frozenset({os.getuid()}), operator_gids=frozenset())


@asynccontextmanager
async def served(
    control: FakeControl, directory: Path, access: Access = OWNER, limits: Limits = DEFAULTS
) -> AsyncIterator[str]:
    """The path of a socket on which the API of `control` answers."""
    path = str(directory / "s")
    async with serving([Binding(bind_unix(path), build_app(control, access, limits))], limits):
        yield path


@asynccontextmanager
async def served_on_tcp(control: FakeControl, limits: Limits = DEFAULTS) -> AsyncIterator[int]:
    """The loopback port on which the read-only API of `control` answers."""
    listener = bind_tcp("127.0.0.1", 0)
    async with serving([Binding(listener, build_tcp_app(control, OWNER, limits))], limits):
        yield listener.getsockname()[1]


@asynccontextmanager
async def served_on_both(control: FakeControl, directory: Path, limits: Limits) -> AsyncIterator[tuple[str, int]]:
    """The socket and the loopback port of one daemon."""
    path, listener = str(directory / "s"), bind_tcp("127.0.0.1", 0)
    local = Binding(bind_unix(path), build_app(control, OWNER, limits))
    async with serving([local, Binding(listener, build_tcp_app(control, OWNER, limits))], limits):
        yield path, listener.getsockname()[1]


@asynccontextmanager
async def dialled(place: str | Path | int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A bare connection to a socket's path or a port, closed at the end whatever the other side did to it."""
    match place:
        case int() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        case path:
            reader, writer = await asyncio.open_unix_connection(path)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()
