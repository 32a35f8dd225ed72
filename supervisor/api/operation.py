"""One HTTP operation as data, and the strict, bounded decoding around its handler."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from supervisor.api import wire
from supervisor.api.access import Access, Peer, Role, operates
from supervisor.api.callers import describe
from supervisor.api.control import Control
from supervisor.api.limits import Limits
from supervisor.lines import printable
from supervisor.snapshot import ServerSnapshot

_NAMES_TOLD = 8


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
    peer: Peer | None
    by: str
    role: Role
    name: str
    query: Any
    body: Any

    @property
    def local(self) -> bool:
        """Whether the kernel has told who asks; over TCP anybody may be anybody."""
        return self.peer is not None

    @property
    def snapshot(self) -> ServerSnapshot:
        """The server that the path names. Raises RefusedError with 404."""
        snapshot = self.control.snapshot(self.name)
        if snapshot is None:
            raise unknown_server(self.name, names(self.control))
        return snapshot

    def role_for(self, name: str) -> Role:
        """The role that the peer has for one server: its own operators operate it."""
        server = self.control.config().servers.get(name)
        if self.peer is not None and server is not None and operates(self.peer, server.operators):
            return max(self.role, Role.OPERATE)
        return self.role

    async def noted(self, command: str, name: str = "") -> Call:
        """This call by somebody who is known as well as he can be, after what he asks for has been noted."""
        by = self.by if self.peer is None else await describe(self.peer)
        self.control.audit(name, command, by)
        return msgspec.structs.replace(self, by=by)


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
    status: int = 200
    failures: tuple[int, ...] = ()  # beside those that every operation may end with


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
        role = _named(_role(operation, control, access, _peer(request)))
        try:
            response = await operation.handler(await _call(operation, control, access, limits, request))
        except RefusedError as refusal:
            response = error(refusal.status, str(refusal))
        except Exception:
            control.answered(operation.name, role, 500)  # a bug, which is answered by the application
            raise
        control.answered(operation.name, role, response.status_code)
        return response

    return answer


async def _call(operation: Operation, control: Control, access: Access, limits: Limits, request: Request) -> Call:
    peer = _peer(request)
    call = Call(
        control=control,
        request=request,
        peer=peer,
        by="" if peer is None else peer.text,
        role=_role(operation, control, access, peer),
        name=str(request.path_params.get("name", "")),
        query=None,
        body=None,
    )
    role = call.role_for(call.name)
    if role < operation.role:
        raise RefusedError(
            403, f"{operation.name} needs the role {operation.role.name.lower()}, you have {_named(role)}"
        )
    body = await _body(operation, limits, request)
    call = msgspec.structs.replace(call, query=_query(operation, request), body=body)
    if call.name:
        _ = call.snapshot  # 404 before anything else is done
    return call if operation.role is Role.READ else await call.noted(_command(operation, body), call.name)


def _peer(request: Request) -> Peer | None:
    peer: Peer | None = request.scope["state"].get("peer")
    return peer


def _role(operation: Operation, control: Control, access: Access, peer: Peer | None) -> Role:
    """Who operates one server may read about all of them."""
    if peer is None:
        return Role.READ if operation.on_tcp else Role.NOBODY
    role = access.role_of(peer)
    if role is Role.NOBODY and any(operates(peer, one.operators) for one in control.config().servers.values()):
        return Role.READ
    return role


def _command(operation: Operation, body: Any) -> str:
    """The operation with what was given to it: `signalServer {"signal":"HUP"}`."""
    given = msgspec.json.encode(body).decode() if operation.body is not NoBody else "{}"
    return operation.name if given == "{}" else f"{operation.name} {excerpt(given)}"


def _named(role: Role) -> str:
    return "none" if role is Role.NOBODY else role.name.lower()


def _query(operation: Operation, request: Request) -> Any:
    given = request.query_params.multi_items()
    for key, value in given:  # msgspec takes "null" for none, and the last of several for the one
        if value.lower() == "null" or sum(other == key for other, _ in given) > 1:
            raise RefusedError(400, f"cannot use the query: give {excerpt(key)} once, or leave it out")
    try:
        return msgspec.convert(dict(given), operation.query, strict=False)
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


def unknown_server(name: str, known: Iterable[str]) -> RefusedError:
    """With the name that was meant, as far as it can be guessed, else with those that there are."""
    asked, known = excerpt(name), list(known)
    if near := difflib.get_close_matches(asked, known, 1, 0.5):
        return RefusedError(404, f'no such server: {asked}, did you mean "{near[0]}"?')
    more = [f"{len(known) - _NAMES_TOLD} more"] if len(known) > _NAMES_TOLD else []
    listed = ", ".join(known[:_NAMES_TOLD] + more)
    return RefusedError(404, f"no such server: {asked}; there {'are' if known[1:] else 'is'} {listed or 'none'}")


def names(control: Control) -> Iterator[str]:
    """Of all servers."""
    return (snapshot.name for snapshot in control.snapshots())


def excerpt(text: str) -> str:
    """Untrusted text fit for an error message: no control characters, bounded."""
    return printable(text if len(text) <= 80 else f"{text[:77]}...")


def _lower(problem: Exception) -> str:
    text = excerpt(str(problem)[:200]) or type(problem).__name__
    return f"{text[0].lower()}{text[1:]}"
