"""A server's past over the control socket: story, timeline, bundles."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import httpx
import msgspec
import pytest

from supervisor.api.wire import iso
from supervisor.edge.archive import LogArchive, finish, live_path, segments
from supervisor.snapshot import DeadlineView, DiagnosisView, FacetView, SpanView, StartupView, StopView
from tests.api.fake import FakeControl, snapshot
from tests.api.test_story import STALL

SPANS = (SpanView("TP0", "launch", 100.0, 103.0), SpanView("TP0", "weights", 103.0))


@pytest.fixture
def bundle(control: FakeControl, tmp_path: Path) -> Path:
    """The evidence of kimi's third attempt, as the daemon keeps it."""
    control.state_dir = str(tmp_path)
    place = tmp_path / "evidence" / "kimi" / "000003"
    place.mkdir(parents=True)
    start = StartupView("weights", "weights", 103.0, timeline=SPANS)
    facts = {"reason": "x", "wall": 1764410000.0, "snapshot": snapshot("kimi", "starting", attempt=3, start=start)}
    (place / "facts.json").write_bytes(msgspec.json.encode(facts))
    for number in range(3):
        frame = "capture" if number == 1 else "all_reduce"
        text = f'Thread 1 (idle): "MainThread"\n    {frame} (a.py:1)\n'
        (place / f"stack-scheduler-TP{number}-70{number}.txt").write_text(text)
    manifest = {"server": "kimi", "attempt": 3, "reason": "stalled", "wall": 1764410000.0, "took_s": 1.0}
    files = [{"name": "facts.json", "bytes": (place / "facts.json").stat().st_size, "sha256": "0"}]
    (place / "manifest.json").write_bytes(msgspec.json.encode({**manifest, "files": files, "missing": ["x: gone"]}))
    return place


async def test_the_story_tells_the_last_failure_and_the_odd_rank(
    client: httpx.AsyncClient, control: FakeControl, bundle: Path
) -> None:
    older = msgspec.structs.replace(STALL, attempt=2, reason="exited with status 1", evidence_path="")
    incidents = (older, msgspec.structs.replace(STALL, evidence_path=str(bundle)))
    await control.put(snapshot("kimi", "running", attempt=4, incidents=incidents))
    await control.record("kimi", "running")

    story = (await client.get("/v1/servers/kimi/story")).json()

    assert story["told"] == 3
    assert story["odd_rank"] == "TP1 is in capture, the other 2 ranks are in all_reduce"
    assert f"by the stacks {story['odd_rank']}." in story["sentences"]
    assert story["evidence_path"] == str(bundle)
    assert [(one["attempt"], one["signal"]) for one in story["incidents"]] == [(2, "KILL"), (3, "KILL")]
    assert [event["after"] for event in story["events"]] == ["running"]

    earlier = (await client.get("/v1/servers/kimi/story?attempt=2")).json()
    assert (earlier["told"], earlier["odd_rank"]) == (2, "")


async def test_a_present_trouble_has_its_own_log_and_nothing_of_an_earlier_one(
    client: httpx.AsyncClient, control: FakeControl, bundle: Path
) -> None:
    incident = msgspec.structs.replace(STALL, evidence_path=str(bundle))
    hung = FacetView("stalled", 100.0, "stalled: no token for 300 s")
    now = snapshot("kimi", "running", attempt=4, incidents=(incident,), verdict=hung, log_path="/var/log/s/kimi/4.log")
    await control.put(now)

    story = (await client.get("/v1/servers/kimi/story")).json()
    assert (story["told"], story["diagnosis"], story["evidence_path"], story["odd_rank"]) == (None, None, "", "")
    assert story["log_path"] == "/var/log/s/kimi/4.log"
    assert story["sentences"][-1].startswith("earlier: attempt 3 failed ")

    asked = (await client.get("/v1/servers/kimi/story?attempt=3")).json()
    assert (asked["told"], asked["evidence_path"]) == (3, str(bundle))
    assert "first cause: capture-hang; a restart can help." in asked["sentences"]


