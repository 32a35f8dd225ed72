"""What bringing the file into force restarts: who goes with whom, who is left alone, counted as it will happen."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import anyio
from msgspec.structs import replace

from supervisor.api.control import Applied
from supervisor.config import Config, GroupConfig, ServerConfig, differences, load
from supervisor.config.groups import ties
from supervisor.shell.changes import Changes
from supervisor.shell.roster import Roster
from supervisor.shell.routing import Routing


class Servers:
    """A roster that notes what it is asked. `ending`: nobody wants them up, and they are not at rest yet."""

    def __init__(self, up: Collection[str], *names: str, ending: Collection[str] = ()) -> None:
        self.up = up
        self.ending = ending
        self.servers = {name: ServerConfig(name, ("engine",)) for name in names}
        self.asked: list[str] = []
        self.calm = anyio.Event()

    def configs(self) -> dict[str, ServerConfig]:
        return self.servers

    def loop(self, name: str) -> object:
        return self.servers.get(name)

    async def add_again(self, config: ServerConfig) -> None:
        self.servers[config.name] = config

    async def heed_routers(self) -> list[str]:
        self.asked.append("heed routers")
        return list(self.ending)

    async def one_is_calm(self, names: Collection[str]) -> None:
        await self.calm.wait()

    def is_up(self, name: str) -> bool:
        return name in self.up or name in self.ending

    def is_wanted(self, name: str) -> bool:
        return name in self.up

    @contextmanager
    def coming_back(self, names: Collection[str]) -> Iterator[None]:
        self.asked.append(f"coming back: {' '.join(names)}")
        yield

    async def stop(self, name: str, by: str, grace_s: float | None = None) -> None:
        self.asked.append(f"stop {name}")

    async def start(self, name: str, by: str) -> None:
        self.asked.append(f"start {name}")

    async def start_again(self, name: str, by: str) -> None:
        self.asked.append(f"start {name}")

    async def replace(self, config: ServerConfig) -> None:
        self.servers[config.name] = config
        self.asked.append(f"replace {config.name}")

    async def replace_by_restart(self, config: ServerConfig, by: str, grace_s: float | None = None) -> None:
        self.asked.append(f"replace {config.name} by a restart of it alone")


class ReadChanges(Changes):
    """As a reading of the file leaves it."""

    file: Config

    @property
    def available(self) -> Config:
        return self.file


class Stage:
    """Servers, and a file in which some have changed and some restart together."""

    def __init__(self, servers: Servers, *changed: str, together: Collection[str] = ()) -> None:
        self.servers = servers
        groups = {"gang": GroupConfig("gang", tuple(together), together=True)} if together else {}
        fresh = {name: ServerConfig(name, ("engine", "-v")) for name in changed}
        self.file = Config(servers=servers.servers | fresh, groups=groups)

    def running(self) -> Config:
        return Config(servers=self.servers.servers)

    async def restarts(self) -> list[tuple[str, ...]]:
        async with anyio.create_task_group() as tasks:
            return self.changes(tasks).restarts(differences(self.running(), self.file))

    async def rolled(self, name: str) -> Applied:
        async with anyio.create_task_group() as tasks:
            return await self.changes(tasks).roll(name, "anna", 30.0)

    def changes(self, tasks: anyio.abc.TaskGroup) -> Changes:
        roster = cast("Roster", cast("Any", self.servers))
        changes = ReadChanges(roster, self.running, "", tasks, lambda: ties(self.file))
        changes.file = self.file
        return changes


async def test_each_that_is_wanted_up_is_one_restart_and_who_rests_or_ends_is_none() -> None:
    servers = Servers(("a", "b"), "a", "b", "c", "d", ending=("d",))
    assert await Stage(servers, "a", "b", "c", "d").restarts() == [("a",), ("b",)]


async def test_a_group_that_lives_together_is_one_restart_of_all_that_are_up() -> None:
    """Also of those that have not changed, and by the groups of the file: they come into force before."""
    servers = Servers(("a", "b", "c"), "a", "b", "c", "d")
    assert await Stage(servers, "a", "b", together=("a", "b", "d")).restarts() == [("a", "b")]
    assert await Stage(servers, "b", "c", together=("a", "b")).restarts() == [("b", "a"), ("c",)]


async def test_those_that_restart_together_end_and_start_in_order() -> None:
    servers = Servers(("a", "b", "c"), "a", "b", "c")
    assert (await Stage(servers, "a", "b", together=("a", "b", "c")).rolled("a")).kind == "restarted"
    assert servers.asked == [
        "coming back: a b c",
        *("stop c", "stop b", "stop a"),
        *("replace a", "replace b"),
        *("start a", "start b", "start c"),
    ]


async def test_a_mate_that_people_are_ending_is_not_started_by_the_change_of_another() -> None:
    servers = Servers(("a",), "a", "b", ending=("b",))
    await Stage(servers, "a", together=("a", "b")).rolled("a")
    assert servers.asked == ["replace a by a restart of it alone"]


async def test_the_change_of_one_that_people_are_ending_restarts_nobody() -> None:
    servers = Servers(("b",), "a", "b", ending=("a",))
    await Stage(servers, "a", "b", together=("a", "b")).rolled("a")
    assert servers.asked == ["replace a by a restart of it alone"]


async def test_a_change_does_not_wait_for_who_is_ending_to_know_its_routers() -> None:
    """A drain may take hours: its core is told when it is over, and nobody asks again afterwards."""
    servers = Servers(("a",), "a", ending=("a",))
    stage = Stage(servers, "b", "c")
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            changes = stage.changes(tasks)
            await changes.add("b", "anna")
            await changes.add("c", "anna")
            assert servers.asked == ["start b", "heed routers", "start c", "heed routers"]
            servers.ending = ()
            servers.calm.set()
    assert servers.asked[4:] == ["heed routers"]


async def test_two_who_bring_the_same_routers_into_force_do_it_once(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    bare = f'[daemon]\nstate_dir = "{tmp_path}/st"\nlog_dir = "{tmp_path}/lg"\n[server.a]\ncommand = ["engine"]\n'
    path.write_text(f'{bare}[router.lb]\nkind = "nginx"\nfile = "{tmp_path}/up.conf"\nreload = ["true"]\n')
    routing, servers = Routing(), Servers((), "a")

    def running() -> Config:
        return replace(load(path), routers=dict(routing.configs))

    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        await routing.open(stack, dict, tmp_path / "routers", {"PATH": "/usr/bin:/bin"}, lambda *_: None)
        roster = cast("Roster", cast("Any", servers))
        changes = Changes(roster, running, str(path), tasks, dict, routing)

        async def twice(*, free_only: bool) -> list[Applied]:
            told: list[Applied] = []

            async def once() -> None:
                told.extend(await changes.reroute("anna", free_only=free_only))

            with anyio.fail_after(20):
                async with anyio.create_task_group() as both:
                    both.start_soon(once)
                    both.start_soon(once)
            return told

        assert await twice(free_only=True) == [Applied("lb", "added")]
        path.write_text(bare)
        assert await twice(free_only=True) == [Applied("lb", "skipped")] * 2
        assert await twice(free_only=False) == [Applied("lb", "removed")]
        assert (routing.configs, routing.keepers) == ({}, {})
