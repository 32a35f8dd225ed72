"""What one attempt's watch posts, looking at the fake engine's real processes and its HTTP."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import anyio
import pytest
from msgspec.structs import replace

from supervisor.actions import AskCanary
from supervisor.core.gpus.views import GpusView, GpuView
from supervisor.core.settings import Settings
from supervisor.edge.process import SpawnPlan, Tree, new_marker, spawn
from supervisor.events import (
    AnyEvent,
    CanaryAnswered,
    DeviceMemorySampled,
    EngineSampled,
    Holder,
    RoleDied,
    TreeEmptied,
    TreeSampled,
)
from supervisor.profile import api_key, facts, load_profile
from supervisor.shell.host import Host
from supervisor.shell.watch import MEMORY_STEP_BYTES, Periods, ServerWatch
from supervisor.snapshot import ServerSnapshot

LIMIT_S = 20.0
QUICK = Periods(starting_s=0.05, serving_s=0.05, absent_s=0.2)
PROFILE = load_profile("sglang")
GIB = 2**30
T = TypeVar("T", bound=AnyEvent)


class FakeDevices:
    """A book with one device that the test fills."""

    def __init__(self) -> None:
        self.sight = "seeing"
        self.held: tuple[Holder, ...] = ()
        self.lease: tuple[int, ...] = ()

    def leased(self, server: str) -> tuple[int, ...]:
        return self.lease

    def view(self) -> GpusView:
        return GpusView(self.sight, 0.0, "", gpus=(GpuView(0, "uuid", "H200", "leased", holders=self.held),))


class Stage:
    """A watch with its surroundings. `events` is everything that it posted."""

    def __init__(self, tree: Tree, port: int, command: tuple[str, ...], periods: Periods) -> None:
        self.tree = tree
        self.events: list[AnyEvent] = []
        self.devices = FakeDevices()
        self.lifecycle = "starting"
        self._news = anyio.Event()
        self.watch = ServerWatch(
            tree,
            Settings(name="kimi", port=port),
            PROFILE,
            facts(PROFILE, command),
            api_key(PROFILE, command),
            cast(Host, SimpleNamespace(cgroups=None, devices=self.devices)),
            self.post,
            self.snapshot,
            periods,
        )

    async def post(self, event: AnyEvent) -> None:
        self.events.append(event)
        self._news.set()
        self._news = anyio.Event()

    def snapshot(self) -> ServerSnapshot:
        return cast(ServerSnapshot, SimpleNamespace(lifecycle=SimpleNamespace(value=self.lifecycle)))

    async def posted(self, kind: type[T], condition: Callable[[T], Any] = lambda _: True) -> T:
        """The first event of this kind, from now on or before, for which the condition holds."""
        seen = 0
        with anyio.fail_after(LIMIT_S):
            while True:
                for event in self.events[seen:]:
                    if isinstance(event, kind) and condition(event):
                        return event
                seen = len(self.events)
                await self._news.wait()

    async def ranks(self, count: int) -> dict[str, int]:
        """Role and rank to pid, once so many are seen."""
        sample = await self.posted(TreeSampled, lambda one: sum(bool(p.role) for p in one.processes) == count)
        return {f"{one.role} {one.rank}".strip(): one.pid for one in sample.processes if one.role}

    async def serving(self, port: int) -> None:
        """Until somebody listens."""
        with anyio.fail_after(LIMIT_S):
            while True:
                with socket.socket() as one:
                    if one.connect_ex(("127.0.0.1", port)) == 0:
                        break
                await anyio.sleep(0.02)
        self.lifecycle = "running"


@asynccontextmanager
async def watching(
    place: Path, *options: str, command: tuple[str, ...] = (), periods: Periods = QUICK
) -> AsyncIterator[tuple[Stage, int]]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    fake = (sys.executable, "-m", "supervisor.simulator", "--port", str(port), "--speed", "500", *options)
    environment = dict(os.environ) | {"PYTHONPATH": str(Path.cwd())}
    plan = SpawnPlan("kimi", 3, command or fake, environment, str(place / "log"), new_marker("kimi", 3), str(place))
    tree = await spawn(plan)
    assert isinstance(tree, Tree), tree
    stage = Stage(tree, port, plan.command, periods)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.watch.run)
            yield stage, port
            stage.watch.stop()
    finally:
        assert isinstance(await tree.kill(LIMIT_S), TreeEmptied)
        tree.close()


# --- processes -----------------------------------------------------------------------------------------------------


async def test_samples_tell_roles_and_a_stopped_rank(tmp_path: Path) -> None:
    async with watching(tmp_path, "--tp", "2") as (stage, _):
        ranks = await stage.ranks(3)
        os.kill(ranks["scheduler TP1"], signal.SIGSTOP)
        await stage.posted(TreeSampled, lambda one: {p.rank for p in one.processes if p.state == "T"} == {"TP1"})
        os.kill(ranks["scheduler TP1"], signal.SIGCONT)


async def test_who_stands_still_while_serving_is_looked_at_as_often_as_one_that_starts(tmp_path: Path) -> None:
    """Whether it still does decides about the server, and only a look can tell."""
    seldom = replace(QUICK, serving_s=600.0)
    async with watching(tmp_path, "--tp", "2", periods=seldom) as (stage, _):
        ranks = await stage.ranks(3)
        os.kill(ranks["scheduler TP1"], signal.SIGSTOP)
        await stage.posted(TreeSampled, lambda one: any(p.state == "T" for p in one.processes))
        stage.lifecycle = "running"
        for _ in range(3):
            stage.events.clear()
            await stage.posted(TreeSampled)
        os.kill(ranks["scheduler TP1"], signal.SIGCONT)


async def test_a_dead_detokenizer_is_posted_at_once(tmp_path: Path) -> None:
    async with watching(tmp_path, "--tp", "2") as (stage, _):
        ranks = await stage.ranks(3)
        killed_at = time.monotonic()
        os.kill(ranks["detokenizer"], signal.SIGKILL)
        died = await stage.posted(RoleDied)
        took_s = time.monotonic() - killed_at
        expected = RoleDied(3, ranks["detokenizer"], "detokenizer")
        assert died in (expected, replace(expected, code=-signal.SIGKILL)), "its parent may reap it first"
        assert took_s < 0.3, f"{took_s * 1000:.0f} ms; 200 are promised on a machine with a free core"


@pytest.mark.parametrize("how", ["quiet", "stop"])
async def test_what_we_end_ourselves_is_no_news(tmp_path: Path, how: str) -> None:
    async with watching(tmp_path, "--tp", "2") as (stage, _):
        ranks = await stage.ranks(3)
        stage.watch.quiet() if how == "quiet" else stage.watch.stop()
        for pid in ranks.values():
            os.kill(pid, signal.SIGKILL)
        if how == "quiet":
            await stage.posted(TreeSampled, lambda one: not any(p.role and p.state != "Z" for p in one.processes))
            await anyio.sleep(0.2)  # for what must not happen there is no event to wait for
        assert not [event for event in stage.events if isinstance(event, RoleDied)]


async def test_the_evidence_gets_those_with_a_role_and_the_leader(tmp_path: Path) -> None:
    async with watching(tmp_path, "--tp", "2") as (stage, _):
        await stage.ranks(3)
        subjects = await stage.watch.subjects()
        assert [one.role for one in subjects[:3]] == ["detokenizer", "scheduler", "scheduler"]
        assert [one.pid for one in subjects if one.leader] == [stage.tree.pid]
        assert subjects[1].title.startswith("sglang::scheduler_TP0")


async def test_nothing_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with watching(tmp_path, "--tp", "2") as (stage, _):
        await stage.ranks(3)
    assert len(os.listdir("/proc/self/fd")) <= before


# --- counters ------------------------------------------------------------------------------------------------------


async def test_counters_are_read_while_serving(tmp_path: Path) -> None:
    async with watching(tmp_path, "--enable-metrics", "--api-key", "sesame") as (stage, port):
        await stage.serving(port)
        first = await stage.posted(EngineSampled, lambda one: one.running == 0)  # its own warm-up may be running
        await stage.watch.ask(AskCanary(3, 10.0))
        await stage.posted(EngineSampled, lambda one: (one.tokens or 0) > (first.tokens or 0))


async def test_an_engine_without_a_page_posts_nothing(tmp_path: Path) -> None:
    async with watching(tmp_path) as (stage, port):
        await stage.serving(port)
        await stage.watch.ask(AskCanary(3, 10.0))
        await anyio.sleep(0.5)  # for what must not happen there is no event to wait for
        assert not [event for event in stage.events if isinstance(event, EngineSampled)]


async def test_a_starting_server_is_not_asked(tmp_path: Path) -> None:
    """Nobody would answer, and what answers may be somebody else on its port."""
    asked = anyio.Event()

    async def handle(stream: anyio.abc.SocketStream) -> None:
        asked.set()
        await stream.aclose()

    async with watching(tmp_path, command=("sleep", "1000")) as (stage, port):
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, handle)
            await anyio.sleep(0.3)  # for what must not happen there is no event to wait for
            assert not asked.is_set()
            stage.lifecycle = "running"
            with anyio.fail_after(LIMIT_S):
                await asked.wait()
            tasks.cancel_scope.cancel()


# --- canary --------------------------------------------------------------------------------------------------------


async def test_a_canary_is_answered_with_the_servers_own_key(tmp_path: Path) -> None:
    async with watching(tmp_path, "--api-key", "sesame") as (stage, port):
        await stage.serving(port)
        await stage.watch.ask(AskCanary(3, 10.0))
        answered = await stage.posted(CanaryAnswered)
        assert (answered.attempt, answered.sane, answered.detail) == (3, True, "")


async def test_a_canary_of_a_stopped_server_is_not_answered(tmp_path: Path) -> None:
    async with watching(tmp_path) as (stage, port):
        await stage.serving(port)
        os.kill((await stage.ranks(2))["scheduler"], signal.SIGSTOP)
        await stage.watch.ask(AskCanary(3, 0.3))
        assert (await stage.posted(CanaryAnswered)).sane is None


# --- devices -------------------------------------------------------------------------------------------------------


async def test_memory_of_ours_is_posted_when_it_moves(tmp_path: Path) -> None:
    async with watching(tmp_path, command=("sleep", "1000")) as (stage, _):
        await stage.posted(TreeSampled)
        stage.devices.held = held(GIB)
        stage.devices.lease = (0,)
        await stage.posted(DeviceMemorySampled, lambda one: one.bytes == GIB)
        stage.devices.held = held(GIB + MEMORY_STEP_BYTES // 2)
        await stage.posted(TreeSampled)
        stage.devices.held = held(2 * GIB)
        await stage.posted(DeviceMemorySampled, lambda one: one.bytes == 2 * GIB)
        stage.devices.sight, stage.devices.held = "blind", ()
        count = len(stage.events)
        while len(stage.events) < count + 3:
            await anyio.sleep(0.02)
    memory = [event.bytes for event in stage.events if isinstance(event, DeviceMemorySampled)]
    assert memory == [GIB, 2 * GIB], "a blind feed says nothing, least of all that the memory is gone"


async def test_a_server_without_devices_posts_no_memory(tmp_path: Path) -> None:
    async with watching(tmp_path, command=("sleep", "1000")) as (stage, _):
        stage.devices.held = held(GIB)
        await stage.posted(TreeSampled)
        await stage.posted(TreeSampled, lambda one: one is not stage.events[0])
    assert not [event for event in stage.events if isinstance(event, DeviceMemorySampled)]


def held(size: int) -> tuple[Holder, ...]:
    return (
        Holder(0, size, pid=1, kind="server", server="kimi"),
        Holder(0, 5 * GIB, pid=2, kind="foreign"),
        Holder(0, 7 * GIB, pid=3, kind="server", server="other"),
    )