async def test_a_log_that_no_signature_knows_is_shown_and_found_again(
    client: httpx.AsyncClient, control: FakeControl, tmp_path: Path
) -> None:
    """Its live file is gone: it has been archived."""
    text = b"".join(b"line %d\n" % number for number in range(20)) + b"\ncannot import: numpy is missing\n"
    path = live_path(tmp_path, 3)
    path.write_bytes(text)
    LogArchive(tmp_path, 3).archive(len(text) // 2)
    unknown = DiagnosisView("insufficient-evidence", remedy="read it", confidence=0.1)
    failed = msgspec.structs.replace(STALL, diagnosis=unknown, evidence_path="", log_path=str(path))
    await control.put(snapshot("kimi", "backoff", attempt=5, incidents=(failed,), log_path=str(live_path(tmp_path, 5))))

    story = (await client.get("/v1/servers/kimi/story")).json()
    words = story["sentences"].index("the last lines of its log, none of which names the cause for sure:")
    assert story["sentences"][words + 1 : words + 6] == [
        *(f"  line {number}" for number in range(16, 20)),
        "  cannot import: numpy is missing",
    ]
    assert story["log_segments"] == []

    finish(tmp_path, 3)
    archived = (await client.get("/v1/servers/kimi/story")).json()
    assert archived["sentences"] == story["sentences"]
    assert archived["log_segments"] == [str(tmp_path / one.name) for one in segments(tmp_path, 3)]
    tail = await client.get("/v1/servers/kimi/log?attempt=3&lines=2")
    assert tail.content == b"\ncannot import: numpy is missing\n"
    assert (await client.get("/v1/servers/kimi/log?attempt=3&offset=0&length=7")).content == b"line 0\n"
    followed = await client.get("/v1/servers/kimi/log?attempt=3&follow=true")
    assert followed.json() == {"error": "cannot follow attempt 3 of kimi: it is not the present one"}
    assert (await client.get("/v1/servers/kimi/log?attempt=2")).status_code == 404


async def test_a_sure_cause_needs_no_last_lines(
    client: httpx.AsyncClient, control: FakeControl, tmp_path: Path
) -> None:
    (tmp_path / "kimi.log").write_text("something\n")
    sure = DiagnosisView("draft-context", "no", evidence_line=1, evidence="something", confidence=0.9)
    failed = msgspec.structs.replace(STALL, diagnosis=sure, evidence_path="", log_path=str(tmp_path / "kimi.log"))
    await control.put(snapshot("kimi", "backoff", attempt=3, incidents=(failed,)))
    assert "last lines" not in (await client.get("/v1/servers/kimi/story")).text


async def test_memory_that_came_back_after_the_decision_is_told(
    client: httpx.AsyncClient, control: FakeControl
) -> None:
    decided = msgspec.structs.replace(STALL, stop=StopView("kill", empty_s=3.6), evidence_path="")
    stop = StopView("kill", empty_s=3.6, free_s=4.1)
    await control.put(snapshot("kimi", "backoff", attempt=3, incidents=(decided,), stop=stop, gpus=(0,)))
    story = (await client.get("/v1/servers/kimi/story")).json()
    assert "GPU memory back after 4.1 s" in " ".join(story["sentences"])


async def test_an_attempt_that_did_not_fail_has_no_story(client: httpx.AsyncClient, control: FakeControl) -> None:
    await control.put(snapshot("kimi", "running", attempt=4, incidents=(STALL,)))
    answer = await client.get("/v1/servers/kimi/story?attempt=4")
    assert answer.status_code == 404
    assert answer.json() == {"error": "no failure of attempt 4 of kimi is remembered; there are: 3"}


async def test_a_server_without_failures_has_a_story(client: httpx.AsyncClient) -> None:
    story = (await client.get("/v1/servers/draft/story")).json()
    assert (story["told"], story["incidents"]) == (None, [])
    assert story["sentences"] == [
        "draft is STOPPED (Not started); it is wanted down.",
        "next: nothing, until somebody starts it: sglctl start draft",
    ]


async def test_the_present_timeline_tells_deadline_and_what_is_usual(
    client: httpx.AsyncClient, control: FakeControl
) -> None:
    start = StartupView("weights", "weights", 103.0, laggard="TP0 still in weights", timeline=SPANS)
    deadlines = (DeadlineView("weights", 300, 60, 2400, "learned", 4, 31.0), DeadlineView("jit", 60, 60, 60, "profile"))
    await control.put(snapshot("kimi", "starting", attempt=4, start=start, deadline=190.0, deadlines=deadlines))

    found = (await client.get("/v1/servers/kimi/timeline")).json()

    assert (found["attempt"], found["phase"], found["stall_in_s"]) == (4, "weights", 30.0)
    assert [(span["phase"], span["seconds"]) for span in found["spans"]] == [("launch", 3.0), ("weights", 57.0)]
    assert found["usual"] == {"weights": 31.0}


async def test_an_earlier_timeline_comes_from_the_evidence(
    client: httpx.AsyncClient, control: FakeControl, bundle: Path
) -> None:
    await control.put(snapshot("kimi", "running", attempt=4))
    found = (await client.get("/v1/servers/kimi/timeline?attempt=3")).json()
    assert found["at"] == "2025-11-29T09:53:20.000Z"
    assert found["spans"][0]["begin"] == "2025-11-29T09:53:20.000Z"
    assert found["ended"] == found["at"], "nobody remembers when, but it is over"

    failed = msgspec.structs.replace(STALL, attempt=3, ended=150.0)
    await control.put(snapshot("kimi", "running", attempt=4, incidents=(failed,)))
    found = (await client.get("/v1/servers/kimi/timeline?attempt=3")).json()
    assert found["ended"] == iso(control.clock().wall_of(150.0))

    (bundle / "facts.json").write_text("{cut")
    answer = await client.get("/v1/servers/kimi/timeline?attempt=3")
    assert answer.status_code == 404


async def test_bundles_are_listed_with_what_is_missing(client: httpx.AsyncClient, bundle: Path) -> None:
    (bundle.parent / "000005").mkdir()
    found = (await client.get("/v1/servers/kimi/bundles")).json()["bundles"]
    assert [(one["attempt"], one["complete"]) for one in found] == [(5, False), (3, True)]
    assert (found[1]["reason"], found[1]["files"], found[1]["missing"]) == ("stalled", ["facts.json"], ["x: gone"])


async def test_a_bundle_has_the_cause_of_its_attempts_failure(
    client: httpx.AsyncClient, control: FakeControl, bundle: Path
) -> None:
    assert (await client.get("/v1/servers/kimi/bundles")).json()["bundles"][0]["cause"] == ""
    await control.put(snapshot("kimi", attempt=4, incidents=(STALL,)))
    assert (await client.get("/v1/servers/kimi/bundles")).json()["bundles"][0]["cause"] == "capture-hang"


async def test_a_bundle_comes_as_an_archive(client: httpx.AsyncClient, bundle: Path) -> None:
    answer = await client.get("/v1/servers/kimi/bundle")
    assert answer.headers["content-disposition"] == 'attachment; filename="kimi-000003.tar.gz"'
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        assert "kimi-000003/facts.json" in archive.getnames()


@pytest.mark.parametrize("query", ["", "?attempt=3"])
async def test_without_evidence_there_is_no_bundle(client: httpx.AsyncClient, control: FakeControl, query: str) -> None:
    answer = await client.get(f"/v1/servers/kimi/bundle{query}")
    assert answer.status_code == 404
    assert answer.json()["error"].startswith("no evidence of ")


@pytest.mark.parametrize("attempt", ["0", "-1", "x", "99999999999999999999"])
async def test_a_wrong_attempt_is_refused(client: httpx.AsyncClient, attempt: str) -> None:
    assert (await client.get(f"/v1/servers/kimi/story?attempt={attempt}")).status_code == 400
