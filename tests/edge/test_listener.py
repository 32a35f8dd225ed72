"""Whose socket listens is told by inode and process, not by who answers."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.edge import listener
from supervisor.edge.listener import PortHolder, holder, whose
from supervisor.events import Listener

LISTEN = """
import socket, sys
s = socket.socket(socket.AF_INET6 if sys.argv[1] == "6" else socket.AF_INET)
s.bind(("::1" if sys.argv[1] == "6" else "127.0.0.1", 0)); s.listen()
print(s.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def other_process(family: str = "4", **options: object) -> Iterator[tuple[int, int]]:
    """A process of its own that listens; yields its pid and port."""
    process = subprocess.Popen(
        [sys.executable, "-c", LISTEN, family],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    )
    with process:
        line = process.stdout.readline()
        if not line:
            pytest.skip("no IPv6 on loopback here")
        yield process.pid, int(line)
        process.stdin.close()
        process.wait()


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


async def test_our_own_socket_is_ours() -> None:
    with listening() as made:
        port = made.getsockname()[1]
        assert await whose(port, [os.getpid()]) is Listener.OURS
        assert await whose(port, [1, os.getpid()]) is Listener.OURS


async def test_a_foreign_socket_is_foreign() -> None:
    with other_process() as (pid, port):
        assert await whose(port, [os.getpid()]) is Listener.FOREIGN
        assert await whose(port, [pid]) is Listener.OURS


async def test_an_empty_tree_owns_nothing() -> None:
    with listening() as made:
        assert await whose(made.getsockname()[1], []) is Listener.FOREIGN


async def test_one_among_many_listeners_is_found() -> None:
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(listening()).getsockname()[1] for _ in range(400)]  # the kernel answers in parts
        assert {await whose(port, [os.getpid()]) for port in (ports[0], ports[200], ports[-1])} == {Listener.OURS}


async def test_nobody_listens_on_a_bound_port() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert await whose(bound.getsockname()[1], [os.getpid()]) is Listener.NONE
        assert await holder(bound.getsockname()[1]) is None


async def test_a_connection_to_the_port_is_no_listener() -> None:
    with listening() as made:
        port = made.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, made.accept()[0]:
            assert await whose(client.getsockname()[1], [os.getpid()]) is Listener.NONE


async def test_ipv6_counts() -> None:
    with other_process("6") as (pid, port):
        assert await whose(port, [pid]) is Listener.OURS


async def test_a_dead_pid_in_the_tree_does_no_harm() -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    with listening() as made:
        assert await whose(made.getsockname()[1], [gone.pid, os.getpid()]) is Listener.OURS


async def test_the_holder_is_named() -> None:
    with other_process() as (pid, port):
        found = await holder(port)
    assert found is not None
    assert (found.port, found.pid) == (port, pid)
    assert found.user
    assert sys.executable in found.command
    assert str(found).startswith(f"port {port} is held by pid {pid} ({found.user}): {sys.executable} ")


def test_a_holder_that_cannot_be_seen_is_said_to_be_one() -> None:
    assert str(PortHolder(80)) == "port 80 is held by a process that cannot be seen from here"


async def test_a_title_cannot_forge_the_line() -> None:
    code = LISTEN.replace("sys.stdin.read()", "open('/proc/self/comm', 'w').write('x'); sys.stdin.read()")
    command = [sys.executable, "-c", code + "#\x1b[31m\n", "4"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        found = await holder(int(process.stdout.readline()))
        process.kill()
    assert found is not None
    assert str(found).isprintable()
    assert len(found.command) <= 200


async def test_another_users_process_that_we_cannot_look_into_is_unknown() -> None:
    """Not root: the tree runs as somebody else, so its descriptors are hidden. That is no proof of a stranger."""
    if os.geteuid() != 0:
        pytest.skip("acting as another user needs root")
    code = """
import anyio, os, sys
from supervisor.edge.listener import whose
async def main(port, pid):
    await whose(port, [])  # everything is imported while it can be read
    os.setresuid(65534, 65534, 65534)
    print(await whose(port, [pid]))
anyio.run(main, int(sys.argv[1]), int(sys.argv[2]))
"""
    with other_process() as (pid, port):
        answer = subprocess.run([sys.executable, "-c", code, str(port), str(pid)], capture_output=True, text=True)
    assert answer.stdout == "unknown\n", answer.stderr


def test_the_table_of_proc_says_the_same_as_the_kernel() -> None:
    """The way without sock_diag: both must find the same sockets."""
    with listening() as made:
        port = made.getsockname()[1]
        by_table = listener._read_table("/proc/net/tcp", port)
        assert by_table == list(listener._ask_kernel(socket.AF_INET, port))
        assert by_table == [os.fstat(made.fileno()).st_ino]


def test_a_machine_without_ipv6_has_no_table(tmp_path: Path) -> None:
    assert listener._read_table(str(tmp_path / "tcp6"), 80) == []
