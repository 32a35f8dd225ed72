"""Speaks the HTTP interface of the model gateway, in both dialects that its releases have had.

Tried with 0.1.9: `/list_workers`, `/add_worker?url=`, `/remove_worker?url=`; with 0.2.1, 0.3.2 and smg 1.13.0:
`/workers`, where changes are queued (202) and done in the background; the ids are addresses in 0.2 and UUIDs later.
Which dialect it is, is asked with every look: a router may be another release after its restart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from supervisor.edge.router.client import Answer, exchange
from supervisor.edge.router.parts import Listed, Trouble, Worker, excerpt

_GOING = "draining"  # of smg 1.13
_NO_SUCH_PATH = frozenset({404, 405, 501})


class _Entry(msgspec.Struct, frozen=True):
    """A worker of the newer dialect's list. One that is `draining` gets no new requests, and is still listed."""

    url: str
    id: str = ""
    is_healthy: bool = True
    status: str = ""


class _Workers(msgspec.Struct, frozen=True):
    workers: tuple[_Entry, ...]


class _Addresses(msgspec.Struct, frozen=True):
    """The older dialect's list."""

    urls: tuple[str, ...]


class _Job(msgspec.Struct, frozen=True):
    status: str = ""
    message: str | None = None


class _Fate(msgspec.Struct, frozen=True):
    """One worker that is not in the list: what has become of the job that is to add it."""

    job_status: _Job | None = None


class _Accepted(msgspec.Struct, frozen=True):
    worker_id: str = ""


class Gateway:
    """One gateway. `listed` comes before `change`: it learns the dialect and the workers' ids."""

    def __init__(self, client: httpx.AsyncClient, url: str, headers: Mapping[str, str], limit_s: float) -> None:
        self._client = client
        self._base = url.rstrip("/")
        self._headers = headers
        self._limit_s = limit_s
        self._older = False
        self._ids: dict[str, list[str]] = {}  # by address; data-parallel ranks of a worker share one
        self._asked: dict[str, str] = {}  # jobs under way: the id by address

    async def listed(self) -> Listed | Trouble:
        """Whom it has now."""
        answer = await self._ask("GET", "/workers")
        if isinstance(answer, Answer) and answer.status in _NO_SUCH_PATH:
            return await self._listed_by_address()
        found = _decoded(answer, _Workers, "workers")
        if isinstance(found, Trouble):
            return found
        self._older, self._ids = False, {}
        present = [entry for entry in found.workers if entry.status != _GOING]
        for entry in present:
            self._ids.setdefault(_address(entry.url), []).append(entry.id or entry.url)
        ready = {_address(entry.url) for entry in present if entry.is_healthy}
        return Listed(frozenset(self._ids), frozenset(ready))

    async def _listed_by_address(self) -> Listed | Trouble:
        found = _decoded(await self._ask("GET", "/list_workers"), _Addresses, "workers")
        if isinstance(found, Trouble):
            return found
        self._older, self._ids = True, {}
        for url in found.urls:
            self._ids.setdefault(_address(url), []).append(url)
        return Listed(frozenset(self._ids), frozenset(self._ids))

    async def change(self, joining: Sequence[Worker], leaving: Sequence[Worker]) -> Trouble | None:
        """All are tried; the first trouble is told."""
        troubles = [await self._remove(worker.url) for worker in leaving]
        troubles += [await self._add(worker) for worker in joining]
        return next((trouble for trouble in troubles if trouble is not None), None)

    # --- one worker ----------------------------------------------------------------------------------------------

    async def _add(self, worker: Worker) -> Trouble | None:
        if self._older:
            return _refusal(await self._ask("POST", f"/add_worker?url={quote(worker.url, safe='')}"))
        fate = await self._fate(worker.url)
        answer = await self._ask("POST", "/workers", _described(worker))
        if refusal := _refusal(answer):
            return refusal
        assert isinstance(answer, Answer)  # noqa: S101 - a trouble is a refusal
        accepted = _decoded(answer, _Accepted, "answer")
        self._asked[worker.url] = accepted.worker_id if isinstance(accepted, _Accepted) else ""
        return fate

    async def _fate(self, url: str) -> Trouble | None:
        """Why an addition that was taken on earlier has come to nothing; None while nobody knows."""
        earlier = self._asked.pop(url, "")
        if not earlier:
            return None
        fate = _decoded(await self._ask("GET", f"/workers/{quote(earlier, safe='')}"), _Fate, "answer")
        if isinstance(fate, Trouble) or fate.job_status is None or not fate.job_status.message:
            return None
        return Trouble(f"does not take it: {excerpt(fate.job_status.message)}")

    async def _remove(self, url: str) -> Trouble | None:
        self._asked.pop(url, None)
        for one in self._ids.get(url, ()):
            path = f"/remove_worker?url={quote(one, safe='')}" if self._older else f"/workers/{quote(one, safe='')}"
            answer = await self._ask("POST" if self._older else "DELETE", path)
            gone = isinstance(answer, Answer) and answer.status == httpx.codes.NOT_FOUND
            if not gone and (refusal := _refusal(answer)):
                return refusal
        return None

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> Answer | Trouble:
        return await exchange(self._client, method, self._base + path, self._headers, self._limit_s, body)


def _described(worker: Worker) -> bytes:
    told: dict[str, str | int] = {"url": worker.url, "worker_type": worker.role, "api_key": worker.key}
    told |= {"bootstrap_port": worker.bootstrap_port}
    return msgspec.json.encode({key: value for key, value in told.items() if value})


def _refusal(answer: Answer | Trouble) -> Trouble | None:
    if isinstance(answer, Trouble):
        return answer
    return None if answer.good else answer.trouble


def _decoded(answer: Answer | Trouble, kind: type[Any], what: str) -> Any:
    """The answer's JSON as `kind`, or the trouble with it."""
    if refusal := _refusal(answer):
        return refusal
    assert isinstance(answer, Answer)  # noqa: S101 - a trouble is a refusal
    try:
        return msgspec.convert(json.loads(answer.body), kind)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return Trouble(f"answered no {what}: {excerpt(answer.body) or 'nothing'}")


def _address(url: str) -> str:
    """Without the slash at the end, and without the rank that a gateway puts behind a data-parallel worker."""
    base, at, rank = url.rstrip("/").rpartition("@")
    return base if at and rank.isdecimal() else url.rstrip("/")
