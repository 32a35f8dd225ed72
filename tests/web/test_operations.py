"""The page over HTTP: headers, assets, updates, and who is served what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from supervisor.snapshot import FacetView
from tests.api.conftest import connected
from tests.api.fake import FakeControl, served, served_on_tcp
from tests.metrics import fleet


@pytest.fixture
def control() -> FakeControl:
    return fleet.control()


@pytest.fixture
async def tcp(control: FakeControl) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        served_on_tcp(control) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/style.css", "text/css"), ("/app.js", "text/javascript"), ("/icon.svg", "image/svg+xml")],
)
async def test_everything_is_served_under_a_strict_policy(tcp: httpx.AsyncClient, path: str, kind: str) -> None:
    answer = await tcp.get(path)

    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(kind)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_assets_are_sent_once(tcp: httpx.AsyncClient) -> None:
    first = await tcp.get("/style.css")
    again = await tcp.get("/style.css", headers={"if-none-match": first.headers["etag"]})

    assert (again.status_code, again.content) == (304, b"")


async def test_the_page_weighs_little(tcp: httpx.AsyncClient) -> None:
    """Four servers, ten GPUs, one start of eight ranks; no request goes elsewhere."""
    plain = packed = 0
    for path in ("/", "/style.css", "/app.js", "/icon.svg"):
        plain += len((await tcp.get(path, headers={"accept-encoding": "identity"})).content)
        async with tcp.stream("GET", path, headers={"accept-encoding": "gzip"}) as answer:
            assert answer.headers["content-encoding"] == "gzip"
            packed += len(b"".join([piece async for piece in answer.aiter_raw()]))

    assert plain < 100_000
    assert packed < 20_000


async def test_over_the_socket_the_reader_is_known_and_sees_all(control: FakeControl, tmp_path: Path) -> None:
    async with served(control, tmp_path) as path, connected(path) as local:
        assert "Not enough memory" in (await local.get("/")).text


async def test_over_tcp_it_may_be_anybody(tcp: httpx.AsyncClient) -> None:
    assert "Not enough memory" not in (await tcp.get("/")).text


async def test_a_change_is_sent_within_two_seconds(tcp: httpx.AsyncClient, control: FakeControl) -> None:
    async with asyncio.timeout(20), tcp.stream("GET", "/live") as answer:
        lines = answer.aiter_lines()
        assert answer.headers["content-type"].startswith("text/event-stream")
        first = await event(lines)
        assert 'data-server="qwen3-32b" data-state="running"' in first
        began = asyncio.get_running_loop().time()
        await control.put(fleet.running("qwen3-32b", lifecycle=FacetView("draining", fleet.NOW)))
        while 'data-server="qwen3-32b" data-state="draining"' not in await event(lines):
            pass
        assert asyncio.get_running_loop().time() - began < 3


async def event(lines: AsyncIterator[str]) -> str:
    """The next event's data; comments are passed over."""
    data: list[str] = []
    async for line in lines:
        if line.startswith("data: "):
            data.append(line[6:])
        elif not line and data:
            return "\n".join(data)
    raise ConnectionError("the stream has ended")


async def test_many_readers_are_told_the_same(tcp: httpx.AsyncClient) -> None:
    async def first() -> str:
        async with tcp.stream("GET", "/live") as answer:
            return await event(answer.aiter_lines())

    async with asyncio.timeout(20):
        told = await asyncio.gather(*(first() for _ in range(30)))
    assert len(set(told)) == 1


async def test_the_stream_is_compressed_for_who_can_read_it(tcp: httpx.AsyncClient, control: FakeControl) -> None:
    async with asyncio.timeout(20):
        async with tcp.stream("GET", "/live", headers={"accept-encoding": "identity"}) as answer:
            assert "content-encoding" not in answer.headers
            plain = await event(answer.aiter_lines())
        async with tcp.stream("GET", "/live", headers={"accept-encoding": "gzip"}) as answer:
            assert answer.headers["content-encoding"] == "gzip"
            lines = answer.aiter_lines()
            assert await event(lines) == plain, "the first one has arrived whole, though the stream goes on"
            await control.put(fleet.running("qwen3-32b", lifecycle=FacetView("draining", fleet.NOW)))
            while 'data-server="qwen3-32b" data-state="draining"' not in await event(lines):
                pass
            assert answer.num_bytes_downloaded < len(plain) / 2
