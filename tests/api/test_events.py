"""Events are listed, followed, resumed; a follower who does not read holds up nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.api.fake import FakeControl, dialled


async def rows_of(response: httpx.Response) -> AsyncIterator[tuple[str, dict[str, object]]]:
    """Id and data of each server-sent event."""
    identity = ""
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            identity = line[4:]
        if line.startswith("data: "):
            yield identity, json.loads(line[6:])


async def test_the_last_events_are_listed_oldest_first(client: httpx.AsyncClient, control: FakeControl) -> None:
    for state in ("starting", "running", "stopping"):
        await control.record("kimi", state)
    body = (await client.get("/v1/events", params={"limit": 2})).json()
    assert [event["after"] for event in body["events"]] == ["running", "stopping"]
    assert body["last"] == 3
    assert body["events"][0]["at"] == "2025-11-29T12:40:02.000Z"


async def test_events_after_an_id_and_of_one_server(client: httpx.AsyncClient, control: FakeControl) -> None:
    for number in range(6):
        await control.record("kimi" if number % 2 else "draft", f"s{number}")
    body = (await client.get("/v1/events", params={"since": 2, "server": "kimi"})).json()
    assert [event["id"] for event in body["events"]] == [4, 6]
    assert (await client.get("/v1/events", params={"since": 6})).json() == {"events": [], "last": 6}


async def test_events_of_an_unknown_server_are_404(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/events", params={"server": "none"})).status_code == 404


@pytest.mark.parametrize("query", ["since=-1", "since=x", "limit=0", "limit=1001", "follow=maybe", "x=1"])
async def test_a_wrong_query_is_refused(client: httpx.AsyncClient, query: str) -> None:
    assert (await client.get(f"/v1/events?{query}")).status_code == 400


async def test_events_are_followed_as_they_happen(client: httpx.AsyncClient, control: FakeControl) -> None:
    await control.record("kimi", "starting")
    async with client.stream("GET", "/v1/events", headers={"accept": "text/event-stream"}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        rows = rows_of(response)
        assert (await anext(rows))[1]["after"] == "starting"
        await control.record("kimi", "running", "healthy\nid: 99\ndata: forged")
        identity, event = await anext(rows)
        assert (identity, event["after"]) == ("2", "running")
        assert event["reason"] == "healthy\nid: 99\ndata: forged"


async def test_a_follower_resumes_where_it_was(client: httpx.AsyncClient, control: FakeControl) -> None:
    for number in range(5):
        await control.record("kimi", f"s{number}")
    headers = {"accept": "text/event-stream", "last-event-id": "3"}
    async with client.stream("GET", "/v1/events?since=0", headers=headers) as response:
        rows = rows_of(response)
        assert [(await anext(rows))[0] for _ in range(2)] == ["4", "5"]


async def test_a_follower_far_behind_gets_everything_in_order(client: httpx.AsyncClient, control: FakeControl) -> None:
    for number in range(950):
        await control.record("kimi", f"s{number}")
    async with client.stream("GET", "/v1/events?since=0&follow=true") as response:
        rows = rows_of(response)
        assert [(await anext(rows))[0] for _ in range(950)] == [str(number) for number in range(1, 951)]


@pytest.mark.parametrize("header", ["x", "-1", "9" * 30, "٣".encode()])
async def test_a_wrong_last_event_id_is_refused(client: httpx.AsyncClient, header: str | bytes) -> None:
    headers = {
        b"accept": b"text/event-stream",
        b"last-event-id": header if isinstance(header, bytes) else header.encode(),
    }
    assert (await client.get("/v1/events", headers=headers)).status_code == 400


async def test_a_follower_that_goes_away_leaves_nothing(client: httpx.AsyncClient, control: FakeControl) -> None:
    async with client.stream("GET", "/v1/events?follow=true") as response:
        await anext(response.aiter_bytes())
        await control.waiters(1)
    await control.waiters(0)


async def test_a_follower_that_never_reads_holds_up_nobody(
    client: httpx.AsyncClient, control: FakeControl, tmp_path: Path
) -> None:
    async with dialled(tmp_path / "s") as (_, writer):
        writer.write(b"GET /v1/events?since=0&follow=true HTTP/1.1\r\nHost: d\r\n\r\n")
        await writer.drain()
        for _ in range(300):
            await control.record("kimi", "running", "x" * 5000)
        async with asyncio.timeout(5):
            assert (await client.get("/v1/servers/kimi")).status_code == 200
