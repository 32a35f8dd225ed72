"""A server of one raw answer, and the client that the daemon uses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import httpx

Serve = Callable[[anyio.abc.SocketStream], Awaitable[None]]


def response(status: str, body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def serving(handler: Serve) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Reads one request and lets the handler do what it likes; yields where it is and what was asked."""
    asked: list[bytes] = []

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            try:
                asked.append(await stream.receive(65536))
                if b"content-length" in asked[-1] and asked[-1].endswith(b"\r\n\r\n"):
                    asked[-1] += await stream.receive(65536)
                await handler(stream)
            except (anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError):
                return  # the client had enough and left

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}", asked
        tasks.cancel_scope.cancel()


def says(*pieces: bytes) -> Serve:
    async def handler(stream: anyio.abc.SocketStream) -> None:
        for piece in pieces:
            await stream.send(piece)

    return handler


async def never(stream: anyio.abc.SocketStream) -> None:
    await anyio.sleep_forever()


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(verify=False, trust_env=False, timeout=None)  # noqa: S501, S113 - as the daemon's own
