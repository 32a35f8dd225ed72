"""Constant load on one address from several clients at once, with every failure counted."""

import asyncio
import threading
from collections import Counter
from types import TracebackType
from typing import Self

import httpx

JOIN_LIMIT_S = 60.0
ANSWER_LIMIT_S = 30.0


class Load:
    """Clients that each send the next request as soon as they have the answer to the last; a thread of their own."""

    def __init__(self, url: str, *, clients: int = 6, tokens: int = 3000) -> None:
        self.url = url
        self.answered = 0
        self.failures: list[str] = []
        self.by: Counter[str] = Counter()  # answers per server, where they tell
        self._clients = clients
        self._body = {"text": "hi", "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
        self._tokens = tokens
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Let the last requests end."""
        self._over.set()
        self._thread.join(JOIN_LIMIT_S)
        assert not self._thread.is_alive(), "requests without an end"

    async def _all(self) -> None:
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=ANSWER_LIMIT_S) as client:  # noqa: S501
            await asyncio.gather(*(self._one(client) for _ in range(self._clients)))

    async def _one(self, client: httpx.AsyncClient) -> None:
        while not self._over.is_set():
            try:
                answer = await client.post(f"{self.url}/generate", json=self._body)
            except httpx.HTTPError as problem:
                self.failures.append(f"{type(problem).__name__}: {problem}")
                await asyncio.sleep(0.05)
                continue
            told = answer.json()["meta_info"]["completion_tokens"] if answer.status_code == 200 else 0
            if told == self._tokens:
                self.answered += 1
            else:
                self.failures.append(f"{answer.status_code}: {answer.text[-150:]}")
                await asyncio.sleep(0.05)
