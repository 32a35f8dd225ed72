"""Sockets: stale and living ones, modes, silent and malformed clients, an end that is bounded."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import stat
import subprocess
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import httpx
import pytest

from supervisor.api.limits import Limits
from supervisor.api.listeners import SocketInUseError, activated, bind_tcp, bind_unix
from tests.api.conftest import connected
from tests.api.fake import FakeControl, dialled, served, served_on_both, snapshot


def test_the_socket_has_the_mode_and_no_more(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        listener = bind_unix(str(tmp_path / "run" / "s"), 0o660)
    finally:
        os.umask(before)
    with listener:
        assert stat.S_IMODE((tmp_path / "run" / "s").stat().st_mode) == 0o660
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another group")
def test_the_socket_belongs_to_the_group(tmp_path: Path) -> None:
    with bind_unix(str(tmp_path / "s"), 0o660, gid=12345):
        assert (tmp_path / "s").stat().st_gid == 12345


def test_a_stale_socket_of_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "s"))
    dead.listen()
    dead.close()
    with bind_unix(str(tmp_path / "s")), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s"))


async def test_a_living_daemon_is_not_replaced(tmp_path: Path) -> None:
    async with served(FakeControl(snapshot()), tmp_path) as path, connected(path) as client:
        with pytest.raises(SocketInUseError, match=rf"a living daemon \(pid {os.getpid()}\) answers on it"):
            await asyncio.to_thread(bind_unix, path)
        assert (await client.get("/livez")).text == "ok\n"


def test_a_daemon_too_busy_to_accept_is_alive(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(path)
        busy.listen(0)
        waiting.connect(path)
        with pytest.raises(SocketInUseError):
            bind_unix(path)


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_no_socket_is_left_alone(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "s"
    match kind:
        case "file":
            place.write_text("precious")
        case "directory":
            place.mkdir()
        case _:
            place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="exists and is not a socket"):
        bind_unix(str(place))
    assert os.path.lexists(place)


def test_a_path_that_is_too_long_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too long"):
        bind_unix(str(tmp_path / ("x" * 120)))


def test_a_tcp_port_that_is_taken_is_an_os_error() -> None:
    with bind_tcp("127.0.0.1", 0) as first, pytest.raises(OSError, match="in use"):
        bind_tcp("127.0.0.1", first.getsockname()[1])


async def test_the_file_is_removed_at_the_end(tmp_path: Path) -> None:
    async with served(FakeControl(), tmp_path) as path:
        assert Path(path).exists()
    assert not Path(path).exists()


async def test_the_file_of_a_successor_is_kept(tmp_path: Path) -> None:
    async with served(FakeControl(), tmp_path) as path:
        Path(path).unlink()
        successor = bind_unix(path)
    with successor:
        assert Path(path).exists()


async def test_the_end_cuts_followers(tmp_path: Path) -> None:
    control = FakeControl(snapshot("draft"))
    async with served(control, tmp_path, limits=Limits(goodbye_s=0.1)) as path, asyncio.timeout(5):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /v1/events?follow=true HTTP/1.1\r\nHost: d\r\n\r\n")
        await reader.readuntil(b"follow\n\n")
        await control.waiters(1)
    await reader.read()
    writer.close()
    await control.waiters(0)


async def test_the_end_lets_a_short_answer_finish(tmp_path: Path) -> None:
    control = FakeControl(snapshot("draft"))
    async with connected(str(tmp_path / "s")) as client:
        async with served(control, tmp_path):
            waiting = asyncio.create_task(client.get("/v1/servers/draft/wait"))
            await control.waiters(1)
            await control.put(snapshot("draft", "running"))
        assert (await waiting).json()["outcome"] == "reached"


def test_a_socket_that_systemd_passed_is_taken_over_and_its_file_stays(tmp_path: Path) -> None:
    script = """
import asyncio, os, sys
from pathlib import Path
from supervisor.api.app import build_app
from supervisor.api.listeners import activated
from supervisor.api.serve import Binding, serving
from tests.api.fake import OWNER, FakeControl, snapshot

async def main():
    assert activated(os.environ, os.getpid() + 1) == []
    (listener,) = activated(os.environ | {"LISTEN_PID": str(os.getpid())}, os.getpid())
    async with serving([Binding(listener, build_app(FakeControl(snapshot()), OWNER), owned=False)]):
        reader, writer = await asyncio.open_unix_connection(sys.argv[1])
        writer.write(b"GET /livez HTTP/1.1\\r\\nHost: d\\r\\nConnection: close\\r\\n\\r\\n")
        print((await reader.read()).splitlines()[-1].decode())
        writer.close()
    assert Path(sys.argv[1]).exists()

