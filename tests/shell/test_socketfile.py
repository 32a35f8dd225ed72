"""A control socket whose file has gone is bound anew, and nobody who is connected notices."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from supervisor.api.access import access_of
from supervisor.api.app import build_tcp_app
from supervisor.api.listeners import bind_unix
from supervisor.api.serve import Binding, serving
from supervisor.config import DaemonConfig
from supervisor.shell.socketfile import SocketFile
from supervisor.shell.sockets import bindings
from tests.api.conftest import connected
from tests.api.fake import FakeControl

LIMIT_S = 10.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run" / "s"


@asynccontextmanager
async def daemon(place: Path) -> AsyncIterator[None]:
    config = DaemonConfig(socket=str(place), socket_mode=0o600, listen="")
    async with serving(bindings(config, FakeControl(), {})) as served, anyio.create_task_group() as tasks:
        tasks.start_soon(SocketFile(served, config, look_s=0.02).run)
        yield
        tasks.cancel_scope.cancel()


async def answered(place: Path) -> None:
    """Whoever comes now is heard, sooner or later."""
    with anyio.fail_after(LIMIT_S):
        while not await anyio.to_thread.run_sync(reachable, place):
            await anyio.sleep(0.01)
    async with connected(str(place)) as client:
        assert (await client.get("/livez")).text == "ok\n"


async def refusal(told: list[EventDict], why: str) -> None:
    """A look has found that the place is taken."""
    with anyio.fail_after(LIMIT_S):
        while not any(str(one.get("problem", "")).endswith(why) for one in told):
            await anyio.sleep(0.01)


def reachable(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(place)) == 0


async def test_a_file_that_was_removed_comes_back_with_its_mode(place: Path) -> None:
    async with daemon(place):
        async with connected(str(place)) as earlier:
            assert (await earlier.get("/livez")).text == "ok\n"
            for _ in range(2):
                place.unlink()
                await answered(place)
            assert (await earlier.get("/livez")).text == "ok\n", "who is connected stays so"
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert not place.exists(), "the end removes the new one"


async def test_a_directory_that_was_removed_is_made_anew(place: Path) -> None:
    async with daemon(place):
        place.rename(place.with_name("old"))
        place.parent.rename(place.parent.with_name("elsewhere"))
        await answered(place)


async def test_no_descriptor_is_left_behind(place: Path) -> None:
    async with daemon(place):
        before = None
        for _ in range(5):
            place.unlink()
            await answered(place)
            now = len(os.listdir("/proc/self/fd"))
            assert before is None or now <= before + 1  # a connection of the test may be on its way out
            before = before or now


async def test_another_daemon_at_the_same_place_is_left_alone_until_it_has_gone(place: Path) -> None:
    async with daemon(place):
        other = place.with_name("other")
        with bind_unix(str(other)):
            other.rename(place)
            theirs = place.stat().st_ino
            with capture_logs() as told:
                await refusal(told, "answers on it; tried again until it can be had")
            assert place.stat().st_ino == theirs
        await answered(place)


async def test_something_else_at_the_place_is_left_alone(place: Path) -> None:
    async with daemon(place):
        place.unlink()
        with capture_logs() as told:
            place.write_text("precious")
            await refusal(told, "exists and is not a socket; tried again until it can be had")
        assert place.read_text() == "precious"
        place.unlink()
        await answered(place)


async def test_a_file_that_is_gone_before_anybody_serves_it_is_no_end(place: Path) -> None:
    """As after an upgrade: the listener is handed over, and its file was removed meanwhile."""
    with bind_unix(str(place)) as listener:
        place.unlink()
        assert Binding(listener, build_tcp_app(FakeControl(), access_of(DaemonConfig(), 0, 0))).lost
