"""Servers over the control socket: read, ask, wait."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from supervisor.events import RestartRequested, SignalRequested, StartRequested, StopRequested
from supervisor.snapshot import (
    DeadlineView,
    FacetView,
    ProgressView,
    RankView,
    SpanView,
    StartupView,
    StopView,
    VoteView,
)
from tests.api.fake import FakeControl, snapshot


async def test_all_servers_are_listed_in_order(client: httpx.AsyncClient) -> None:
    body = (await client.get("/v1/servers")).json()
    assert [server["name"] for server in body["servers"]] == ["kimi", "draft"]
    assert body["at"] == "2025-11-29T12:40:00.000Z"


async def test_one_server_tells_states_times_and_seconds(client: httpx.AsyncClient) -> None:
    server = (await client.get("/v1/servers/kimi")).json()

    assert (server["state"], server["state_code"], server["healthy"]) == ("RUNNING", 20, True)
    assert server["description"] == "pid 4242, uptime 0:01:00"
    assert server["lifecycle"] == {
        "value": "running",
        "since": "2025-11-29T12:39:00.000Z",
        "seconds": 60.0,
        "reason": "",
    }
    assert server["exit"] is None


async def test_a_start_tells_ranks_progress_and_timeline(client: httpx.AsyncClient, control: FakeControl) -> None:
    rank = RankView("TP3", "weights", "weights", 130.0, ProgressView(9, 20, "shards", eta_s=80), last_progress=158.0)
    spans = (SpanView("TP3", "launch", 100.0, 130.0), SpanView("TP3", "weights", 130.0))
    start = StartupView("weights", "weights", 130.0, (rank,), "TP3", 158.0, timeline=spans)
    await control.put(snapshot("kimi", "starting", start=start, deadline=460.0))

    server = (await client.get("/v1/servers/kimi")).json()

    assert server["description"] == "weights 45 % for 30 s, TP3 slowest, about 1 m 18 s left in it"
    assert server["deadline_in_s"] == 300.0
    assert server["start"]["ranks"][0]["progress"]["ratio"] == 0.45
    assert server["start"]["ranks"][0]["last_progress_ago_s"] == 2.0
    assert [(span["phase"], span["seconds"], span["end"] is None) for span in server["start"]["timeline"]] == [
        ("launch", 30.0, False),
        ("weights", 30.0, True),
    ]


async def test_votes_deadlines_and_the_last_stop_are_told(client: httpx.AsyncClient, control: FakeControl) -> None:
    await control.put(
        snapshot(
            "kimi",
            "running",
            votes=(VoteView("log", "moving", 155.0, "decode batch"), VoteView("cpu", "unknown", None, "not measured")),
            deadlines=(DeadlineView("weights", 300, 60, 2400, "profile"),),
            stop=StopView("term", exit_s=0.5),
            would_have_killed={"stall": 1},
        )
    )
    server = (await client.get("/v1/servers/kimi")).json()
    assert server["votes"] == [
        {
            "source": "log",
            "says": "moving",
            "since": "2025-11-29T12:39:55.000Z",
            "seconds": 5.0,
            "text": "decode batch",
        },
        {"source": "cpu", "says": "unknown", "since": None, "seconds": None, "text": "not measured"},
    ]
    assert server["deadlines"][0]["limit_s"] == 2400
    assert server["stop"]["exit_s"] == 0.5
    assert server["would_have_killed"] == {"stall": 1}
    story = (await client.get("/v1/servers/kimi/story")).json()
    assert "log: last progress 5 s ago." in story["sentences"]


@pytest.mark.parametrize(
    ("verb", "body", "event"),
    [
        ("start", {"force": True}, StartRequested),
        ("start", None, StartRequested),
        ("stop", None, StopRequested),
        ("restart", {"reason": "new weights"}, RestartRequested),
        ("signal", {"signal": "SIGHUP"}, SignalRequested),
        ("signal", {"signal": 1}, SignalRequested),
    ],
)
async def test_a_verb_becomes_an_event_that_names_who_asked(
    client: httpx.AsyncClient, control: FakeControl, verb: str, body: dict[str, object] | None, event: type
) -> None:
    answer = await client.post(f"/v1/servers/kimi/{verb}", json=body)

    assert answer.status_code == 202
    ((name, asked),) = control.requests
    assert name == "kimi"
    assert type(asked) is event
    assert asked.by.startswith("uid ")
    match asked:
        case StartRequested():
            assert asked.force is bool(body)
        case RestartRequested():
            assert asked.reason == "new weights"
        case SignalRequested():
            assert asked.signal == 1


async def test_a_request_that_changes_nothing_says_so(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/servers/kimi/start")).json()["changed"] is False
    assert (await client.post("/v1/servers/draft/start")).json()["changed"] is True
    assert (await client.post("/v1/servers/draft/stop")).json()["changed"] is True
    assert (await client.post("/v1/servers/draft/stop")).json()["changed"] is False


async def test_the_answer_shows_the_state_after_the_request(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/servers/draft/start")).json()["server"]["state"] == "STARTING"


async def test_a_stopped_server_cannot_be_signalled(client: httpx.AsyncClient, control: FakeControl) -> None:
    answer = await client.post("/v1/servers/draft/signal", json={"signal": "HUP"})
    assert (answer.status_code, answer.json()) == (409, {"error": "cannot signal draft: it is not running"})
    assert control.requests == []


@pytest.mark.parametrize("signal", ["NOPE", 0, 999, "SIGSIG", "", "-9", 64.5, None, "\x1b[2J"])
async def test_a_bad_signal_is_refused(client: httpx.AsyncClient, signal: object) -> None:
    answer = await client.post("/v1/servers/kimi/signal", json={"signal": signal})
    assert answer.status_code == 400
    assert "\x1b" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/servers/none"),
        ("POST", "/v1/servers/none/start"),
        ("GET", "/v1/servers/none/wait"),
        ("GET", "/v1/servers/none/log"),
        ("GET", "/v1/servers/none/story"),
        ("GET", "/v1/servers/%1b%5b2J"),
    ],
)
async def test_an_unknown_server_is_404(client: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await client.request(method, path)
    assert answer.status_code == 404
    assert answer.json()["error"].startswith("no such server: ")
    assert answer.json()["error"].isprintable()


async def test_waiting_for_a_healthy_server_returns_at_once(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/servers/kimi/wait")).json()["outcome"] == "reached"


async def test_waiting_returns_within_20_ms_of_readiness(client: httpx.AsyncClient, control: FakeControl) -> None:
    lags = []
    for _ in range(5):
        await control.put(snapshot("kimi", "starting"))
        waiting = asyncio.create_task(client.get("/v1/servers/kimi/wait"))
        await control.waiters(1)
        begun = time.perf_counter()
        await control.put(snapshot("kimi", "running"))
        assert (await waiting).json()["outcome"] == "reached"
        lags.append(time.perf_counter() - begun)
    assert min(lags) < 0.02


@pytest.mark.parametrize("state", ["fatal", "quarantined"])
async def test_waiting_for_health_gives_up_at_once(client: httpx.AsyncClient, control: FakeControl, state: str) -> None:
    await control.put(snapshot("kimi", "starting"))
    waiting = asyncio.create_task(client.get("/v1/servers/kimi/wait"))
    await control.waiters(1)
    await control.put(snapshot("kimi", state))
    answer = (await waiting).json()
    assert (answer["outcome"], answer["server"]["state"]) == ("gave-up", "FATAL")


async def test_running_without_readiness_is_not_healthy(client: httpx.AsyncClient, control: FakeControl) -> None:
    await control.put(snapshot("kimi", "running", readiness=FacetView("failure", 100.0)))
    answer = await client.get("/v1/servers/kimi/wait", params={"timeout_s": 0.01})
    assert answer.json()["outcome"] == "time-out"


@pytest.mark.parametrize(("state", "said"), [("stopped", "reached"), ("fatal", "reached"), ("quarantined", "gave-up")])
async def test_waiting_for_the_end(client: httpx.AsyncClient, control: FakeControl, state: str, said: str) -> None:
    await control.put(snapshot("kimi", "stopping"))
    waiting = asyncio.create_task(client.get("/v1/servers/kimi/wait", params={"for": "stopped"}))
    await control.waiters(1)
    await control.put(snapshot("kimi", state))
    assert (await waiting).json()["outcome"] == said


async def test_a_waiter_that_goes_away_leaves_nothing(client: httpx.AsyncClient, control: FakeControl) -> None:
    waiting = asyncio.create_task(client.get("/v1/servers/draft/wait"))
    await control.waiters(1)
    waiting.cancel()
    await control.waiters(0)


async def test_a_server_removed_during_the_wait_is_404(client: httpx.AsyncClient, control: FakeControl) -> None:
    waiting = asyncio.create_task(client.get("/v1/servers/draft/wait"))
    await control.waiters(1)
    await control.remove("draft")
    assert (await waiting).status_code == 404


@pytest.mark.parametrize("query", ["for=x", "timeout_s=-1", "timeout_s=nan", "timeout_s=inf", "timeout_s=x", "other=1"])
async def test_a_wrong_query_is_refused(client: httpx.AsyncClient, query: str) -> None:
    answer = await client.get(f"/v1/servers/kimi/wait?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("cannot use the query: ")
