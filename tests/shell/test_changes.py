"""What bringing the file into force would restart, counted as it will happen."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import anyio

from supervisor.config import Config, GroupConfig, ServerConfig, differences
from supervisor.shell.changes import Changes
from supervisor.shell.roster import Roster


class Servers:
    """Of a roster, what the count looks at."""

    def __init__(self, up: Collection[str], *names: str) -> None:
        self.up = up
        self.servers = {name: ServerConfig(name, ("engine",)) for name in names}

    def configs(self) -> dict[str, ServerConfig]:
        return self.servers

    def is_up(self, name: str) -> bool:
        return name in self.up


class ReadChanges(Changes):
    """As a reading of the file leaves it."""

    file: Config

    @property
    def available(self) -> Config:
        return self.file


async def restarts(servers: Servers, *changed: str, together: Collection[str] = ()) -> list[tuple[str, ...]]:
    groups = {"gang": GroupConfig("gang", tuple(together), together=True)} if together else {}
    fresh = {name: ServerConfig(name, ("engine", "-v")) for name in changed}
    running, file = Config(servers=servers.servers), Config(servers=servers.servers | fresh, groups=groups)
    async with anyio.create_task_group() as tasks:
        changes = ReadChanges(cast("Roster", cast("Any", servers)), lambda: running, "", tasks, dict)
        changes.file = file
        return changes.restarts(differences(running, file))


async def test_each_that_is_up_is_one_restart_and_who_rests_is_none() -> None:
    assert await restarts(Servers(("a", "b"), "a", "b", "c"), "a", "b", "c") == [("a",), ("b",)]
    assert await restarts(Servers((), "a"), "a") == []


async def test_a_group_that_lives_together_is_one_restart_of_all_that_are_up() -> None:
    """Also of those that have not changed, and by the groups of the file: they come into force before."""
    servers = Servers(("a", "b", "c"), "a", "b", "c", "d")
    assert await restarts(servers, "a", "b", together=("a", "b", "d")) == [("a", "b")]
    assert await restarts(servers, "b", "c", together=("a", "b")) == [("b", "a"), ("c",)]
