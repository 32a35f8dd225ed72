"""Makes the sockets that we are asked on: mode and owner from the first moment, a living daemon's never taken away."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

from supervisor.api.access import peer_of
from supervisor.edge import fdstore

BACKLOG = 256
CONNECT_TIMEOUT_S = 1.0
_FIRST_PASSED = 3  # SD_LISTEN_FDS_START


class SocketInUseError(Exception):
    """A living daemon answers on the socket."""


def bind_unix(path: str, mode: int = 0o660, gid: int | None = None) -> socket.socket:
    """A listening socket at `path`. A stale one of a dead daemon is replaced; a living one raises SocketInUseError.

    The directory is made when missing. OSError says what else went wrong.
    """
    place = Path(path)
    _make_directory(place.parent)
    _clear_stale(place)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        _bind_with_mode(listener, path, mode, gid)
    except BaseException:
        listener.close()
        raise
    return listener


def _make_directory(place: Path) -> None:
    """Everybody may pass through it, whatever the umask: the socket's own mode says who may connect."""
    before = os.umask(0o022)
    try:
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
    finally:
        os.umask(before)


def _bind_with_mode(listener: socket.socket, path: str, mode: int, gid: int | None) -> None:
    """The file appears with no rights for others and gets its mode before anybody can be accepted."""
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    if gid is not None:
        os.chown(path, -1, gid)
    os.chmod(path, mode)
    listener.listen(BACKLOG)


def _clear_stale(place: Path) -> None:
    try:
        status = place.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise OSError(errno.EEXIST, "exists and is not a socket", str(place))
    if by := _who_answers(str(place)):
        raise SocketInUseError(f"{by} answers on it")
    place.unlink(missing_ok=True)


def _who_answers(path: str) -> str:
    """Only a refusal proves that nobody listens, which is ""; a full backlog or a busy daemon is a living one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(CONNECT_TIMEOUT_S)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return ""
        except (BlockingIOError, TimeoutError):
            return "a living daemon"
        peer = peer_of(probe)
    return f"a living daemon (pid {peer.pid})" if peer else "a living daemon"


def activated(environment: Mapping[str, str], pid: int) -> list[socket.socket]:
    """The listening sockets that systemd passed to this process (sd_listen_fds(3)), from descriptor 3 on."""
    if environment.get("LISTEN_PID") != str(pid):
        return []
    count = environment.get("LISTEN_FDS", "")
    descriptors = range(_FIRST_PASSED, _FIRST_PASSED + (int(count) if count.isascii() and count.isdigit() else 0))
    held = fdstore.passed(environment, pid)  # beside them, and closed by now
    return [taken_over(descriptor) for descriptor in descriptors if descriptor not in held]


def taken_over(descriptor: int) -> socket.socket:
    """A listening socket that somebody else has made; what we start does not inherit it."""
    os.set_inheritable(descriptor, False)
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    return listener


def bind_tcp(host: str, port: int) -> socket.socket:
    """A listening TCP socket. OSError when the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
