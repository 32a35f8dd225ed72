"""Serves ASGI applications on sockets that we bind ourselves: peer credentials, bounded connections, bounded ends.

uvicorn's protocol speaks HTTP; its Server is not used: it wakes ten times a second for a date header, takes over the
process's signals and makes Unix sockets that everybody may write to.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import cast

import anyio
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from supervisor.api.access import peer_of
from supervisor.api.limits import DEFAULTS, Limits
from supervisor.api.listeners import BACKLOG

_HEAR_STEPS, _HEAR_STEP_S = 20, 0.01


class Binding:
    """A listening socket with the application it serves. `path` is the file to remove at the end, "" for none.

    The file of a socket that systemd passed (`owned` False) is systemd's: it stays and queues what comes meanwhile.
    """

    def __init__(self, listener: socket.socket, app: ASGIApp, *, owned: bool = True) -> None:
        self.listener = listener
        self.app = app
        self.local = listener.family == socket.AF_UNIX
        self.path = str(listener.getsockname()) if owned and self.local else ""
        self.inode = _inode(self.path)
        self.owned = owned

    @property
    def lost(self) -> bool:
        """Whether the file of our socket is not there any more, or is another one: nobody new can come by it."""
        return bool(self.path) and (not self.inode or _inode(self.path) != self.inode)

    def leave_file(self) -> None:
        """Somebody else goes on with a duplicate of the listener: the end of `serving` does not remove its file."""
        self.path = ""


def _inode(path: str) -> int:
    """0 when there is no file."""
    try:
        return Path(path).lstat().st_ino if path else 0
    except OSError:
        return 0


class Serving:
    """What listens now. Each binding has a state of its own: who floods one must not lock out the others'."""

    def __init__(self, bindings: Sequence[Binding], limits: Limits) -> None:
        self.bindings = bindings
        self.limits = limits
        self.states = [ServerState() for _ in bindings]
        self.listeners: list[asyncio.Server] = []

    async def open(self) -> None:
        """Listen on all of them."""
        for binding, state in zip(self.bindings, self.states, strict=True):
            self.listeners.append(await _listen(binding, state, self.limits))

    async def replace(self, binding: Binding, listener: socket.socket) -> None:
        """Listen at the same place by another socket. Who is connected stays so, and counts as before."""
        at = self.bindings.index(binding)
        binding.listener, binding.inode = listener, _inode(binding.path)
        former, self.listeners[at] = self.listeners[at], await _listen(binding, self.states[at], self.limits)
        former.close()


@asynccontextmanager
async def serving(bindings: Sequence[Binding], limits: Limits = DEFAULTS) -> AsyncIterator[Serving]:
    """Serve while the context lasts; its end closes listeners, lets short answers finish, then cuts the rest."""
    served = Serving(bindings, limits)
    await served.open()
    try:
        yield served
    finally:
        with anyio.CancelScope(shield=True):
            await _end(served.listeners, served.states, limits.goodbye_s)
            for binding in bindings:
                _remove_file(binding)


async def _listen(binding: Binding, state: ServerState, limits: Limits) -> asyncio.Server:
    config = uvicorn.Config(
        binding.app,
        http=ControlProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # a client's malformed bytes are no news; bugs of handlers are logged by the application
        access_log=False,
        proxy_headers=False,  # nobody speaks for somebody else here
        server_header=False,
        date_header=False,
        limit_concurrency=limits.connections if binding.local else limits.tcp_connections,
        timeout_keep_alive=limits.keep_alive_s,
        h11_max_incomplete_event_size=limits.head_bytes,
    )
    config.load()
    loop = asyncio.get_running_loop()
    make = partial(ControlProtocol, limits, config, state, {})
    return await loop.create_server(make, sock=binding.listener, backlog=BACKLOG)


async def _end(listeners: Sequence[asyncio.Server], states: Sequence[ServerState], goodbye_s: float) -> None:
    await _hear_out(listeners, states)
    for listener in listeners:
        listener.close()
    for connection in _connections(states):
        connection.shutdown()
    if tasks := _tasks(states):
        await asyncio.wait(tasks, timeout=goodbye_s)
    for connection in _connections(states):
        connection.transport.abort()  # before its task ends: it would tell a client that there is a bug (500)
    for task in _tasks(states):
        task.cancel("the daemon ends")
    if tasks := _tasks(states):
        await asyncio.wait(tasks, timeout=goodbye_s)


async def _hear_out(listeners: Sequence[asyncio.Server], states: Sequence[ServerState]) -> None:
    """Let nobody in any more; who has just been let in is not sent away unheard: his request is on its way.

    asyncio drops a connection that it has accepted and not yet wired when its server is closed.
    """
    for listener in listeners:
        for one in listener.sockets:
            asyncio.get_running_loop().remove_reader(one.fileno())
    for _ in range(_HEAR_STEPS):
        await anyio.sleep(_HEAR_STEP_S)
        if all(cast("RequestResponseCycle | None", one.cycle) is not None for one in _connections(states)):
            return


def _connections(states: Sequence[ServerState]) -> list[ControlProtocol]:
    return [cast(ControlProtocol, one) for state in states for one in state.connections]


def _tasks(states: Sequence[ServerState]) -> list[asyncio.Task[None]]:
    return [task for state in states for task in state.tasks]


class ControlProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 plus the peer's identity in the request scope and an end to silent connections."""

    def __init__(
        self, limits: Limits, config: uvicorn.Config, state: ServerState, app_state: dict[str, object]
    ) -> None:
        super().__init__(config, state, app_state)
        self._limits = limits
        self._silence: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = peer_of(cast(socket.socket, transport.get_extra_info("socket")))
        self.app_state = {
            "peer": peer,
            "abort": transport.abort,
        }  # uvicorn copies it into each request's scope["state"]
        if self.limit_concurrency is not None:  # uvicorn's type; ours always has one
            if peer is not None and peer.uid in (0, os.geteuid()):
                self.limit_concurrency += self._limits.admin_connections
            if len(self.connections) > self.limit_concurrency + self._limits.refused_connections:
                transport.abort()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._silence, self._stall):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not keep up. An orderly close would wait for it for ever: let it go when it takes nothing."""
        super().pause_writing()
        self._stall = self.loop.call_later(self._limits.send_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._await_head()
        super().on_response_complete()

    def _await_head(self) -> None:
        """Each head has its time, also the second one: uvicorn's keep-alive ends with its first byte."""
        if self._silence is not None:
            self._silence.cancel()
        self._silence = self.loop.call_later(self._limits.head_timeout_s, self._drop_if_silent)

    def _drop_if_silent(self) -> None:
        """No whole request head has arrived since the connection was made or the last answer was complete."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # uvicorn types it as always present
        if cycle is not None and not cycle.response_complete:
            return
        if self.transport.get_write_buffer_size():  # the last answer is still being taken, slowly or not at all
            self._silence = self.loop.call_later(self._limits.send_timeout_s, self.transport.abort)
        else:
            self.transport.abort()


def _remove_file(binding: Binding) -> None:
    """Remove our socket's file unless another daemon has replaced it meanwhile."""
    if binding.path and not binding.lost:
        Path(binding.path).unlink(missing_ok=True)
