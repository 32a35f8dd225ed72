"""Roles follow the credentials that the kernel vouches for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.api.access import Access, Peer, Role, access_of, gid_of, peer_of
from supervisor.config import DaemonConfig


def peer(uid: int, *gids: int) -> Peer:
    return Peer(1, uid, frozenset(gids))


@pytest.fixture
def access() -> Access:
    daemon = DaemonConfig(admins=("2001", "@3001"), operators=("2002", "@3002"), readers=("2003", "@3003"))
    return access_of(daemon, own_uid=990, socket_gid=991)


@pytest.mark.parametrize(
    ("who", "role"),
    [
        (peer(0), Role.ADMIN),
        (peer(990), Role.ADMIN),
        (peer(2001), Role.ADMIN),
        (peer(5, 3001), Role.ADMIN),
        (peer(5, 991), Role.OPERATE),
        (peer(2002), Role.OPERATE),
        (peer(5, 3002, 7), Role.OPERATE),
        (peer(2003), Role.READ),
        (peer(5, 3003), Role.READ),
        (peer(5, 6), Role.NOBODY),
        (peer(5), Role.NOBODY),
        (peer(991), Role.NOBODY),
        (peer(2003, 991), Role.OPERATE),
    ],
)
def test_the_highest_role_counts(access: Access, who: Peer, role: Role) -> None:
    assert access.role_of(who) is role


def test_each_role_includes_the_ones_below() -> None:
    assert Role.NOBODY < Role.READ < Role.OPERATE < Role.ADMIN


def test_names_become_numbers() -> None:
    access = access_of(DaemonConfig(admins=("root", "@root")), own_uid=990, socket_gid=991)
    assert access.admin_uids == {0, 990}
    assert access.admin_gids == {0}
    assert gid_of("root") == 0
    assert gid_of("12345") == 12345


def test_the_peer_is_who_connected() -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        found = peer_of(here)
    assert found == Peer(os.getpid(), os.getuid(), frozenset({os.getgid(), *os.getgroups()}))
    assert found.text == f"uid {os.getuid()} pid {os.getpid()}"


def test_tcp_has_no_identity() -> None:
    with socket.socket(socket.AF_INET) as one:
        assert peer_of(one) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("groups", [[], [3001], list(range(5000, 5200))])
def test_another_user_is_seen_with_all_groups(tmp_path: Path, groups: list[int]) -> None:
    path = tmp_path / "s"
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.getuid() and directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o011)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen()
        script = (
            f"import os, socket; os.setgroups({groups}); os.setgid(4001); os.setuid(4002)\n"
            f"s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r}); s.recv(1)"
        )
        client = subprocess.Popen([sys.executable, "-c", script])
        listener.settimeout(20)
        connection, _ = listener.accept()
        with connection:
            assert peer_of(connection) == Peer(client.pid, 4002, frozenset({4001, *groups}))
        assert client.wait(20) == 0
