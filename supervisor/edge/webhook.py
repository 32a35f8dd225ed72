"""Sends one JSON message to a URL and says whether it was taken; every error is an outcome, never raised."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import anyio
import httpx
import msgspec

SEND_LIMIT_S = 10.0
_TEMPORARY = frozenset({408, 425, 429})


class Sent(msgspec.Struct, frozen=True):
    """What became of a message. `again`: another try may help. `problem` never holds the URL, which may be secret."""

    problem: str = ""
    again: bool = False


class Messenger:
    """One HTTP client for all webhooks; it honours proxies of the environment, unlike probes of local servers."""

    def __init__(self, limit_s: float = SEND_LIMIT_S) -> None:
        self._limit_s = limit_s
        self._client: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> Sent:
        """POST the message once."""
        client = self._client = self._client or _client()
        try:
            with anyio.fail_after(self._limit_s):
                async with client.stream("POST", url, content=body, headers={**_JSON, **headers}) as answer:
                    status = answer.status_code
        except TimeoutError:
            return Sent(f"no answer within {self._limit_s:g} s", again=True)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError, ValueError) as problem:
            return Sent(f"cannot be sent: {type(problem).__name__}")
        except (httpx.HTTPError, OSError) as problem:
            return Sent(f"cannot be reached: {type(problem).__name__}", again=True)
        if 200 <= status < 300:
            return Sent()
        return Sent(f"answered {status}", again=status >= 500 or status in _TEMPORARY)


_JSON = {"content-type": "application/json", "user-agent": "sglang-supervisor"}


def _client() -> httpx.AsyncClient:
    """Made at the first message: most hosts have no webhook, and a TLS context is slow to make."""
    return httpx.AsyncClient(
        follow_redirects=False,
        http2=False,
        limits=httpx.Limits(max_keepalive_connections=0, max_connections=8),
        timeout=None,  # noqa: S113 - the deadline around each message also ends a byte-a-second answer
    )
