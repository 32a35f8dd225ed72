"""The daemon's own sockets: one that cannot be had says which, who has it, and what to do."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from supervisor.api.listeners import bind_unix
from supervisor.config import DaemonConfig
from supervisor.shell.sockets import ListenProblem, bindings, explained
from tests.api.fake import FakeControl


def refused(socket_path: Path, listen: str = "") -> ListenProblem:
    with pytest.raises(ListenProblem) as caught:
        bindings(DaemonConfig(socket=str(socket_path), listen=listen), FakeControl(), {})
    return caught.value


async def test_a_port_in_other_hands_is_named_with_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        told = await explained(refused(tmp_path / "s", f"127.0.0.1:{port}"))
    assert told.startswith(
        f"cannot listen on 127.0.0.1:{port} (daemon.listen): port {port} is held by pid {os.getpid()} ("
    )
    assert told.endswith("; nothing was started; end it, or choose another address with daemon.listen")
    assert not (tmp_path / "s").exists(), "no socket's file is left behind"


async def test_a_port_that_was_freed_meanwhile_is_still_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        problem = refused(tmp_path / "s", f"127.0.0.1:{port}")
    told = await explained(problem)
    assert told == f"cannot listen on 127.0.0.1:{port}: Address already in use; nothing was started"


async def test_an_address_of_another_host_has_no_holder(tmp_path: Path) -> None:
    told = await explained(refused(tmp_path / "s", "192.0.2.1:9877"))
    assert told == "cannot listen on 192.0.2.1:9877: Cannot assign requested address; nothing was started"


async def test_a_socket_that_another_daemon_answers_on_names_its_pid(tmp_path: Path) -> None:
    with bind_unix(str(tmp_path / "s")):
        told = await explained(refused(tmp_path / "s"))
    who = f"a living daemon (pid {os.getpid()})"
    assert told == f"cannot listen on {tmp_path}/s: {who} answers on it; nothing was started"


async def test_a_place_for_the_socket_that_is_taken_is_the_one_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("x")
    told = await explained(refused(tmp_path / "s", "127.0.0.1:0"))
    assert told == f"cannot listen on {tmp_path}/s: exists and is not a socket; nothing was started"


def test_an_unknown_group_of_the_socket_is_told(tmp_path: Path) -> None:
    with pytest.raises(ListenProblem, match=r"daemon\.socket_group"):
        bindings(
            DaemonConfig(socket=str(tmp_path / "s"), listen="", socket_group="no-such-group-here"), FakeControl(), {}
        )
