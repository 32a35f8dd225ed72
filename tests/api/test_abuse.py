"""Everything that a bad client can do at once, and what the others notice of it: nothing."""

from __future__ import annotations

import asyncio
import resource
import statistics
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.api.fake import FakeControl, dialled

BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    b"<methodCall><methodName>&b;</methodName></methodCall>"
)
SENT = {
    "half a head": b"GET /v1/servers HTT",
    "a follower that never reads": b"GET /v1/events?since=0&follow=true HTTP/1.1\r\nHost: d\r\n\r\n",
    "a body that never ends": b"POST /v1/servers/kimi/start HTTP/1.1\r\nHost: d\r\nTransfer-Encoding: chunked\r\n\r\n"
     b"10000\r\n" + b"x" * 65536 + b"\r\n",
    "ten megabytes": b"POST /RPC2 HTTP/1.1\r\nHost: d\r\nContent-Length: 10485760\r\n\r\n" + b"<" * 2**20,
    "an XML bomb": b"POST /RPC2 HTTP/1.1\r\nHost: d\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB,
    "deep JSON": b"POST /v1/servers/kimi/signal HTTP/1.1\r\nHost: d\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100000,
    "no HTTP": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" * 100,
}  # fmt: skip
EACH = 20
OTHERS_S = 1.0  # a crowded machine; 50 ms are promised and measured in bench
GROWTH_KIB = 96 * 1024


async def abuse(stack: AsyncExitStack, path: Path, data: bytes) -> None:
    _, writer = await stack.enter_async_context(dialled(path))
    writer.write(data)
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(0.05):  # whoever is not read from has sent enough
            await writer.drain()


@pytest.mark.parametrize("kinds", [[kind] for kind in SENT] + [list(SENT)], ids=lambda kinds: ", ".join(kinds)[:40])
async def test_others_are_served_as_ever(
    client: httpx.AsyncClient, control: FakeControl, tmp_path: Path, kinds: list[str]
) -> None:
    for number in range(300):
        await control.record("kimi", f"s{number}", "x" * 2000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with AsyncExitStack() as stack:
        for kind in kinds * EACH:
            await abuse(stack, tmp_path / "s", SENT[kind])
        took = []
        for _ in range(25):
            begun = time.perf_counter()
            assert (await client.get("/v1/servers/kimi")).status_code == 200
            took.append(time.perf_counter() - begun)
            await control.record("kimi", "more", "y" * 2000)
    assert statistics.median(took) < OTHERS_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB
    assert control.requests == []
