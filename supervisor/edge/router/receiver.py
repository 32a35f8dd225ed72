"""Tells a webhook's receiver who joins and who leaves; it is believed to have whom it has confirmed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import httpx
import msgspec

from supervisor.edge.router.client import Answer, exchange
from supervisor.edge.router.parts import Listed, Trouble, Worker


class Notice(msgspec.Struct, frozen=True):
    """What is posted: `event` is join or leave. The same may come twice, since an answer can be lost."""

    router: str
    event: str
    server: str
    url: str
    role: str = ""


class Receiver:
    """One receiver. It cannot be asked, so a new one is told of everybody once.

    Whom it was told of and did not answer it may have or not: it is told again, whichever way is wanted by then.
    """

    def __init__(
        self, client: httpx.AsyncClient, name: str, url: str, headers: Mapping[str, str], limit_s: float
    ) -> None:
        self._client = client
        self._name = name
        self._url = url
        self._headers = headers
        self._limit_s = limit_s
        self._joined: set[str] = set()
        self._left: set[str] = set()

    async def listed(self) -> Listed | Trouble:
        """Those whose joining it has confirmed."""
        return Listed(frozenset(self._joined), frozenset(self._joined), complete=False)

    async def change(self, joining: Sequence[Worker], leaving: Sequence[Worker]) -> Trouble | None:
        """All are told, those who leave first; the first trouble is answered."""
        troubles = [await self._tell("leave", worker) for worker in leaving if worker.url not in self._left]
        troubles += [await self._tell("join", worker) for worker in joining if worker.url not in self._joined]
        return next((trouble for trouble in troubles if trouble is not None), None)

    async def _tell(self, event: str, worker: Worker) -> Trouble | None:
        confirmed, other = (self._joined, self._left) if event == "join" else (self._left, self._joined)
        other.discard(worker.url)  # from now on nobody knows, until it answers
        body = msgspec.json.encode(Notice(self._name, event, worker.server, worker.url, worker.role))
        answer = await exchange(self._client, "POST", self._url, self._headers, self._limit_s, body)
        if not isinstance(answer, Answer):
            return answer
        if not answer.good:
            return Trouble(f"answered {answer.status}")  # what it says may be its address or a secret
        confirmed.add(worker.url)
        return None
