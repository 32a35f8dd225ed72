"""Gets the sockets that the daemon is asked on: those that systemd or the code before passed, our own for the rest."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisor.api import access, listeners
from supervisor.api.access import Access
from supervisor.api.app import build_app, build_tcp_app
from supervisor.api.control import Control
from supervisor.api.serve import Binding
from supervisor.config import DaemonConfig
from supervisor.edge.listener import holder
from supervisor.shell.upgrade.handover import Handover


class ListenProblem(Exception):  # noqa: N818 - a fact for the operator, not a bug
    """A socket cannot be had; the text is the one line that says why. `port` is taken by somebody."""

    def __init__(self, where: str, why: str, port: int = 0) -> None:
        super().__init__(f"cannot listen on {where}: {why}")
        self.where = where
        self.port = port


async def explained(problem: ListenProblem, outcome: str = "nothing was started") -> str:
    """The line about a socket that cannot be had; of a port that is taken with whoever has it, and what to do."""
    by = await holder(problem.port) if problem.port else None
    if by is None:
        return f"{problem}; {outcome}"
    what_next = "end it, or choose another address with daemon.listen"
    return f"cannot listen on {problem.where} (daemon.listen): {by}; {outcome}; {what_next}"


def bindings(
    daemon: DaemonConfig, control: Control, environment: Mapping[str, str], handover: Handover | None = None
) -> list[Binding]:
    """Every socket with the application behind it. ListenProblem when one cannot be had; none is left open then."""
    ours = _kept(daemon, handover) if handover is not None else []
    systemds = _of_systemd(environment, handover)
    passed = [*ours, *systemds]
    gid = _gid(daemon)
    rules = access.access_of(daemon, os.geteuid(), gid if gid is not None else os.getegid())
    opened = _opened(daemon, gid, passed)
    return [
        *(_bound(one, control, rules, owned=False) for one in systemds),
        *(_bound(one, control, rules, owned=True) for one in (*ours, *opened)),
    ]


def open_beforehand(daemon: DaemonConfig, bound: Sequence[Binding]) -> list[socket.socket]:
    """What the next code needs beside the sockets that are bound; ListenProblem while the present one still serves."""
    passed = [one.listener for one in bound if not one.owned or _is_wanted(one.listener, daemon)]
    try:
        return _opened(daemon, _gid(daemon), passed)
    except ListenProblem as problem:
        if problem.port not in {one.listener.getsockname()[1] for one in bound if not one.local}:
            raise
    why = "this daemon has that port at another address, which only a restart of it gives up first"
    raise ListenProblem(daemon.listen, why)


def _gid(daemon: DaemonConfig) -> int | None:
    try:
        return access.gid_of(daemon.socket_group) if daemon.socket_group else None
    except KeyError as problem:
        raise ListenProblem(daemon.socket, f"daemon.socket_group: {problem}") from None


def _opened(daemon: DaemonConfig, gid: int | None, passed: list[socket.socket]) -> list[socket.socket]:
    """Those that nobody passed. TCP first: unlike the socket it leaves no file behind when the other cannot be had."""
    opened: list[socket.socket] = []
    if daemon.listen_address and not _among(passed, socket.AF_INET, socket.AF_INET6):
        try:
            opened.append(listeners.bind_tcp(*daemon.listen_address))
        except OSError as problem:
            taken = problem.errno == errno.EADDRINUSE
            port = daemon.listen_address[1] if taken else 0
            raise ListenProblem(daemon.listen, problem.strerror or str(problem), port) from None
    if not _among(passed, socket.AF_UNIX):
        try:
            opened.append(listeners.bind_unix(daemon.socket, daemon.socket_mode, gid))
        except (listeners.SocketInUseError, OSError) as problem:
            for one in opened:
                one.close()
            why = (problem.strerror or str(problem)) if isinstance(problem, OSError) else str(problem)
            raise ListenProblem(daemon.socket, why) from None
    return opened


def _of_systemd(environment: Mapping[str, str], handover: Handover | None) -> list[socket.socket]:
    """Its numbers are those of the first start: after an upgrade the handover knows them."""
    if handover is None:
        return listeners.activated(environment, os.getpid())
    return [listeners.taken_over(one.descriptor) for one in handover.sockets if not one.owned]


def _kept(daemon: DaemonConfig, handover: Handover) -> list[socket.socket]:
    """Our own that are still where the configuration wants them; the others are closed, and a socket's file removed."""
    kept = []
    for listener in [listeners.taken_over(one.descriptor) for one in handover.sockets if one.owned]:
        if _is_wanted(listener, daemon):
            kept.append(listener)
        else:
            give_up(listener)
    return kept


def _is_wanted(listener: socket.socket, daemon: DaemonConfig) -> bool:
    name = listener.getsockname()
    return bool(name == daemon.socket if listener.family == socket.AF_UNIX else name[:2] == daemon.listen_address)


def give_up(listener: socket.socket) -> None:
    """Close one of our own, and remove its file."""
    file = listener.getsockname() if listener.family == socket.AF_UNIX else ""
    listener.close()
    if file:
        Path(file).unlink(missing_ok=True)


def _among(sockets: list[socket.socket], *families: int) -> bool:
    return any(one.family in families for one in sockets)


def _bound(listener: socket.socket, control: Control, rules: Access, *, owned: bool) -> Binding:
    """Who comes over TCP has no peer credentials, and may only read."""
    local = listener.family == socket.AF_UNIX
    app = build_app(control, rules) if local else build_tcp_app(control, rules)
    return Binding(listener, app, owned=owned)
