"""The HTTP client for servers of this host: one short-lived connection a request.

What the daemon asks most is one small exchange over loopback: every server's readiness and counters, for as long as
it lives. Most of what httpx spends there goes into httpcore's pool and its locks and into anyio's race between
addresses. Here it is a socket and h11, on which httpcore stands as well (docs/decisions/0019-h11.md).
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import anyio
import h11
import httpx

_READ_BYTES = 64 * 1024
_HEAD_BYTES = 100 * 1024
_Address = tuple[Any, ...]  # of any family


def local_client() -> httpx.AsyncClient:
    """For servers of this host: no connection is kept (it would outlive its server), no proxy asked, no redirect.

    No cookie either: a jar knows hosts, not ports, and one server's would go to all the others, for ever.

    It has no time-outs: each call has a deadline, which also ends a byte-a-second answer.
    """
    return httpx.AsyncClient(
        transport=LocalTransport(),
        trust_env=False,
        follow_redirects=False,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        headers={"connection": "close", "user-agent": "sglang-supervisor", "accept-encoding": "identity"},
    )


def connectable(host: str) -> str:
    """Where a server that listens on `host` can be reached from this machine."""
    if host in ("", "0.0.0.0"):  # noqa: S104 - read from a server's command, not bound by us
        return "127.0.0.1"
    if host in ("::", "[::]"):
        return "[::1]"
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


class LocalTransport(httpx.AsyncBaseTransport):
    """Plain HTTP/1.1. Raises what httpx's own transport does, with what the kernel or h11 said as the cause."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer's head. Its body comes as it is asked for; the connection ends when the response is closed."""
        exchange = _Exchange(request, await _reach(request))
        try:
            await exchange.ask(await request.aread())
            head = await exchange.head()
        except BaseException:
            await exchange.aclose()
            raise
        return httpx.Response(head.status_code, headers=head.headers.raw_items(), stream=exchange, request=request)


class _Exchange(httpx.AsyncByteStream):
    """One request and its answer over one connection; to iterate over it reads the answer's body."""

    def __init__(self, request: httpx.Request, connection: socket.socket) -> None:
        self._request = request
        self._connection = connection
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)

    async def ask(self, body: bytes) -> None:
        request = self._request
        try:
            head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
            wire = b"".join(self._protocol.send(event) or b"" for event in (head, h11.Data(body), h11.EndOfMessage()))
        except h11.LocalProtocolError as problem:
            raise httpx.LocalProtocolError(str(problem), request=request) from problem
        try:
            await _send(self._connection, wire)
        except OSError as problem:
            raise httpx.WriteError(str(problem), request=request) from problem

    async def head(self) -> h11.Response:
        """What is said ahead of it (100 Continue) is passed over."""
        while not isinstance(event := await self._next(), h11.Response):
            pass
        return event

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    async def aclose(self) -> None:
        self._connection.close()

    async def _next(self) -> object:
        """The next event of h11's, which takes an answer that breaks off for an error."""
        try:
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                self._protocol.receive_data(await _receive(self._connection))
        except h11.RemoteProtocolError as problem:
            raise httpx.RemoteProtocolError(str(problem), request=self._request) from problem
        except OSError as problem:
            raise httpx.ReadError(str(problem), request=self._request) from problem
        return event


async def _reach(request: httpx.Request) -> socket.socket:
    """Connected to the first of the host's addresses that lets us in."""
    problem: Exception = OSError("the host has no address")
    try:
        for family, address in await _addresses(request.url.host, request.url.port or 80):
            try:
                return await _connected(family, address)
            except OSError as refusal:
                problem = refusal
    except (OSError, ValueError) as unknown:  # nobody knows the name, or it cannot be one
        problem = unknown
    raise httpx.ConnectError(str(problem), request=request) from problem


async def _addresses(host: str, port: int) -> list[tuple[int, _Address]]:
    """A number is its own address; a name is looked up in a thread."""
    try:
        numbers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        return [(family, address) for family, _, _, _, address in numbers]
    except socket.gaierror:
        names = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(family, address) for family, _, _, _, address in names]


async def _connected(family: int, address: _Address) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        try:
            connection.connect(address)
        except BlockingIOError:
            await anyio.wait_writable(connection)
            if number := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(number, os.strerror(number)) from None
    except BaseException:
        connection.close()
        raise
    return connection


async def _send(connection: socket.socket, data: bytes) -> None:
    while data:
        try:
            data = data[connection.send(data) :]
        except BlockingIOError:
            await anyio.wait_writable(connection)


async def _receive(connection: socket.socket) -> bytes:
    """Waits even where there is something already: an answer without end must not keep the loop."""
    while True:
        await anyio.wait_readable(connection)
        try:
            return connection.recv(_READ_BYTES)
        except BlockingIOError:
            continue
