"""One bounded HTTP exchange with a router or a receiver; every error is an answer, never raised."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import httpx
import msgspec

from supervisor.edge.router.parts import Trouble, excerpt

BODY_LIMIT_BYTES = 4 * 2**20  # a thousand workers with their metadata are less than one


class Answer(msgspec.Struct, frozen=True):
    """A complete answer."""

    status: int
    body: bytes

    @property
    def good(self) -> bool:
        """Whether it says that it was done, or will be."""
        return 200 <= self.status < 300

    @property
    def trouble(self) -> Trouble:
        """What to say of an answer that is not good."""
        said = excerpt(self.body)
        return Trouble(f"answered {self.status}: {said}" if said else f"answered {self.status}")


def gateway_client(url: str) -> httpx.AsyncClient:
    """For one router: no connection is kept (it would outlive the router), no proxy asked, no redirect followed."""
    return httpx.AsyncClient(
        trust_env=False,
        follow_redirects=False,
        verify=url.startswith("https://"),  # to load the certificates costs time and memory
        limits=httpx.Limits(max_keepalive_connections=0, max_connections=8),
        headers={"connection": "close", "user-agent": "sglang-supervisor", "accept-encoding": "identity"},
        timeout=None,  # noqa: S113 - each exchange has a deadline, which also ends a byte-a-second answer
    )


async def exchange(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    headers: Mapping[str, str],
    limit_s: float,
    body: bytes | None = None,
) -> Answer | Trouble:
    """Ask once."""
    given = {"content-type": "application/json", **headers} if body is not None else dict(headers)
    try:
        with anyio.move_on_after(limit_s):
            return await _ask(client, method, url, given, body)
    except httpx.ConnectError:
        return Trouble("nobody listens")
    except httpx.LocalProtocolError:  # its text would quote a header
        return Trouble("cannot make the request: a header has letters that none may have")
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, UnicodeError) as problem:
        return Trouble(f"broke off: {type(problem).__name__}")
    return Trouble(f"no complete answer within {limit_s:g} s")


async def _ask(
    client: httpx.AsyncClient, method: str, url: str, headers: Mapping[str, str], body: bytes | None
) -> Answer | Trouble:
    async with client.stream(method, url, headers=headers, content=body) as response:
        data = bytearray()
        async for piece in response.aiter_raw():
            data += piece
            if len(data) > BODY_LIMIT_BYTES:
                return Trouble(f"its answer is longer than {BODY_LIMIT_BYTES} bytes")
        return Answer(response.status_code, bytes(data))
