"""Says who listens on a TCP port: this tree, somebody else (named), or nobody.

A 200 proves nothing about *this* server as long as the socket could be another's (two servers on one port: the second
says "ready" and the first answers). The kernel lists listening sockets with their inodes; an inode belongs to
the process that has it among its descriptors.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import msgspec

from supervisor.config import mask_command
from supervisor.events import Listener
from supervisor.lines import printable
from supervisor.threads import Threads

Arguments = TypeVarTuple("Arguments")
Found = TypeVar("Found")

LOOK_LIMIT_S = 5.0
_looks = Threads("a process", 16)
_LISTEN = 10  # TCP_LISTEN of include/net/tcp_states.h
COMMAND_CHARACTERS = 200


class PortHolder(msgspec.Struct, frozen=True):
    """Whose socket listens on the port. pid 0: it could not be told (another user's process, and we are not root)."""

    port: int
    pid: int = 0
    user: str = ""
    command: str = ""

    def __str__(self) -> str:
        if not self.pid:
            return f"port {self.port} is held by a process that cannot be seen from here"
        return f"port {self.port} is held by pid {self.pid} ({self.user or 'unknown user'}): {self.command}"


async def whose(port: int, tree: Iterable[int]) -> Listener:
    """Whether the port's listening socket is held by one of the tree's processes. Bounded; UNKNOWN when over."""
    try:
        if not (inodes := await _listening(port)):
            return Listener.NONE
        return await _look(port, _whose, inodes, tuple(tree))
    except TimeoutError:
        return Listener.UNKNOWN


def _whose(inodes: set[int], tree: tuple[int, ...]) -> Listener:
    for pid in tree:
        if inodes & set(_socket_inodes(pid)):
            return Listener.OURS
    # An unreadable process of the tree (another user's, and we are not root) may be the holder.
    return Listener.FOREIGN if all(_readable(pid) for pid in tree) else Listener.UNKNOWN


async def holder(port: int) -> PortHolder | None:
    """Who listens on the port, found among all processes of the machine; None when nobody does."""
    try:
        if not (inodes := await _listening(port)):
            return None
        return await _look(port, _holder, port, inodes)
    except TimeoutError:
        return PortHolder(port)


def _holder(port: int, inodes: set[int]) -> PortHolder:
    for name in os.listdir("/proc"):
        if name.isdigit() and inodes & set(_socket_inodes(int(name))):
            return PortHolder(port, int(name), _user(int(name)), _command(int(name)))
    return PortHolder(port)


async def _look(port: int, work: Callable[[*Arguments], Found], *arguments: *Arguments) -> Found:
    return await _looks.run(work, *arguments, limit_s=LOOK_LIMIT_S, thing=f"port {port}")


async def _listening(port: int) -> set[int]:
    """The inodes of those who listen on the port.

    By netlink, which filters in the kernel and has answered as soon as it is asked: no thread is needed. The tables of
    /proc/net hold every connection of the machine.
    """
    found: set[int] = set()
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            found.update(_ask_kernel(family, port))
        except OSError:  # no sock_diag in this kernel or sandbox
            table = "/proc/net/tcp6" if family == socket.AF_INET6 else "/proc/net/tcp"
            found.update(await _look(port, _read_table, table, port))
    return found


def _ask_kernel(family: int, port: int) -> Iterator[int]:
    netlink_sock_diag, sock_diag_by_family, nlm_f_request_dump = 4, 20, 0x301
    request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 1 << _LISTEN) + bytes(48)
    header = struct.pack("=IHHII", 16 + len(request), sock_diag_by_family, nlm_f_request_dump, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, netlink_sock_diag) as link:
        link.setblocking(False)
        link.sendto(header + request, (0, 0))
        while True:
            found, finished = _parse_answers(link.recv(256 * 1024), port)
            yield from found
            if finished:
                return


def _parse_answers(data: bytes, port: int) -> tuple[list[int], bool]:
    """struct inet_diag_msg: the source port in network order at 4, the inode at 68, behind a 16-byte header."""
    nlmsg_error, nlmsg_done = 2, 3
    found: list[int] = []
    position = 0
    while position + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, position)
        if kind == nlmsg_done:
            return found, True
        if kind == nlmsg_error:
            raise OSError(-struct.unpack_from("=i", data, position + 16)[0], "sock_diag refused")
        if struct.unpack_from("!H", data, position + 16 + 4)[0] == port:
            found.append(struct.unpack_from("=I", data, position + 16 + 68)[0])
        position += (length + 3) & ~3
    return found, False


def _read_table(path: str, port: int) -> list[int]:
    try:
        lines = Path(path).read_text().splitlines()[1:]
    except FileNotFoundError:  # no IPv6
        return []
    fields = (line.split() for line in lines)
    return [
        int(field[9])
        for field in fields
        if int(field[3], 16) == _LISTEN and int(field[1].rpartition(":")[2], 16) == port
    ]


def _socket_inodes(pid: int) -> Iterator[int]:
    directory = f"/proc/{pid}/fd"
    try:
        names = os.listdir(directory)
    except OSError:  # ended, or not ours to see
        return
    for name in names:
        try:
            target = os.readlink(f"{directory}/{name}")
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1])


def _readable(pid: int) -> bool:
    return os.access(f"/proc/{pid}/fd", os.R_OK | os.X_OK) or not os.path.exists(f"/proc/{pid}")


def _user(pid: int) -> str:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container's user
        return str(uid)


def _command(pid: int) -> str:
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    words = mask_command(data.decode("utf-8", "backslashreplace").rstrip("\0").split("\0"))
    return printable(" ".join(words)[:COMMAND_CHARACTERS])
