"""A model gateway of either dialect as a few lines of HTTP, with whatever can be wrong with one."""

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, unquote, urlsplit

import anyio
import anyio.abc

from supervisor.edge.router import Gateway, gateway_client
from tests.edge.web import Serve, response, serving


class FakeGateway:
    """`older` speaks of 0.1; `ids` of the newer one are addresses or UUIDs. `answer` overrides every answer."""

    def __init__(self, *, older: bool = False, uuids: bool = True) -> None:
        self.older = older
        self.uuids = uuids
        self.workers: dict[str, str] = {}  # id by address
        self.ill: set[str] = set()
        self.lingering = False  # whoever leaves is listed as draining for a while
        self.draining: set[str] = set()
        self.refused: dict[str, str] = {}  # what is never taken, and why
        self.asked: list[str] = []
        self.bodies: list[dict[str, str]] = []
        self.headers: list[str] = []
        self._fates: dict[str, str] = {}
        self.answer: bytes | None = None

    def handle(self, request: bytes) -> bytes:
        head, _, body = request.partition(b"\r\n\r\n")
        method, target = head.decode().split()[:2]
        self.asked.append(f"{method} {target}")
        self.headers.append(head.decode().lower())
        if self.answer is not None:
            return self.answer
        path = urlsplit(target).path
        url = parse_qs(urlsplit(target).query).get("url", [""])[0]
        if self.older:
            return self._older(path, url)
        return self._newer(method, path, body)

    def _older(self, path: str, url: str) -> bytes:
        match path:
            case "/list_workers":
                return response("200 OK", json.dumps({"urls": list(self.workers)}).encode())
            case "/add_worker":
                self.workers[url] = url
                return response("200 OK", b"Successfully added worker")
            case "/remove_worker":
                self.workers.pop(url, None)
                return response("200 OK", b"Successfully removed worker")
            case _:
                return response("404 Not Found")

    def _newer(self, method: str, path: str, body: bytes) -> bytes:
        if path == "/workers" and method == "GET":
            rows = [
                {"id": i, "url": u, "is_healthy": u not in self.ill, "status": "draining" if u in self.draining else ""}
                for u, i in self.workers.items()
            ]
            return response("200 OK", json.dumps({"workers": rows, "total": len(rows)}).encode())
        if path == "/workers":
            return self._add(json.loads(body))
        if not path.startswith("/workers/"):
            return response("404 Not Found")
        one = unquote(path.removeprefix("/workers/"))
        if method == "GET":
            job = {"status": "failed", "message": self._fates.get(one)}
            return response("200 OK", json.dumps({"id": one, "job_status": job}).encode())
        known = {i: u for u, i in self.workers.items()}
        if one not in known:
            return response("404 Not Found", b'{"error":"not found"}')
        if self.lingering:
            self.draining.add(known[one])
        else:
            del self.workers[known[one]]
        return response("202 Accepted", b'{"status":"accepted"}')

    def _add(self, body: dict[str, str]) -> bytes:
        self.bodies.append(body)
        url = body["url"]
        one = self.workers.get(url) or (str(uuid.uuid4()) if self.uuids else url)
        if url in self.refused:
            self._fates[one] = self.refused[url]
        else:
            self.workers[url] = one
        return response("202 Accepted", json.dumps({"status": "accepted", "worker_id": one}).encode())


@asynccontextmanager
async def listening(fake: FakeGateway) -> AsyncIterator[str]:
    """Where the fake can be reached."""
    asked: list[bytes] = []

    async def handler(stream: anyio.abc.SocketStream) -> None:
        await stream.send(fake.handle(asked[-1]))

    async with serving(handler) as (url, requests):
        asked = requests
        yield url


@asynccontextmanager
async def gateway(url: str, limit_s: float = 5.0, **headers: str) -> AsyncIterator[Gateway]:
    async with gateway_client(url) as client:
        yield Gateway(client, url, headers, limit_s)


@asynccontextmanager
async def gateway_at(handler: Serve, limit_s: float = 5.0) -> AsyncIterator[Gateway]:
    """In front of a server that says what it likes."""
    async with serving(handler) as (url, _), gateway(url, limit_s) as made:
        yield made
