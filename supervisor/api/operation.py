"""One HTTP operation as data, and the strict, bounded decoding around its handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from supervisor.api import wire
from supervisor.api.access import Access, Peer, Role
from supervisor.api.control import Control
from supervisor.api.limits import Limits
from supervisor.snapshot import ServerSnapshot


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The operation takes no query parameters."""


class NoBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The operation takes no body."""


class RawBody(msgspec.Struct, frozen=True):
    """The operation takes bytes that are no JSON."""

    data: bytes


class Call(msgspec.Struct, frozen=True):
    """One decoded request."""

    control: Control
    request: Request
    by: str
    role: Role
    name: str
    query: Any
    body: Any

    @property
    def snapshot(self) -> ServerSnapshot:
        """The server that the path names. Raises RefusedError with 404."""
        snapshot = self.control.snapshot(self.name)
        if snapshot is None:
            raise RefusedError(404, f"no such server: {printable(self.name)}")
        return snapshot


class Operation(msgspec.Struct, frozen=True):
    """Method and path, who may call it, what goes in and what comes out."""

    method: str
    path: str
    name: str
    summary: str
    handler: Callable[[Call], Awaitable[Response]]
    answer: type[msgspec.Struct] | None = None
    role: Role = Role.READ
    query: type[msgspec.Struct] = NoQuery
    body: type[msgspec.Struct] = NoBody
    media_types: tuple[str, ...] = ("application/json",)
    on_tcp: bool = False


class RefusedError(Exception):
    """The request cannot be served; the client gets the status and the message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def endpoint(
    operation: Operation, control: Control, access: Access, limits: Limits
) -> Callable[[Request], Awaitable[Response]]:
    """The ASGI endpoint of an operation: role, query and body are checked before the handler sees anything."""

    async def answer(request: Request) -> Response:
        try:
            return await operation.handler(await _call(operation, control, access, limits, request))
        except RefusedError as refusal:
            return error(refusal.status, str(refusal))

    return answer


async def _call(operation: Operation, control: Control, access: Access, limits: Limits, request: Request) -> Call:
    peer: Peer | None = request.scope["state"].get("peer")
    role = Role.READ if peer is None and operation.on_tcp else Role.NOBODY if peer is None else access.role_of(peer)
    if role < operation.role:
        raise RefusedError(
            403, f"{operation.name} needs the role {operation.role.name.lower()}, you have {_named(role)}"
        )
    call = Call(
        control=control,
        request=request,
        by="" if peer is None else peer.text,
        role=role,
        name=str(request.path_params.get("name", "")),
        query=_query(operation, request),
        body=await _body(operation, limits, request),
    )
    if call.name:
        _ = call.snapshot  # 404 before anything else is done
    return call


def _named(role: Role) -> str:
    return "none" if role is Role.NOBODY else role.name.lower()


def _query(operation: Operation, request: Request) -> Any:
    try:
        return msgspec.convert(dict(request.query_params), operation.query, strict=False)
    except msgspec.ValidationError as problem:
        raise RefusedError(400, f"cannot use the query: {_lower(problem)}") from None


async def _body(operation: Operation, limits: Limits, request: Request) -> Any:
    data = await _bounded_body(limits, request)
    if operation.body is RawBody:
        return RawBody(data)
    if not data:
        data = b"{}"
    try:
        return msgspec.json.decode(data, type=operation.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise RefusedError(400, f"cannot use the body: {_lower(problem)}") from None


async def _bounded_body(limits: Limits, request: Request) -> bytes:
    data = bytearray()
    try:
        with anyio.fail_after(limits.body_timeout_s):
            async for chunk in request.stream():
                data += chunk
                if len(data) > limits.body_bytes:
                    raise RefusedError(413, f"the body is larger than {limits.body_bytes} bytes")
    except ClientDisconnect:
        raise RefusedError(400, "the client went away within the body") from None
    except TimeoutError:
        raise RefusedError(408, f"the body did not arrive within {limits.body_timeout_s:.0f} s") from None
    return bytes(data)


def answer(value: msgspec.Struct, status: int = 200) -> Response:
    """A struct as a JSON answer."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def error(status: int, message: str) -> Response:
    """A refusal as a JSON answer. The rest of an unread body is not waited for: the connection ends."""
    headers = {"connection": "close"} if status in (408, 413) else None
    return Response(msgspec.json.encode(wire.Error(message)), status, media_type="application/json", headers=headers)


def printable(text: str) -> str:
    """Untrusted text fit for an error message: no control characters, bounded."""
    bounded = text if len(text) <= 80 else f"{text[:77]}..."
    return "".join(letter if letter.isprintable() else "?" for letter in bounded)


def _lower(problem: Exception) -> str:
    text = printable(str(problem)[:200]) or type(problem).__name__
    return f"{text[0].lower()}{text[1:]}"
