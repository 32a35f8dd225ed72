"""The client for servers of this host says what httpx's own would."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import anyio
import anyio.abc
import httpx
import pytest

from supervisor.edge.probe import local_client
from tests.edge import web
from tests.edge.web import never, response, says, serving

LONG = b"x" * 3_000_000  # more than the buffers of both sides hold


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with local_client() as made:
        yield made


async def outcome(client: httpx.AsyncClient, url: str) -> tuple[int, str, bytes] | type[Exception]:
    """Status, kind and body of the answer, or the kind of error."""
    try:
        with anyio.fail_after(30):
            answer = await client.get(url)
    except httpx.HTTPError as problem:
        return type(problem)
    return answer.status_code, answer.headers.get("content-type", ""), answer.content


@pytest.mark.parametrize(
    "raw",
    [
        response("200 OK", b"all well"),
        response("200 OK", LONG),
        response("503 Service Unavailable"),
        b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nuntil the end",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
    ],
    ids=lambda raw: raw[:45].decode().replace("\r\n", " "),
)
async def test_it_says_what_httpx_would(client: httpx.AsyncClient, raw: bytes) -> None:
    async with serving(says(raw)) as (where, _), web.client() as theirs:
        assert await outcome(client, where) == await outcome(theirs, where)


async def test_the_request_is_the_one_that_httpx_would_send(client: httpx.AsyncClient) -> None:
    headers = {"authorization": "Bearer k", "x-thing": "1"}
    async with serving(says(response("200 OK"))) as (where, asked), web.client() as theirs:
        for one in (client, theirs):
            await one.post(f"{where}/a%20b?c=d", content=b'{"n": 1}', headers={**client.headers, **headers})
    ours, others = ({*one.lower().split(b"\r\n")} for one in asked)
    assert ours == others


async def test_one_servers_cookie_is_for_nobody(client: httpx.AsyncClient) -> None:
    given = b"HTTP/1.1 200 OK\r\nset-cookie: session=1; path=/\r\ncontent-length: 2\r\n\r\nok"
    async with serving(says(given)) as (where, asked):
        for _ in range(2):
            assert await outcome(client, where) == (200, "", b"ok")
    assert not [one for one in asked if b"cookie" in one.lower()]


async def test_a_long_request_is_sent_whole(client: httpx.AsyncClient) -> None:
    async def slow(stream: anyio.abc.SocketStream) -> None:
        while not asked[-1].endswith(b"the end"):
            asked[-1] += await stream.receive()
        await stream.send(response("200 OK"))

    async with serving(slow) as (where, asked):
        with anyio.fail_after(30):
            answer = await client.post(where, content=LONG + b"the end")
    assert answer.status_code == 200
    assert asked[0].endswith(LONG + b"the end")


async def test_a_name_is_looked_up(client: httpx.AsyncClient) -> None:
    async with serving(says(response("200 OK", b"found"))) as (where, _):
        assert (await client.get(where.replace("127.0.0.1", "localhost"))).content == b"found"


@pytest.mark.parametrize("host", ["name.invalid", "a" * 64 + ".invalid"])
async def test_a_name_that_nobody_knows_is_no_connection(client: httpx.AsyncClient, host: str) -> None:
    with anyio.fail_after(30), pytest.raises(httpx.ConnectError):
        await client.get(f"http://{host}:1/")


async def test_a_header_that_none_may_be_is_an_error_of_ours(client: httpx.AsyncClient) -> None:
    async with serving(says(response("200 OK"))) as (where, asked):
        with pytest.raises(httpx.LocalProtocolError):
            await client.get(where, headers={b"authorization": b"Bearer a\nb"})
    assert asked == []


async def test_one_without_end_leaves_the_loop_to_others(client: httpx.AsyncClient) -> None:
    async def flood(stream: anyio.abc.SocketStream) -> None:
        while True:
            await stream.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

    async with serving(flood) as (where, _):
        with anyio.move_on_after(0.2) as scope:
            await client.get(where)
    assert scope.cancelled_caught


async def test_whoever_gives_up_leaves_no_descriptor(client: httpx.AsyncClient) -> None:
    async with serving(never) as (where, _):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with anyio.move_on_after(0.05):
                await client.get(where)
    assert len(os.listdir("/proc/self/fd")) <= before