os.dup2(int(sys.argv[2]), 3)  # where systemd puts it, before anything else is open
asyncio.run(main())
"""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        command = [sys.executable, "-c", script, path, str(listener.fileno())]
        environment = {**os.environ, "LISTEN_FDS": "1", "LISTEN_PID": "1"}
        ran = subprocess.run(
            command, pass_fds=[listener.fileno()], env=environment, capture_output=True, text=True, timeout=30
        )
    assert (ran.stdout, ran.returncode) == ("ok\n", 0), ran.stderr


def test_what_systemd_holds_for_us_is_no_socket() -> None:
    """It comes beside them, and is closed before anybody asks for sockets."""
    environment = {"LISTEN_PID": "7", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "leader/kimi/1/x:leader/draft/1/y"}
    assert activated(environment, 7) == []


async def test_an_idle_server_does_not_wake_up(tmp_path: Path) -> None:
    """uvicorn's own server wakes ten times a second."""
    async with served(FakeControl(snapshot()), tmp_path) as path, connected(path) as client:
        await client.get("/livez")
        loop = asyncio.get_running_loop()
        pending = [handle for handle in loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        assert all(handle.when() - loop.time() > 1 for handle in pending)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\nTransfer-Encoding: x\r\n\r\n",
        b"POST /v1/servers/kimi/stop HTTP/1.1\r\nHost: d\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\r\n" * 1000 + b"nonsense\r\n\r\n",
        b"A" * 200_000,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 50_000,
    ],
)
async def test_malformed_http_ends_its_own_connection_only(
    client: httpx.AsyncClient, control: FakeControl, tmp_path: Path, garbage: bytes
) -> None:
    async with dialled(tmp_path / "s") as (reader, writer), asyncio.timeout(20):
        with suppress(ConnectionError):
            writer.write(garbage)
            await writer.drain()
            await reader.read()
        assert (await client.get("/livez")).text == "ok\n"
    assert control.requests == []


async def test_a_client_that_says_nothing_is_let_go(tmp_path: Path) -> None:
    limits = Limits(head_timeout_s=0.05)
    async with served(FakeControl(snapshot()), tmp_path, limits=limits) as path, asyncio.timeout(5):
        async with dialled(path) as (silent, _):
            assert await read_or_end(silent) == b""
        async with dialled(path) as (half, writer):
            writer.write(b"GET /livez HT")
            assert await read_or_end(half) == b""


async def test_a_client_that_waits_for_an_answer_is_not_silent(tmp_path: Path) -> None:
    limits = Limits(head_timeout_s=0.05)
    async with served(FakeControl(snapshot()), tmp_path, limits=limits) as path, dialled(path) as (reader, writer):
        writer.write(b"GET /v1/servers/kimi/wait?timeout_s=0.3 HTTP/1.1\r\nHost: d\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"\r\n")


@pytest.mark.parametrize("path", ["/v1/servers/kimi/log?offset=0&follow=true", "/v1/servers/kimi/log?offset=0"])
async def test_a_reader_who_takes_nothing_is_let_go(tmp_path: Path, control: FakeControl, path: str) -> None:
    (tmp_path / "log").write_bytes(b"x" * 20_000_000)
    await control.put(snapshot("kimi", "running", log_path=str(tmp_path / "log")))
    async with served(control, tmp_path, limits=Limits(send_timeout_s=0.1)) as address:
        with socket.socket(socket.AF_UNIX) as lazy:
            lazy.connect(address)
            lazy.sendall(f"GET {path} HTTP/1.1\r\nHost: d\r\n\r\n".encode())
            assert await asyncio.to_thread(hung_up, lazy)


def hung_up(client: socket.socket) -> bool:
    """Whether the other side ends the connection, without reading anything of it."""
    poll = select.poll()
    poll.register(client, select.POLLRDHUP)
    return bool(poll.poll(10_000))


async def test_a_body_that_never_comes_is_given_up(tmp_path: Path) -> None:
    limits = Limits(body_timeout_s=0.05)
    async with (
        served(FakeControl(snapshot()), tmp_path, limits=limits) as path,
        dialled(path) as (reader, writer),
        asyncio.timeout(5),
    ):
        writer.write(b"POST /v1/servers/kimi/start HTTP/1.1\r\nHost: d\r\nContent-Length: 50\r\n\r\n{")
        assert b"408" in await reader.readuntil(b"\r\n")
        assert b"did not arrive" in await read_to_end(reader)


async def test_the_number_of_connections_is_bounded(tmp_path: Path) -> None:
    async with (
        served(FakeControl(snapshot()), tmp_path, limits=Limits(connections=1, admin_connections=2)) as path,
        dialled(path),
        dialled(path),
        connected(path) as client,
    ):
        assert (await client.get("/livez")).status_code == 503


async def test_a_flood_of_one_listener_leaves_the_other_free(tmp_path: Path) -> None:
    limits = Limits(connections=4, admin_connections=0, tcp_connections=3, refused_connections=2)
    async with (
        AsyncExitStack() as stack,
        served_on_both(FakeControl(snapshot()), tmp_path, limits) as (path, port),
        asyncio.timeout(10),
    ):
        flood = [await stack.enter_async_context(dialled(port)) for _ in range(5)]
        answers = [await answered(*one) for one in flood[:3]]
        assert answers == [b"503"] * 3  # too many are open, and these end
        flood = flood[3:] + [await stack.enter_async_context(dialled(port)) for _ in range(4)]
        assert await answered(*flood[-1]) == b""  # beyond what is told 503, connections are not even kept
        async with connected(path) as client:
            assert (await client.get("/v1/servers")).status_code == 200


async def test_the_second_head_has_its_time_too(tmp_path: Path) -> None:
    async with (
        served(FakeControl(snapshot()), tmp_path, limits=Limits(head_timeout_s=0.1, keep_alive_s=60)) as path,
        dialled(path) as (reader, writer),
        asyncio.timeout(5),
    ):
        writer.write(b"GET /livez HTTP/1.1\r\nHost: d\r\n\r\n")
        assert b"200" in await reader.readuntil(b"ok\n")
        writer.write(b"GET /")
        assert await read_to_end(reader) == b""


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The status, b"" when the connection was cut."""
    writer.write(b"GET /livez HTTP/1.1\r\nHost: d\r\n\r\n")
    return (await read_or_end(reader))[9:12]


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    whole = b""
    while data := await read_or_end(reader):
        whole += data
    return whole


async def read_or_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(65536)
    except ConnectionError:
        return b""
