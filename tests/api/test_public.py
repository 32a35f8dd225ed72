"""Over TCP nobody learns what a log, a command line or another user's process said."""

from __future__ import annotations

import httpx
import msgspec

from supervisor.snapshot import (
    DiagnosisView,
    DrainView,
    ExitView,
    FacetView,
    RankView,
    RouterView,
    StartupView,
    VoteView,
)
from tests.api.fake import FakeControl, served_on_tcp, snapshot
from tests.api.test_gpus import LEASED, OUT
from tests.api.test_story import STALL

SECRET = "the user's prompt"


def telling() -> dict[str, object]:
    """Everything that can quote something does."""
    said = FacetView("starting", 100.0, SECRET)
    ranks = (RankView("TP0", "weights", "weights", 100.0, last_line=SECRET),)
    return {
        "lifecycle": said,
        "verdict": msgspec.structs.replace(said, value="stalled"),
        "readiness": msgspec.structs.replace(said, value="failure"),
        "liveness": msgspec.structs.replace(said, value="unknown"),
        "maintenance": msgspec.structs.replace(said, value="on"),
        "start": StartupView("weights", "weights", 100.0, ranks),
        "exit": ExitView(1, 90.0, 1, SECRET),
        "diagnosis": DiagnosisView("cuda-oom", "maybe", SECRET, 7, SECRET, 0.9),
        "evidence_path": f"/e/{SECRET}",
        "log_path": f"/l/{SECRET}",
        "votes": (VoteView("log", "still", 100.0, SECRET),),
        "drain": DrainView(3, 120.0, SECRET),
        "routers": (RouterView("front", "unreachable", SECRET),),
        "incidents": (msgspec.structs.replace(STALL, reason=SECRET),),
    }


async def test_states_and_phases_are_public_and_words_are_not(control: FakeControl) -> None:
    await control.put(snapshot("kimi", "starting", **telling()))
    async with served_on_tcp(control) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        answers = [await client.get("/v1/servers"), await client.get("/v1/servers/kimi")]
    assert all(SECRET not in answer.text for answer in answers)
    server = answers[1].json()
    assert (server["state"], server["start"]["phase"], server["diagnosis"]["cause"]) == (
        "STARTING",
        "weights",
        "cuda-oom",
    )


async def test_the_socket_tells_everything(client: httpx.AsyncClient, control: FakeControl) -> None:
    await control.put(snapshot("kimi", "starting", **telling()))
    assert (await client.get("/v1/servers/kimi")).text.count(SECRET) > 10


async def test_other_peoples_processes_are_sizes_alone(control: FakeControl) -> None:
    control.put_gpus(LEASED, OUT)
    async with served_on_tcp(control) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        answer = await client.get("/v1/gpus")
    assert not any(word in answer.text for word in ("alice", "train.py"))
    assert [(one["kind"], one["pid"]) for one in answer.json()["gpus"][0]["holders"]] == [("server", 0), ("foreign", 0)]
    assert answer.json()["gpus"][0]["memory"]["foreign"] == 2 * 2**30
