"""Holds all routers of the configuration, and has servers leave them before they are asked to end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio

from supervisor.api.control import RouterFacts
from supervisor.config import Config, RouterConfig, RouterKind, routed
from supervisor.edge.hook import run_hook
from supervisor.edge.router import Gateway, Receiver, Reloaded, Router, UpstreamFile, gateway_client
from supervisor.shell.environment import for_helpers
from supervisor.shell.guard import guarded, log_bug
from supervisor.shell.router import Door, Doors, RouterKeeper, Tell
from supervisor.shell.writer import StateWriter
from supervisor.snapshot import RouterView

_RELOAD_LIMIT_S = 30.0
_NGINX_SETTLE_S = 1.0
_NOTHING = Config()


class Routing:
    """One for the daemon. `open` comes before everything else; without routers nothing costs anything."""

    def __init__(self, config: Config = _NOTHING, writer: StateWriter | None = None) -> None:
        self._writer = writer
        self._configs = config.routers
        self._servers = {
            name: frozenset(routed(config, router)) if router.servers else None
            for name, router in config.routers.items()
        }
        self.keepers: dict[str, RouterKeeper] = {}

    async def open(
        self, stack: AsyncExitStack, doors: Doors, directory: Path, environment: Mapping[str, str], tell: Tell
    ) -> None:
        """Make the keepers. `doors` are all servers; each router is shown its own."""
        for name, config in self._configs.items():
            router = await self._made(stack, config, environment)
            self.keepers[name] = RouterKeeper(
                *(config, router, self._doors_of(name, doors), directory, tell, self._writer)
            )

    async def _made(self, stack: AsyncExitStack, config: RouterConfig, environment: Mapping[str, str]) -> Router:
        if config.kind is RouterKind.NGINX:
            reload = partial(_reload, config, environment)
            return UpstreamFile(config.file, config.upstream_name, reload, _NGINX_SETTLE_S)
        client = await stack.enter_async_context(gateway_client(config.url))
        if config.kind is RouterKind.WEBHOOK:
            return Receiver(client, config.name, config.url, config.headers, config.timeout_s)
        return Gateway(client, config.url, config.headers, config.timeout_s)

    def _doors_of(self, router: str, doors: Doors) -> Doors:
        def own() -> dict[str, Door]:
            return {name: door for name, door in doors().items() if self._has(router, name)}

        return own

    def _has(self, router: str, server: str) -> bool:
        servers = self._servers[router]
        return servers is None or server in servers

    async def run(self, changed: Callable[[int], Awaitable[int]]) -> None:
        """Keep them all until cancelled."""
        async with anyio.create_task_group() as tasks:
            for name, keeper in self.keepers.items():
                tasks.start_soon(guarded, log_bug, f"router {name}", keeper.run, changed, name=f"router {name}")

    def facts(self) -> tuple[RouterFacts, ...]:
        """Each of them in a few words."""
        return tuple(
            RouterFacts(name, one.config.kind.value, one.reachable, one.trouble, one.has)
            for name, one in self.keepers.items()
        )

    # --- of one server -------------------------------------------------------------------------------------------

    def limit_s(self, server: str) -> float:
        """How long its routers may hold a stop up; 0 when it has none."""
        return max((one.leave_limit_s for name, one in self._configs.items() if self._has(name, server)), default=0.0)

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


async def _reload(config: RouterConfig, environment: Mapping[str, str]) -> Reloaded:
    """A command that says no has changed nothing; of one that was ended or killed nobody knows."""
    run = await run_hook(config.reload, for_helpers(environment), _RELOAD_LIMIT_S)
    return Reloaded() if run.status == 0 else Reloaded(run.last_line, certain=run.status is not None and run.status > 0)
