"""The loop of one server: order, ticks, and what a bug in a decision costs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from supervisor.actions import Announce, AnyAction, CheckDevices, Probe
from supervisor.core.server import Server
from supervisor.events import AnyEvent, DevicesChecked, LogGrew, PauseRequested, StartRequested, StopRequested, Ticked
from supervisor.shell import clock
from supervisor.shell.host import Host
from supervisor.shell.hub import Hub
from supervisor.shell.loop import ServerLoop, to_be_saved

Decide = Callable[[AnyEvent], list[AnyAction]]


class FakeServer:
    """Decides whatever the test says; due when the test says."""

    def __init__(self, decide: Decide) -> None:
        self.settings = SimpleNamespace(name="a")
        self.due: float | None = None
        self.seen: list[AnyEvent] = []
        self._decide = decide
        self.handled = anyio.Event()

    def handle(self, event: AnyEvent, now: float) -> list[AnyAction]:
        self.seen.append(event)
        self.handled.set()
        self.handled = anyio.Event()
        return self._decide(event)

    def deadline(self) -> float | None:
        return self.due


class FakeJournal:
    def __init__(self) -> None:
        self.rows: list[tuple[str, bytes]] = []

    def append(self, kind: str, server: str, attempt: int, mono: float, wall: float, payload: bytes) -> bool:
        self.rows.append((kind, payload))
        return True


class Stage:
    """A loop with its surroundings."""

    def __init__(self, decide: Decide) -> None:
        self.server = FakeServer(decide)
        self.journal = FakeJournal()
        self.hub = Hub()
        self.announced: list[Announce] = []
        self.carried: list[AnyAction] = []
        self.heard: list[AnyEvent | AnyAction] = []
        host = cast(Host, SimpleNamespace(journal=self.journal, hub=self.hub, heard=self.hear))
        self.saved: list[int] = []  # how much had been carried out by then
        self.loop = ServerLoop(
            cast(Server, self.server),
            host,
            lambda _, change: self.announced.append(change),
            self.save,
        )
        self.carry: Callable[[AnyAction], None] = self.carried.append

    async def save(self, _: Server) -> None:
        self.saved.append(len(self.carried))

    def hear(self, name: str, what: AnyEvent | AnyAction) -> None:
        assert name == "a"
        self.heard.append(what)


@asynccontextmanager
async def turning(stage: Stage) -> AsyncIterator[Stage]:
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.loop.run, stage.carry)
            yield stage
            tasks.cancel_scope.cancel()


def nothing(_: AnyEvent) -> list[AnyAction]:
    return []


async def test_events_are_handled_in_order_and_asked_ones_before_the_answer() -> None:
    async with turning(Stage(nothing)) as stage:
        await stage.loop.post(StartRequested("a"))
        await stage.loop.ask(StopRequested("b"))
        assert stage.server.seen == [StartRequested("a"), StopRequested("b")]


async def test_actions_are_journaled_and_carried_out_and_announcements_told() -> None:
    change = Announce("goal", "down", "up", "asked")
    async with turning(Stage(lambda _: [change, CheckDevices(1)])) as stage:
        await stage.loop.ask(StartRequested("a"))
        assert stage.carried == [CheckDevices(1)]
        assert stage.announced == [change]
        assert stage.heard == [change, CheckDevices(1), StartRequested("a")], "everything is counted"
        assert [kind for kind, _ in stage.journal.rows] == ["event", "action", "action"]
        assert stage.hub.count == 1


async def test_growth_of_the_log_and_idle_ticks_are_not_journaled() -> None:
    async with turning(Stage(nothing)) as stage:
        await stage.loop.ask(LogGrew(1, 10, 1))
        await stage.loop.ask(Ticked())
        assert stage.journal.rows == []


async def test_a_bug_in_counting_costs_no_action() -> None:
    stage = Stage(lambda _: [CheckDevices(1)])

    def hear(_: str, what: AnyEvent | AnyAction) -> None:
        raise KeyError(what)

    stage.loop._host.heard = hear
    async with turning(stage):
        await stage.loop.ask(StartRequested("a"))
        assert stage.carried == [CheckDevices(1)]
        assert {told.after for told in stage.announced} == {"bug"}


async def test_a_tick_comes_at_the_deadline() -> None:
    stage = Stage(nothing)
    stage.server.due = clock.monotonic() + 0.02
    async with turning(stage):
        while not stage.server.seen:
            await stage.server.handled.wait()
        assert stage.server.seen[0] == Ticked()


async def test_a_bug_in_a_decision_costs_that_event_alone() -> None:
    def decide(event: AnyEvent) -> list[AnyAction]:
        if isinstance(event, StartRequested):
            raise KeyError("x")
        return [CheckDevices(1)]

    async with turning(Stage(decide)) as stage:
        await stage.loop.ask(StartRequested("a"))  # answered all the same: nobody may wait for ever
        (told,) = stage.announced
        assert (told.facet, told.after) == ("supervisor", "bug")
        assert told.reason == "error of the supervisor itself, handling StartRequested: KeyError: 'x'"
        assert stage.hub.count == 1, "followers are woken"
        await stage.loop.ask(StopRequested("b"))
        assert stage.carried == [CheckDevices(1)]


async def test_a_bug_in_every_tick_neither_spins_nor_starves_the_mailbox() -> None:
    def decide(event: AnyEvent) -> list[AnyAction]:
        if isinstance(event, Ticked):
            raise ZeroDivisionError
        return []

    stage = Stage(decide)
    stage.server.due = clock.monotonic() - 60.0  # stays: the decision that would move it raises
    async with turning(stage):
        while not stage.server.seen:
            await stage.server.handled.wait()
        for _ in range(50):
            await stage.loop.ask(StopRequested("b"))
        assert stage.server.seen.count(Ticked()) == 1
        assert stage.loop.overdue_s() == 0.0, "a loop that turns is not hung: systemd must not restart the daemon"


async def test_an_action_that_cannot_be_begun_does_not_cost_the_next_one() -> None:
    stage = Stage(lambda _: [CheckDevices(1), Probe(1, 28.0)])

    def carry(action: AnyAction) -> None:
        if isinstance(action, CheckDevices):
            raise OSError("no")
        stage.carried.append(action)

    stage.carry = carry
    async with turning(stage):
        await stage.loop.ask(StartRequested("a"))
        assert stage.carried == [Probe(1, 28.0)]
        assert [told.reason for told in stage.announced] == [
            "error of the supervisor itself, beginning CheckDevices: OSError: no"
        ]


async def test_an_event_after_the_end_is_dropped() -> None:
    async with turning(Stage(nothing)) as stage:
        await stage.loop.ask(StartRequested("a"))
    await stage.loop.post(StopRequested("late"))
    await stage.loop.ask(StopRequested("late"))
    assert stage.server.seen == [StartRequested("a")]


async def test_a_bug_is_logged_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    from structlog.testing import capture_logs

    def decide(_: AnyEvent) -> list[Any]:
        raise KeyError("x")

    with capture_logs() as logged:
        async with turning(Stage(decide)) as stage:
            await stage.loop.ask(StartRequested("a"))
    (line,) = logged
    assert (line["event"], line["server"], line["where"]) == ("bug", "a", "handling StartRequested")
    assert isinstance(line["exc_info"], KeyError)


async def test_a_bug_in_an_event_does_not_put_off_what_is_due() -> None:
    """A line that nobody can read comes again and again; the kill after the grace period must not wait for it."""

    def decide(event: AnyEvent) -> list[AnyAction]:
        if isinstance(event, LogGrew):
            raise KeyError("hostile")
        return nothing(event)

    stage = Stage(decide)
    async with turning(stage):
        await stage.loop.ask(LogGrew(1, 1, 1))
        stage.server.due = clock.monotonic()
        await stage.loop.ask(LogGrew(1, 1, 1))
        with anyio.fail_after(0.5):
            while Ticked() not in stage.server.seen:
                await stage.server.handled.wait()
        stage.server.due = None


@pytest.mark.parametrize("facet", ["goal", "lifecycle", "maintenance"])
async def test_what_the_next_daemon_must_know_is_saved_before_anything_is_carried_out(facet: str) -> None:
    stage = Stage(lambda _: [CheckDevices(1), Announce(facet, "a", "b", "asked")])
    async with turning(stage):
        await stage.loop.ask(PauseRequested("anna"))
    assert stage.saved == [0]
    assert stage.carried == [CheckDevices(1)]


class SlowlySaved(Stage):
    """A record that is not on disk before the test says so."""

    def __init__(self, decide: Decide) -> None:
        super().__init__(decide)
        self.asked, self.on_disk = anyio.Event(), anyio.Event()

    async def save(self, _: Server) -> None:
        self.asked.set()
        await self.on_disk.wait()
        await super().save(_)

    async def answer(self) -> None:
        self.on_disk.set()


async def test_what_waits_for_its_record_is_neither_carried_out_nor_overtaken() -> None:
    stage = SlowlySaved(lambda _: [CheckDevices(1)])
    async with turning(stage):
        await stage.loop.post(DevicesChecked(1, True))
        await stage.loop.post(StartRequested("a"))
        await stage.asked.wait()
        await anyio.wait_all_tasks_blocked()
        assert (stage.carried, stage.loop.settled) == ([], False)
        assert stage.server.seen == [DevicesChecked(1, True)]
        stage.on_disk.set()
        await stage.loop.ask(StopRequested("b"))
        assert (len(stage.carried), stage.loop.settled) == (3, True)


async def test_an_end_in_the_midst_of_a_save_costs_no_action() -> None:
    stage = SlowlySaved(lambda _: [CheckDevices(1)])
    with anyio.fail_after(10):
        async with anyio.create_task_group() as ending, anyio.create_task_group() as tasks:
            tasks.start_soon(stage.loop.run, stage.carry)
            await stage.loop.post(DevicesChecked(1, True))
            await stage.asked.wait()
            tasks.cancel_scope.cancel()
            ending.start_soon(stage.answer)
    assert stage.carried == [CheckDevices(1)]


async def test_who_waits_for_calm_hears_of_a_save_that_asks_for_nothing() -> None:
    async with turning(Stage(nothing)) as stage:
        await stage.loop.ask(DevicesChecked(1, True))
        assert (stage.saved, stage.hub.count) == ([0], 1)
        await stage.loop.ask(StartRequested("a"))
        assert stage.hub.count == 1, "nothing has changed"


def test_what_devices_were_found_is_saved_and_ticks_are_not() -> None:
    assert to_be_saved(DevicesChecked(1, False, "held by pid 9"), [])
    assert to_be_saved(StopRequested("anna"), []), "an update may be about to start again what is down"
    assert not to_be_saved(Ticked(), [CheckDevices(1), Announce("verdict", "idle", "busy", "")])
