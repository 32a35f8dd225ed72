"""Whoever needs another server is asked to end first; mates are told of a failure; the last request counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from supervisor.actions import Announce
from supervisor.config import Config, DaemonConfig, GroupConfig, GroupOrder, ServerConfig
from supervisor.core.restart import Disposition, Next
from supervisor.events import MateFailed, RestartRequested, StartRequested, StopRequested
from supervisor.shell import clock
from supervisor.shell.ends import Ends
from supervisor.shell.fleet import FleetKeeper
from supervisor.shell.hub import Hub
from supervisor.shell.loop import ServerLoop
from supervisor.snapshot import DiagnosisView, FacetView, IncidentView, ServerSnapshot
from tests.shell.made import snapshot


class Place:
    """Servers that do nothing by themselves; what each was asked is in `asked`, in order."""

    def __init__(self, *servers: ServerConfig, **groups: GroupConfig) -> None:
        self.config = Config(DaemonConfig(), {one.name: one for one in servers}, groups)
        self.asked: list[tuple[str, object]] = []
        self.loops = {one.name: self.loop(one.name) for one in servers}
        self.hub = Hub()
        self.keeper = FleetKeeper(
            self.hub, lambda: self.config, lambda: [one.snapshot() for one in self.loops.values()]
        )
        self.ends: Ends

    def loop(self, name: str) -> Any:
        async def ask(event: object) -> None:
            self.asked.append((name, event))
            if isinstance(event, StopRequested):  # as the core does at once
                goal = {"goal": "down"}
                lifecycle = one.facts.lifecycle.value
                self.put(name, lifecycle if event.hold or lifecycle != "running" else "stopping", **goal)
            if isinstance(event, RestartRequested) and one.facts.lifecycle.value == "running":
                self.put(name, "stopping")

        one = SimpleNamespace(name=name, ask=ask, facts=snapshot(name, "running"))
        one.snapshot = lambda: one.facts
        follows = Disposition(Next.BACKOFF, "exited; restart 1", clock.monotonic() + 60)
        one.server = SimpleNamespace(follows=follows, state="running")
        return one

    def put(self, name: str, lifecycle: str, **fields: Any) -> ServerSnapshot:
        self.loops[name].facts = snapshot(name, lifecycle, **fields)
        self.hub.publish()
        found: ServerSnapshot = self.loops[name].facts
        return found

    async def settled(self) -> None:
        await anyio.wait_all_tasks_blocked()

    def stops(self) -> list[str]:
        """Who was really asked to end."""
        return [name for name, event in self.asked if isinstance(event, StopRequested) and not event.hold]

    def fails(self, name: str, after: str = "reclaiming", before: str = "stopping") -> None:
        incident = IncidentView(1, 0.0, 1.0, "exited", "healthy", "serving")
        self.put(name, after, incidents=(incident,))
        self.ends.changed(name, Announce("lifecycle", before, after, "exited with status 1", 1))


@asynccontextmanager
async def at(place: Place) -> AsyncIterator[Place]:
    async with anyio.create_task_group() as tasks:
        place.ends = Ends(place.keeper, lambda name: cast(ServerLoop, place.loops.get(name)), place.hub, tasks)
        yield place
        tasks.cancel_scope.cancel()


def chain() -> Place:
    return Place(
        ServerConfig("store"), ServerConfig("kimi", requires=("store",)), ServerConfig("proxy", requires=("kimi",))
    )


def pair() -> Place:
    group = GroupConfig("pair", ("a", "b"), GroupOrder.LISTED, together=True)
    return Place(ServerConfig("a"), ServerConfig("b"), ServerConfig("c", requires=("b",)), pair=group)


async def test_dependants_end_first_one_after_another() -> None:
    async with at(chain()) as place:
        await place.ends.request("store", StopRequested("anna"))
        assert place.stops() == ["proxy"]
        assert [one.facts.goal for one in place.loops.values()] == ["down", "down", "down"], "all are told at once"
        assert place.ends.why("store") == "to be stopped after kimi"
        assert place.ends.why("kimi") == "to be stopped after proxy"
        assert place.ends.why("proxy") == ""

        place.put("proxy", "reclaiming", goal="down")
        await place.settled()
        assert place.stops() == ["proxy", "kimi"]
        place.put("kimi", "stopped", goal="down")
        await place.settled()
        assert place.stops() == ["proxy", "kimi", "store"]
        assert place.keeper.held == set()
        assert place.asked[0] == ("proxy", StopRequested("anna, as store, which it requires, is to stop"))


async def test_one_that_cannot_be_killed_is_not_waited_for() -> None:
    async with at(chain()) as place:
        await place.ends.request("kimi", StopRequested("anna"))
        place.put("proxy", "quarantined", goal="down")
        await place.settled()
        assert place.stops() == ["proxy", "kimi"]


async def test_a_start_takes_back_a_stop_that_waits() -> None:
    async with at(chain()) as place:
        await place.ends.request("kimi", StopRequested("anna"))
        await place.ends.request("kimi", StartRequested("anna"))
        assert place.ends.why("kimi") == ""
        place.put("proxy", "stopped", goal="down")
        await place.settled()
        assert place.stops() == ["proxy"]
        assert place.keeper.held == set()


async def test_the_last_of_several_requests_counts() -> None:
    async with at(chain()) as place:
        await place.ends.request("kimi", StopRequested("anna"))
        await place.ends.request("kimi", StopRequested("bert", grace_s=1.0))
        place.put("proxy", "stopped", goal="down")
        await place.settled()
        assert place.asked[-1] == ("kimi", StopRequested("bert", grace_s=1.0))
        assert place.stops().count("kimi") == 1


async def test_dependants_restart_with_it() -> None:
    async with at(chain()) as place:
        place.put("proxy", "stopped", goal="down")
        await place.ends.request("store", RestartRequested("anna"))
        assert place.asked == [("kimi", RestartRequested("anna", "restart asked by anna; it goes with store"))]
        assert place.keeper.held == {"store"}, "nobody starts against it meanwhile"
        assert place.ends.why("store") == "to be restarted after kimi"

        place.put("kimi", "reclaiming")
        await place.settled()
        assert place.asked[-1] == ("store", RestartRequested("anna"))
        assert place.keeper.held == set()


async def test_at_the_end_of_the_daemon_whoever_needs_others_goes_first() -> None:
    async with at(chain()) as place:
        await place.ends.stop_all("shutdown")
        for name in ("proxy", "kimi", "store"):
            await place.settled()
            assert place.stops()[-1] == name
            place.put(name, "stopped", goal="down")


async def test_a_stop_that_an_earlier_daemon_held_is_carried_out() -> None:
    async with at(chain()) as place:
        place.put("proxy", "draining", goal="down")
        place.put("kimi", "running", goal="down")
        await place.ends.go_on()
        assert place.stops() == []
        place.put("proxy", "stopped", goal="down")
        await place.settled()
        assert place.stops() == ["kimi"]


@pytest.mark.parametrize(
    ("lifecycle", "follows", "told"),
    [
        ("backoff", Next.BACKOFF, "after a pause"),
        ("reclaiming", Next.RELAUNCH, "after a pause"),
        ("reclaiming", Next.FATAL, "never"),
        ("fatal", Next.FATAL, "never"),
        ("starting", Next.RELAUNCH, "after a pause"),
    ],
)
async def test_mates_hear_of_a_failure_that_no_daemon_told(lifecycle: str, follows: Next, told: str) -> None:
    """It died while none was there, or before the new one had taken up everybody."""
    now = clock.monotonic()
    async with at(pair()) as place:
        attempt = 2 if lifecycle == "starting" else 1
        incident = IncidentView(1, 0.0, now, "exited", "healthy", "serving")
        place.put("a", lifecycle, attempt=attempt, incidents=(incident,))
        place.loops["a"].server.follows = Disposition(follows, "exited", now)
        await place.ends.go_on()
        ((name, event),) = place.asked
        assert (name, isinstance(event, MateFailed)) == ("b", True)
        assert (event.delay_s is None) == (told == "never")  # type: ignore[attr-defined]
        assert place.keeper.held == set()


async def test_mates_do_not_hear_of_what_they_have_outlived() -> None:
    async with at(pair()) as place:
        now = clock.monotonic()
        place.put("a", "backoff", incidents=(IncidentView(1, 0.0, now - 5.0, "exited", "healthy", "serving"),))
        place.put("b", "running", started=now)  # it has been told
        await place.ends.go_on()
        place.put("a", "fatal", incidents=(IncidentView(1, 0.0, now - 3600.0, "exited", "healthy", "serving"),))
        place.put("b", "running")  # somebody works with it alone
        await place.ends.go_on()
        assert place.asked == []


async def test_an_unknown_server_is_told() -> None:
    async with at(chain()) as place:
        with pytest.raises(KeyError):
            await place.ends.request("nobody", StopRequested("anna"))


async def test_mates_restart_together_the_last_first() -> None:
    async with at(pair()) as place:
        place.put("c", "stopped", goal="down")
        await place.ends.request("a", RestartRequested("anna", "new driver"))
        assert place.asked == [("b", RestartRequested("anna", "new driver; it goes with a"))]
        await place.settled()
        assert len(place.asked) == 1
        place.put("b", "reclaiming")
        await place.settled()
        assert place.asked[-1] == ("a", RestartRequested("anna", "new driver"))


async def test_a_failure_is_told_to_the_mates_with_its_pause() -> None:
    async with at(pair()) as place:
        place.fails("a")
        assert place.keeper.held == {"b"}, "a does not start before b has heard of it"
        await place.settled()
        ((name, event),) = place.asked
        assert name == "b"
        assert isinstance(event, MateFailed)
        assert (event.mate, event.reason) == ("a", "exited; restart 1")
        assert event.delay_s is not None
        assert 0 < event.delay_s <= 60
        assert place.keeper.held == set()


async def test_what_is_given_up_is_over_for_the_mates() -> None:
    async with at(pair()) as place:
        place.fails("b", "fatal", "reclaiming")
        await place.settled()
        assert place.asked == [("a", MateFailed("b", "exited with status 1", None))]


async def test_what_to_change_is_not_told_of_the_mates() -> None:
    async with at(pair()) as place:
        found = DiagnosisView("model-path-missing", "no", "Correct the path.")
        place.put("b", "fatal", diagnosis=found)
        reason = "model-path-missing: a restart cannot help"
        place.ends.changed("b", Announce("lifecycle", "reclaiming", "fatal", f"{reason}: Correct the path.", 1))
        await place.settled()
        assert place.asked == [("a", MateFailed("b", reason, None))]


async def test_an_end_that_somebody_asked_for_is_no_failure() -> None:
    async with at(pair()) as place:
        place.put("a", "reclaiming")
        place.ends.changed("a", Announce("lifecycle", "stopping", "reclaiming", "restart asked", 1))
        place.put("b", "reclaiming", goal="down")
        place.ends.changed("b", Announce("lifecycle", "stopping", "reclaiming", "stop asked", 1))
        await place.settled()
        assert place.asked == []


async def test_the_end_of_a_server_that_people_work_on_is_no_failure_either() -> None:
    async with at(pair()) as place:
        incident = IncidentView(1, 0.0, 1.0, "exited", "healthy", "serving")
        place.put("a", "reclaiming", incidents=(incident,), maintenance=FacetView("on", 0.0, "pause asked"))
        place.ends.changed("a", Announce("lifecycle", "stopping", "reclaiming", "exited with status 1", 1))
        await place.settled()
        assert place.asked == []


async def test_who_was_missing_another_one_is_started_when_it_comes_back() -> None:
    async with at(pair()) as place:
        place.put("b", "fatal")
        place.put("c", "reclaiming")
        await place.keeper.admitted("c")
        place.put("c", "fatal")
        place.put("b", "starting")
        place.ends.changed("b", Announce("lifecycle", "reclaiming", "starting", "all is free", 2))
        await place.settled()
        assert place.asked == [("c", StartRequested("the return of what it requires"))]
