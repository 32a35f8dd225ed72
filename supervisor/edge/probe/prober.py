"""Asks a server's readiness path once over HTTP and reports what it saw; every error is an outcome, never raised."""

from __future__ import annotations

import errno
import json
import time
from types import TracebackType
from typing import Any, Self

import anyio
import httpx

from supervisor.actions import Probe
from supervisor.edge.probe.client import connectable, local_client
from supervisor.events import Listener, Probed, ProbeOutcome
from supervisor.lines import printable

BODY_LIMIT_BYTES = 64 * 1024
IDENTITY_LIMIT_S = 5.0
DETAIL_CHARACTERS = 200
_OWN_FAULTS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})


class Prober:
    """One HTTP client for all servers. Each probe has its own connection: a kept one outlives its server."""

    def __init__(self) -> None:
        self._client = local_client()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def probe(
        self,
        action: Probe,
        host: str,
        port: int,
        path: str,
        identity_path: str = "",
        identity_fields: tuple[str, ...] = (),
        listener: Listener = Listener.UNKNOWN,
    ) -> Probed:
        """Ask `path`, and on success, when the action wants it, `identity_path` who answers.

        `identity_fields` are the keys of that answer which name a model; the first one that does counts.
        `listener` is what `edge.listener.whose` found; it is passed through.
        """
        base = f"http://{connectable(host)}:{port}"
        began = time.monotonic()
        outcome, status, detail = await self._ask(base + path, action.timeout_s)
        latency_s = time.monotonic() - began
        model = ""
        if action.identify and identity_path and outcome is ProbeOutcome.OK:
            model = await self._identify(base + identity_path, identity_fields, min(IDENTITY_LIMIT_S, action.timeout_s))
        return Probed(action.attempt, outcome, status, latency_s, listener, model, detail)

    async def _ask(self, url: str, timeout_s: float) -> tuple[ProbeOutcome, int, str]:
        try:
            with anyio.move_on_after(timeout_s):
                status, body = await self._get(url)
                return _judge(status), status, _excerpt(body)
        except httpx.ConnectError as problem:
            return _why_not_connected(problem), 0, _excerpt(str(problem).encode())
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as problem:
            return _why_broken(problem), 0, _excerpt(f"{type(problem).__name__}: {problem}".encode())
        return ProbeOutcome.TIMEOUT, 0, f"no complete answer within {timeout_s:g} s"

    async def _get(self, url: str) -> tuple[int, bytes]:
        async with self._client.stream("GET", url) as response:
            body = bytearray()
            async for piece in response.aiter_raw():
                body += piece[: BODY_LIMIT_BYTES - len(body)]
                if len(body) >= BODY_LIMIT_BYTES:
                    break  # enough of it: whoever sends more is not asked to finish
            return response.status_code, bytes(body)

    async def _identify(self, url: str, fields: tuple[str, ...], timeout_s: float) -> str:
        """ "" when there is no telling: an answer without an identity contradicts nothing."""
        try:
            with anyio.move_on_after(timeout_s):
                status, body = await self._get(url)
                return identity(body, fields) if status == httpx.codes.OK else ""
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError):
            return ""
        return ""


def identity(body: bytes, fields: tuple[str, ...]) -> str:
    """The model an answer names: the first of the fields of a JSON object that has a text; "" when none has."""
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(answer, dict):
        return ""
    for key in fields:
        if isinstance(value := answer.get(key), str) and value:
            return value
    return ""


def _judge(status: int) -> ProbeOutcome:
    if status == httpx.codes.OK:
        return ProbeOutcome.OK
    return ProbeOutcome.UNAVAILABLE if status == httpx.codes.SERVICE_UNAVAILABLE else ProbeOutcome.ERROR


def _why_not_connected(problem: httpx.ConnectError) -> ProbeOutcome:
    numbers = set(_error_numbers(problem))
    if numbers & _OWN_FAULTS:
        return ProbeOutcome.UNKNOWN
    return ProbeOutcome.REFUSED if errno.ECONNREFUSED in numbers else ProbeOutcome.ERROR


def _why_broken(problem: Exception) -> ProbeOutcome:
    return ProbeOutcome.UNKNOWN if set(_error_numbers(problem)) & _OWN_FAULTS else ProbeOutcome.ERROR


def _error_numbers(problem: BaseException | None) -> list[int]:
    """The errnos of an exception's whole ancestry: httpx wraps httpcore wraps anyio wraps the OSError."""
    numbers: list[int] = []
    while problem is not None:
        if isinstance(problem, OSError) and problem.errno:
            numbers.append(problem.errno)
        if isinstance(problem, BaseExceptionGroup):
            numbers.extend(number for inner in problem.exceptions for number in _error_numbers(inner))
        problem = problem.__cause__ or problem.__context__
    return numbers


def _excerpt(body: bytes) -> str:
    text = body[: DETAIL_CHARACTERS * 4].decode("utf-8", "replace")
    return printable(text, " ")[:DETAIL_CHARACTERS].strip()
