"""Who may do what on the control socket, by the peer credentials that the kernel vouches for."""

from __future__ import annotations

import enum
import grp
import pwd
import socket
import struct
from functools import cache

import msgspec

from supervisor.config import DaemonConfig

_SO_PEERGROUPS = 59  # <asm-generic/socket.h>, Linux 4.13; Python has no name for it
_GETSOCKOPT_BYTES_MAX = 1024  # Python's own limit


class Role(enum.IntEnum):
    """Each role includes the ones below it."""

    NOBODY = 0
    READ = 1
    OPERATE = 2
    ADMIN = 3


class Peer(msgspec.Struct, frozen=True):
    """The process at the other end of a Unix socket, as it was when it connected."""

    pid: int
    uid: int
    gids: frozenset[int]

    @property
    def text(self) -> str:
        """How events name who asked."""
        return f"uid {self.uid} pid {self.pid}"


class Access(msgspec.Struct, frozen=True):
    """The rules: users by uid and groups by gid for each role."""

    admin_uids: frozenset[int]
    operator_gids: frozenset[int]
    admin_gids: frozenset[int] = frozenset()
    operator_uids: frozenset[int] = frozenset()
    reader_uids: frozenset[int] = frozenset()
    reader_gids: frozenset[int] = frozenset()

    def role_of(self, peer: Peer) -> Role:
        """The highest role the peer has."""
        if peer.uid in self.admin_uids or peer.gids & self.admin_gids:
            return Role.ADMIN
        if peer.uid in self.operator_uids or peer.gids & self.operator_gids:
            return Role.OPERATE
        if peer.uid in self.reader_uids or peer.gids & self.reader_gids:
            return Role.READ
        return Role.NOBODY


def operates(peer: Peer, principals: tuple[str, ...]) -> bool:
    """Whether the peer is one of the users and groups ("alice", "1000", "@gpu-users")."""
    uids, gids = _principals(principals)
    return peer.uid in uids or bool(peer.gids & gids)


def access_of(config: DaemonConfig, own_uid: int, socket_gid: int) -> Access:
    """Root and the daemon's own user administer, the socket's group operates, the rest is configured."""
    admin_uids, admin_gids = _principals(config.admins)
    operator_uids, operator_gids = _principals(config.operators)
    reader_uids, reader_gids = _principals(config.readers)
    return Access(
        admin_uids=admin_uids | {0, own_uid},
        admin_gids=admin_gids,
        operator_uids=operator_uids,
        operator_gids=operator_gids | {socket_gid},
        reader_uids=reader_uids,
        reader_gids=reader_gids,
    )


def peer_of(connection: socket.socket) -> Peer | None:
    """Who is connected; None for anything but a Unix socket."""
    if connection.family != socket.AF_UNIX:
        return None
    ucred = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("iII", ucred)
    return Peer(pid, uid, frozenset((gid, *_supplementary_gids(connection))))


def _supplementary_gids(connection: socket.socket) -> tuple[int, ...]:
    """SO_PEERCRED tells the primary group alone. What cannot be asked costs a role, it never adds one."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GETSOCKOPT_BYTES_MAX)
    except OSError:  # ERANGE: a user in more than 256 groups; ENOPROTOOPT: an older kernel
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)


@cache
def _principals(names: tuple[str, ...]) -> tuple[frozenset[int], frozenset[int]]:
    """Uids and gids of "alice", "1000", "@gpu-users"; the loader has checked that they exist."""
    uids, gids = set[int](), set[int]()
    for name in names:
        if name.startswith("@"):
            gids.add(gid_of(name[1:]))
        else:
            uids.add(int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid)
    return frozenset(uids), frozenset(gids)


def gid_of(name: str) -> int:
    """The number of a group given by name or number. Raises KeyError."""
    return int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
