"""Reads an engine's own counters from its Prometheus page, bounded in size and time, and without raising."""

from __future__ import annotations

import math
from collections.abc import Iterable

import anyio
import anyio.to_thread
import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from supervisor.events import EngineSampled
from supervisor.lines import printable
from supervisor.profile import EngineMetrics

PAGE_LIMIT_BYTES = 2**20
READ_LIMIT_S = 5.0
INLINE_BYTES = 64 * 1024  # more than that is looked through in a thread
_EXCERPT = 200
_ABSENT = frozenset({401, 403, 404, 405, 501})  # not switched on, or not for us: asking again soon changes nothing


class NoCounters(msgspec.Struct, frozen=True):
    """Why there was nothing to read. `absent`: the engine has no such page, which will hardly change soon."""

    reason: str
    absent: bool = False


async def read(
    client: httpx.AsyncClient,
    attempt: int,
    base: str,
    names: EngineMetrics,
    key: str = "",
    limit_s: float = READ_LIMIT_S,
) -> EngineSampled | NoCounters:
    """The counters now. `base` is "http://HOST:PORT"; `key` is what the server wants its clients to present."""
    if not names.path:
        return NoCounters("the profile names no metrics page", absent=True)
    try:
        with anyio.move_on_after(limit_s):
            return await _read(client, attempt, base + names.path, names, key)
    except httpx.ConnectError as problem:
        return NoCounters(f"nobody listens: {_excerpt(problem)}", absent=True)
    except httpx.LocalProtocolError:  # its text would quote the key
        return NoCounters("cannot make the request: the key has letters that no header may have", absent=True)
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as problem:
        return NoCounters(f"{type(problem).__name__}: {_excerpt(problem)}")
    return NoCounters(f"no complete page within {limit_s:g} s")


async def _read(
    client: httpx.AsyncClient, attempt: int, url: str, names: EngineMetrics, key: str
) -> EngineSampled | NoCounters:
    headers = {b"authorization": b"Bearer " + key.encode()} if key else {}
    async with client.stream("GET", url, headers=headers) as response:
        if response.status_code != httpx.codes.OK:
            return NoCounters(f"status {response.status_code}", absent=response.status_code in _ABSENT)
        page = bytearray()
        async for piece in response.aiter_raw():
            page += piece
            if len(page) > PAGE_LIMIT_BYTES:
                return NoCounters(f"the page is longer than {PAGE_LIMIT_BYTES} bytes")
    if len(page) <= INLINE_BYTES:
        return sample(attempt, bytes(page), names)
    return await anyio.to_thread.run_sync(sample, attempt, bytes(page), names)


def sample(attempt: int, page: bytes, names: EngineMetrics) -> EngineSampled | NoCounters:
    """The sums that the page has. A page is mostly histograms: only lines that begin with a wanted name are parsed."""
    wanted = tuple(name.encode() for name in (*names.tokens, *names.requests, *names.running, *names.queued))
    lines = b"\n".join(line for line in page.split(b"\n") if line.startswith(wanted)).decode("utf-8", "replace")
    found: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(f"{lines}\n"):
            for one in family.samples:
                if math.isfinite(one.value):
                    found[one.name] = found.get(one.name, 0.0) + one.value
    except ValueError as problem:
        return NoCounters(f"not a Prometheus page: {_excerpt(problem)}")
    if not found:
        return NoCounters("the page has none of the names in the profile (yet)")
    return EngineSampled(
        attempt,
        tokens=_sum(found, names.tokens),
        requests=_sum(found, names.requests),
        running=_sum(found, names.running),
        queued=_sum(found, names.queued),
    )


def _sum(found: dict[str, float], names: Iterable[str]) -> float | None:
    values = [found[name] for name in names if name in found]
    return sum(values) if values else None


def _excerpt(problem: Exception) -> str:
    return printable(str(problem), " ")[:_EXCERPT]
