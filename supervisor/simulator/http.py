"""Serves HTTP with plain sockets and threads, as uvicorn would: http.server alone is slow to import."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from supervisor.simulator import texts

_REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 500: "Internal Server Error",
    503: "Service Unavailable",
}  # fmt: skip
_MAX_HEAD = 64 * 1024
_NO_KEY = ("/health", "/health_generate", "/metrics", "/ready", "/ping")


class Request(NamedTuple):
    """One parsed request."""

    client: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def data(self) -> dict[str, object]:
        value = json.loads(self.body or b"{}")
        if not isinstance(value, dict):
            raise TypeError("the body is not a JSON object")
        return value


class Answer(NamedTuple):
    """A whole answer, or a stream of server-sent events when `chunks` is set."""

    status: int
    body: bytes = b""
    kind: str = "application/json"
    chunks: Iterator[bytes] | None = None


Route: TypeAlias = Callable[[Request], Answer]


class Front(Protocol):
    """The engine behind the endpoints."""

    @property
    def address(self) -> tuple[str, int]: ...

    @property
    def api_key(self) -> str: ...

    def hold_if_frozen(self) -> None:
        """Blocks for ever once nobody is to be answered any more."""

    def tell_access(self, line: str) -> None:
        """Writes a line of the access log."""


class HttpServer:
    """Binds when told to, never before: connections are refused while the engine loads."""

    def __init__(self, front: Front, routes: Mapping[str, Route]) -> None:
        self._front = front
        self._routes = routes
        self._listener: socket.socket | None = None

    def bind(self) -> None:
        """Raise OSError (EADDRINUSE) when somebody else has the port."""
        host, port = self._front.address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        self._listener = listener

    def start(self) -> None:
        """Accept connections from now on; bind() comes first, and what is bound alone refuses them."""
        if self._listener is None:
            raise RuntimeError("bind() comes before start()")
        self._listener.listen(128)
        threading.Thread(target=self._accept, args=(self._listener,), name="http", daemon=True).start()

    def close(self) -> None:
        if self._listener:
            self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = listener.accept()
            except OSError:
                return  # closed by the shutdown
            client = f"{address[0]}:{address[1]}"
            threading.Thread(target=self._converse, args=(connection, client), daemon=True).start()

    def _converse(self, connection: socket.socket, client: str) -> None:
        with connection, contextlib.suppress(ConnectionError):  # the client may leave at any time
            reader = connection.makefile("rb")
            while request := _read_request(reader.readline, reader.read, client):
                self._front.hold_if_frozen()
                self._reply(connection, request, self._handle(request))
                if request.headers.get("connection", "").lower() == "close":
                    return

    def _handle(self, request: Request) -> Answer:
        route = self._routes.get(request.path.partition("?")[0])
        if route is None:
            return Answer(404, b'{"detail":"Not Found"}')
        key = self._front.api_key
        if key and request.path not in _NO_KEY and request.headers.get("authorization") != f"Bearer {key}":
            return Answer(401, b'{"error":"Unauthorized"}')
        try:
            return route(request)
        except (ValueError, TypeError, AttributeError) as error:
            return Answer(400, json.dumps({"error": {"message": str(error)}}).encode())

    def _reply(self, connection: socket.socket, request: Request, answer: Answer) -> None:
        """The access line of a stream comes with its head, of anything else before the body is gone."""
        self._front.hold_if_frozen()
        reason = _REASONS[answer.status]
        line = texts.access(request.client, request.method, request.path, answer.status, reason)
        self._front.tell_access(line)
        head = f"HTTP/1.1 {answer.status} {reason}\r\nserver: uvicorn\r\n"
        if answer.chunks is None:
            head += f"content-length: {len(answer.body)}\r\n"
            head += f"content-type: {answer.kind}\r\n" if answer.body else ""
            connection.sendall(head.encode() + b"\r\n" + answer.body)
            return
        head += "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        for chunk in answer.chunks:
            connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        connection.sendall(b"0\r\n\r\n")


def _read_request(readline: Callable[[int], bytes], read: Callable[[int], bytes], client: str) -> Request | None:
    """None when the client has closed or does not speak HTTP."""
    words = readline(_MAX_HEAD).decode("latin-1").split()
    if len(words) != 3:
        return None
    headers: dict[str, str] = {}
    while line := readline(_MAX_HEAD).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    chunked = headers.get("transfer-encoding", "").lower() == "chunked"
    body = _chunks(readline, read) if chunked else read(int(headers.get("content-length", "0")))
    return Request(client, words[0], words[1], headers, body)


def _chunks(readline: Callable[[int], bytes], read: Callable[[int], bytes]) -> bytes:
    """A body whose length its sender did not know, as routers pass them on."""
    body = bytearray()
    while size := int(readline(_MAX_HEAD).partition(b";")[0] or b"0", 16):
        body += read(size)
        readline(_MAX_HEAD)
    while readline(_MAX_HEAD).strip():
        pass  # trailers
    return bytes(body)
