"""A start asks the fleet; what it has been told already is waited for instead of being told again."""

from __future__ import annotations

from typing import Any

import anyio
from msgspec.structs import replace

from supervisor.config import Config, DaemonConfig, GroupConfig, ServerConfig
from supervisor.core.fleet.needs import Go, Refuse, Wait
from supervisor.shell import clock
from supervisor.shell.fleet import FleetKeeper
from supervisor.shell.hub import Hub
from supervisor.snapshot import FacetView, ServerSnapshot
from tests.shell.made import snapshot

LIMIT_S = 10.0


class Place:
    """A few servers whose snapshots the test changes."""

    def __init__(self, *servers: ServerConfig, slots: int = 0, **groups: GroupConfig) -> None:
        self.config = Config(DaemonConfig(start_slots=slots), {one.name: one for one in servers}, groups)
        self.servers = {one.name: snapshot(one.name, "stopped", goal="down") for one in servers}
        self.hub = Hub()
        self.keeper = FleetKeeper(self.hub, lambda: self.config, lambda: list(self.servers.values()))

    def put(self, name: str, lifecycle: str, reason: str = "", **fields: Any) -> ServerSnapshot:
        since = FacetView(lifecycle, clock.monotonic(), reason)
        self.servers[name] = replace(snapshot(name, lifecycle, **fields), lifecycle=since)
        self.hub.publish()
        return self.servers[name]


async def test_who_may_start_is_told_at_once() -> None:
    place = Place(ServerConfig("a"))
    place.put("a", "reclaiming")
    assert await place.keeper.admitted("a") == Go()


async def test_nobody_starts_before_a_new_daemon_has_taken_up_everybody() -> None:
    """Who is still to come may be starting, and have the only slot."""
    place = Place(ServerConfig("a"), ServerConfig("b"), slots=1)
    place.put("a", "reclaiming")
    del place.servers["b"]
    assert await place.keeper.admitted("a") == Wait("waits for b, which is not there yet")
    place.put("b", "starting")
    assert await place.keeper.admitted("a") == Wait("waits for a start slot: b is starting; next in line")


async def test_the_first_answer_comes_at_once_and_the_next_when_something_has_changed() -> None:
    place = Place(ServerConfig("a"), ServerConfig("b", requires=("a",)))
    place.put("a", "starting")
    waiting = place.put("b", "reclaiming")
    answer = await place.keeper.admitted("b")
    assert answer == Wait("waits for a, which it requires and which is starting")
    assert place.keeper.told(waiting) == answer.reason

    later: list[object] = []

    async def ask() -> None:
        later.append(await place.keeper.admitted("b"))

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert later == []
            place.put("a", "running")
    assert later == [Go()]
    assert place.keeper.told(waiting) == ""
    came = place.keeper.came(waiting)
    assert came is not None
    assert came >= waiting.lifecycle.since
    assert place.keeper.came(place.put("b", "starting")) is None
    assert place.keeper.came(place.put("b", "reclaiming")) is None, "another start has not waited yet"


async def test_what_is_told_is_forgotten_when_the_start_is_not_wanted_any_more() -> None:
    place = Place(ServerConfig("a"), ServerConfig("b", requires=("a",)))
    place.put("b", "reclaiming")
    await place.keeper.admitted("b")
    assert place.keeper.told(place.servers["b"]) != ""
    assert place.keeper.told(place.put("b", "stopped", goal="down")) == ""
    assert place.keeper.told(place.put("b", "reclaiming", goal="down")) == ""


async def test_slots_and_priorities_of_a_changed_configuration_count_at_once() -> None:
    place = Place(ServerConfig("a"), ServerConfig("b"), slots=1)
    place.put("a", "starting")
    place.put("b", "reclaiming")
    assert isinstance(await place.keeper.admitted("b"), Wait)
    place.config = replace(place.config, daemon=DaemonConfig(start_slots=2))
    assert await place.keeper.admitted("b") == Go()


async def test_what_is_in_the_way_of_a_look_gives_the_slot_to_the_next() -> None:
    place = Place(ServerConfig("a"), ServerConfig("b"), slots=1)
    place.put("a", "reclaiming")
    place.put("b", "reclaiming")
    assert await place.keeper.admitted("a") == Go()
    assert isinstance(await place.keeper.admitted("b"), Wait)
    place.keeper.looked("a", free=False)
    assert await place.keeper.admitted("b") == Go()
    assert place.keeper.looked("b", free=True) == Go()


async def test_who_was_refused_may_start_again_when_the_other_one_is_back() -> None:
    place = Place(ServerConfig("a"), ServerConfig("b", requires=("a",)))
    place.put("a", "fatal", "no such model")
    place.put("b", "reclaiming")
    assert await place.keeper.admitted("b") == Refuse("not started: it requires a, which is fatal: no such model")
    place.put("b", "fatal")
    assert place.keeper.may_start_again() == []
    place.put("a", "starting")
    assert place.keeper.may_start_again() == ["b"]
    place.put("b", "running")
    assert place.keeper.may_start_again() == []
    assert place.keeper.refused == set()


async def test_the_view_tells_who_starts_and_who_waits() -> None:
    place = Place(ServerConfig("a"), ServerConfig("b"), ServerConfig("c", requires=("a",)), slots=1)
    place.put("a", "starting")
    for name in "bc":
        place.put(name, "reclaiming")
        await place.keeper.admitted(name)
    view = place.keeper.view()
    assert (view.slots, view.starting, view.waiting) == (1, ("a",), ("b", "c"))
    assert view.ready_at is None
    assert set(view.unknown) == {"a", "b", "c"}


def test_mates_are_those_of_the_group_that_restarts_together() -> None:
    pair = GroupConfig("pair", ("a", "b"), together=True)
    place = Place(ServerConfig("a"), ServerConfig("b"), ServerConfig("c"), pair=pair)
    assert [place.keeper.mates(name) for name in ("a", "c", "nobody")] == [("b",), (), ()]
