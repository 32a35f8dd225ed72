"""Holds all routers of the configuration, and has servers leave them before they are asked to end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import httpx
from anyio.abc import TaskGroup

from supervisor.api.control import Applied, RouterFacts
from supervisor.config import Config, RouterChange, RouterConfig, RouterKind, routed
from supervisor.edge.hook import run_hook
from supervisor.edge.router import Gateway, Receiver, Reloaded, Router, UpstreamFile, gateway_client
from supervisor.shell.environment import for_helpers
from supervisor.shell.guard import guarded, log_bug
from supervisor.shell.router import Doors, RouterKeeper, Tell
from supervisor.shell.writer import StateWriter
from supervisor.snapshot import RouterView

_RELOAD_LIMIT_S = 30.0
_NGINX_SETTLE_S = 1.0
_NOTHING = Config()
_DONE = {"available": "added", "changed": "changed", "disappeared": "removed"}


class Ground(NamedTuple):
    """What keepers stand on. `doors` are all servers; each router is shown its own."""

    doors: Doors
    directory: Path
    environment: Mapping[str, str]
    tell: Tell


class Parting(NamedTuple):
    """A keeper that has no table any more, or whose table is that of another place."""

    keeper: RouterKeeper
    client: httpx.AsyncClient | None


class Routing:
    """One for the daemon. `open` comes before everything else; without routers nothing costs anything."""

    def __init__(self, config: Config = _NOTHING, writer: StateWriter | None = None) -> None:
        self._writer = writer or StateWriter()
        self.configs = dict(config.routers)  # those in force
        self._servers = {name: _named(config, router) for name, router in config.routers.items()}
        self._clients: dict[str, httpx.AsyncClient | None] = {}
        self._tasks: TaskGroup | None = None
        self._changed: Callable[[int], Awaitable[int]] | None = None
        self.keepers: dict[str, RouterKeeper] = {}

    async def open(
        self, stack: AsyncExitStack, doors: Doors, directory: Path, environment: Mapping[str, str], tell: Tell
    ) -> None:
        """Make the keepers."""
        self._ground = Ground(doors, directory, environment, tell)
        stack.push_async_callback(self._close)
        for config in self.configs.values():
            self._add(config)

    async def _close(self) -> None:
        for client in filter(None, self._clients.values()):
            await client.aclose()

    def _add(self, config: RouterConfig) -> RouterKeeper:
        ground, name = self._ground, config.name
        client = None if config.kind is RouterKind.NGINX else gateway_client(config.url)
        router, doors = self._router(config, client), self._doors_of(name)
        keeper = RouterKeeper(config, router, doors, ground.directory, ground.tell, self._writer)
        self.keepers[name] = keeper
        self._clients[name] = client
        self._begin(keeper)
        return keeper

    def _router(self, config: RouterConfig, client: httpx.AsyncClient | None) -> Router:
        if client is None:
            reload = partial(_reload, config, self._ground.environment)
            return UpstreamFile(config.file, config.upstream_name, reload, _NGINX_SETTLE_S)
        if config.kind is RouterKind.WEBHOOK:
            return Receiver(client, config.name, config.url, config.headers, config.timeout_s)
        return Gateway(client, config.url, config.headers, config.timeout_s)

    def _doors_of(self, router: str) -> Doors:
        return lambda: {name: door for name, door in self._ground.doors().items() if self._has(router, name)}

    def _doors_among(self, servers: frozenset[str] | None) -> Doors:
        return lambda: {name: door for name, door in self._ground.doors().items() if servers is None or name in servers}

    def _has(self, router: str, server: str) -> bool:
        servers = self._servers.get(router, frozenset())
        return servers is None or server in servers

    async def run(self, changed: Callable[[int], Awaitable[int]]) -> None:
        """Keep them all, and those that come, until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks, self._changed = tasks, changed
            for keeper in self.keepers.values():
                self._begin(keeper)
            await anyio.sleep_forever()  # a router may come at any time

    def _begin(self, keeper: RouterKeeper) -> None:
        if self._tasks is not None:
            what = f"router {keeper.config.name}"
            self._tasks.start_soon(guarded, log_bug, what, keeper.run, self._changed, name=what)

    # --- other tables --------------------------------------------------------------------------------------------

    def regroup(self, config: Config) -> None:
        """Other groups are in force; a table that is still to come into force keeps those that it was read with."""
        for name, router in self.configs.items():
            if config.routers.get(name) == router:
                self._servers[name] = _named(config, router)

    def keeps(self, router: str, config: Config) -> bool:
        """Whether the router that is known by this name is one of `config`, perhaps by another name."""
        known = self.configs.get(router)  # None: another change has let go of it meanwhile
        return known is not None and _place(known) in map(_place, config.routers.values())

    async def change(self, config: Config, changes: Sequence[RouterChange]) -> list[Applied]:
        """Bring these tables into force; who comes goes first, so that servers are in one before they leave another."""
        parting = [self._part(change.name) for change in changes if self._goes(change.name, config)]
        kept = [_place(one.keeper.config) in map(_place, config.routers.values()) for one in parting]
        for one in (one for one, stays in zip(parting, kept, strict=True) if stays):
            await one.keeper.end()  # before another one speaks to the same router
        told = {change.name: await self._come(change.name, config) for change in changes}
        async with anyio.create_task_group() as tasks:
            for one, stays in zip(parting, kept, strict=True):
                if stays:
                    tasks.start_soon(self._hand_over, one)
                else:
                    tasks.start_soon(self._leave, one, told)
        self.keepers = {name: self.keepers[name] for name in (*config.routers, *self.keepers) if name in self.keepers}
        return [Applied(change.name, _DONE[change.kind], told[change.name]) for change in changes]

    def _goes(self, name: str, config: Config) -> bool:
        before, after = self.configs.get(name), config.routers.get(name)
        return before is not None and (after is None or _place(before) != _place(after))

    def _part(self, name: str) -> Parting:
        del self.configs[name]
        keeper = self.keepers.pop(name)
        keeper.keep(self._doors_among(self._servers.pop(name)))  # it looks on while others are told of those who come
        return Parting(keeper, self._clients.pop(name))

    async def _come(self, name: str, config: Config) -> str:
        """One that is new, or has another table: what it says to that, "" when all is well, or when there is none."""
        if (router := config.routers.get(name)) is None:
            return ""
        before = self.configs.get(name)
        self.configs[name], self._servers[name] = router, _named(config, router)
        if before is None:
            keeper = self._add(router)
            await keeper.look()
        else:
            keeper = self.keepers[name]
            # When it is the same, nginx has nothing to read again, and a receiver nothing to hear.
            same = _spoken_to(before) == _spoken_to(router)
            await keeper.adapt(router, None if same else self._router(router, self._clients[name]))
        return keeper.trouble

    async def _hand_over(self, one: Parting) -> None:
        """Another one speaks to the same router: whom it has, stays."""
        place = _place(one.keeper.config)
        for heir in [keeper for keeper in self.keepers.values() if _place(keeper.config) == place]:
            await heir.take_over(one.keeper)
        await self._gone(one)

    async def _leave(self, one: Parting, told: dict[str, str]) -> None:
        name = one.keeper.config.name
        problem = await one.keeper.dissolve(quiet=name in self.keepers)
        told[name] = "; ".join(filter(None, (told[name], problem)))
        await self._gone(one, forget=not problem)

    async def _gone(self, one: Parting, *, forget: bool = True) -> None:
        if forget and one.keeper.config.name not in self.keepers:
            one.keeper.forget()
        if one.client is not None:
            await one.client.aclose()

    # --- all of them ---------------------------------------------------------------------------------------------

    def facts(self) -> tuple[RouterFacts, ...]:
        """Each of them in a few words."""
        return tuple(
            RouterFacts(name, one.config.kind.value, one.reachable, one.trouble, one.has)
            for name, one in self.keepers.items()
        )

    # --- of one server -------------------------------------------------------------------------------------------

    def limit_s(self, server: str) -> float:
        """How long its routers may hold a stop up; 0 when it has none."""
        return max((one.leave_limit_s for name, one in self.configs.items() if self._has(name, server)), default=0.0)

    def views(self, server: str) -> tuple[RouterView, ...]:
        """How it stands with each of its routers."""
        return tuple(keeper.view(server) for keeper in self._of(server))

    def missing(self, server: str) -> str:
        """Which of its routers does not hand requests to it yet, and why; "" when all do."""
        absent = [one for one in self.views(server) if one.state != "joined"]
        return "; ".join(f"router {one.name}: {one.state}{one.reason and f', {one.reason}'}" for one in absent)

    async def leave(self, server: str, limit_s: float) -> str:
        """Have all of them let go of it; why some have not within `limit_s`, "" when they have."""
        problems: list[str] = []
        async with anyio.create_task_group() as tasks:
            for keeper in self._of(server):
                tasks.start_soon(self._let_go, keeper, server, min(limit_s, keeper.config.leave_limit_s), problems)
        return "; ".join(sorted(problems))

    async def _let_go(self, keeper: RouterKeeper, server: str, limit_s: float, problems: list[str]) -> None:
        with anyio.move_on_after(limit_s) as limit:
            await keeper.let_go(server)
        if limit.cancelled_caught:
            why = keeper.trouble or "it still lists it"
            problems.append(f"router {keeper.config.name} did not let go within {limit_s:g} s: {why}")

    def _of(self, server: str) -> list[RouterKeeper]:
        return [keeper for name, keeper in self.keepers.items() if self._has(name, server)]


def _named(config: Config, router: RouterConfig) -> frozenset[str] | None:
    """The servers that it is told of; None: all that there are."""
    return frozenset(routed(config, router)) if router.servers else None


def _place(config: RouterConfig) -> tuple[str, ...]:
    """What makes it another router."""
    return (config.kind, config.url, config.file)


def _spoken_to(config: RouterConfig) -> tuple[object, ...]:
    """What there is in how one speaks to it."""
    return (config.headers, config.timeout_s, config.upstream_name, config.reload)


async def _reload(config: RouterConfig, environment: Mapping[str, str]) -> Reloaded:
    """A command that says no has changed nothing; of one that was ended or killed nobody knows."""
    run = await run_hook(config.reload, for_helpers(environment), _RELOAD_LIMIT_S)
    return Reloaded() if run.status == 0 else Reloaded(run.last_line, certain=run.status is not None and run.status > 0)
