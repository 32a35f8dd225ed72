"""why, deadlines, bundle, timeline: what a person reads at three in the morning."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
import tarfile
import termios
from pathlib import Path

import msgspec
import pytest

from supervisor.cli.timeline import draw
from supervisor.snapshot import DeadlineView, DiagnosisView, ExitView, FacetView, SpanView, StartupView
from tests.api.fake import FakeControl, snapshot
from tests.api.test_story import STALL
from tests.cli.conftest import Sglctl


async def test_why_tells_the_story_and_the_last_events(sglctl: Sglctl, control: FakeControl) -> None:
    idle = FacetView("idle", 100.0)
    await control.put(snapshot("kimi", "running", attempt=4, incidents=(STALL,), verdict=idle))
    for number in range(15):
        await control.record("kimi", f"s{number}", "\x1b[2Jred")
    outcome = await sglctl("why", "kimi")
    lines = outcome.out.splitlines()
    assert outcome.code == 0
    assert lines[0].startswith("kimi is RUNNING (")
    assert lines[1].startswith("attempt 3 failed ")
    assert f"bundle: {STALL.evidence_path}" in lines
    changes = lines[lines.index("last changes (all: sglctl events kimi):") + 1 :]
    assert [line.rpartition("  ")[2] for line in changes] == [f"s{number}: ?[2Jred" for number in (12, 13, 14)]
    assert len(lines) <= 24, "it fits a screen"


async def test_what_was_said_is_not_said_again_with_each_event(sglctl: Sglctl, control: FakeControl) -> None:
    await control.put(snapshot("kimi", "backoff", attempt=3, incidents=(STALL,)))
    await control.record("kimi", "stopping", STALL.reason)
    await control.record("kimi", "backoff", f"{STALL.reason}; restart 1")
    assert (await sglctl("why", "kimi")).out.count("no progress for 95 s") == 1


async def test_a_remedy_is_not_said_again_with_its_event(sglctl: Sglctl, control: FakeControl) -> None:
    cause = DiagnosisView("draft-context", "no", "set --context-length 4096")
    await control.put(snapshot("kimi", "fatal", attempt=3, exit=ExitView(3, 140.0, 1), diagnosis=cause))
    await control.record("kimi", "fatal", "draft-context: a restart cannot help: set --context-length 4096")
    assert (await sglctl("why", "kimi")).out.count("set --context-length 4096") == 1


async def test_events_of_probes_are_left_to_events(sglctl: Sglctl, control: FakeControl) -> None:
    await control.record("kimi", "running", "healthy")
    for number in range(5):
        await control.record("kimi", "success", f"probe {number}", facet="readiness")
    told = (await sglctl("why", "kimi")).out
    assert "readiness" not in told.partition("last changes")[2]
    assert told.endswith("kimi  lifecycle  running: healthy\n")
    assert "readiness  success: probe 4" in (await sglctl("events", "kimi")).out


async def test_why_is_wrapped_at_words_on_a_terminal(sglctl: Sglctl, control: FakeControl, socket_path: str) -> None:
    path = "/var/lib/" + "x" * 90
    incident = msgspec.structs.replace(STALL, evidence_path=path)
    await control.put(snapshot("kimi", "backoff", attempt=3, incidents=(incident,)))
    lines = await on_terminal(socket_path, "why", "kimi", columns=80)
    assert [line for line in lines if len(line) > 80] == [f"  {path}"], "a path can be copied whole"
    assert any(line.startswith("  ") for line in lines)
    joined = " ".join(line.strip() for line in lines)
    assert "90 s are allowed; never silent for more than 31 s in 4 starts" in joined
    assert max(map(len, (await sglctl("why", "kimi")).out.splitlines())) > 100, "a pipe gets whole sentences"


async def test_what_happened_fits_a_terminal(sglctl: Sglctl, control: FakeControl, socket_path: str) -> None:
    reason = "stalled in verify-graph: no progress for 95 s, 90 s are allowed; never silent for more than 31 s"
    await control.record("kimi", "backoff", reason)
    lines = await on_terminal(socket_path, "events", columns=80)
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("2025-11-29 12:40:01.000Z  kimi")
    assert lines[1].startswith("    ")
    assert reason in " ".join(line.strip() for line in lines)
    assert (await sglctl("events")).out.count("\n") == 1, "a pipe gets a line each"


async def test_where_nothing_more_happens_a_terminal_gets_the_next_command(
    sglctl: Sglctl, control: FakeControl, socket_path: str
) -> None:
    assert len(await on_terminal(socket_path, "status", columns=80)) == 2
    await control.put(snapshot("kimi", "fatal"))
    lines = await on_terminal(socket_path, "status", columns=80)
    assert lines[-1] == "what is down, and what to do about it: sglctl why kimi"
    assert len((await sglctl("status")).out.splitlines()) == len(lines) - 1, "a script gets the rows alone"


async def on_terminal(socket_path: str, *words: str, columns: int) -> list[str]:
    """The lines of the command on a terminal so wide."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    command = [sys.executable, "-m", "supervisor.cli.main", "-s", socket_path, *words]
    process = await asyncio.create_subprocess_exec(*command, stdout=theirs, env={**os.environ, "NO_COLOR": "1"})
    os.close(theirs)
    async with asyncio.timeout(30):
        await process.wait()
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    return shown.splitlines()


async def test_why_of_an_attempt_that_is_not_remembered(sglctl: Sglctl) -> None:
    outcome = await sglctl("why", "kimi", "--attempt", "7")
    assert (outcome.code, outcome.out) == (4, "")
    assert outcome.err == "error: no failure of attempt 7 of kimi is remembered; there are: none\n"


async def test_deadlines_are_explained(sglctl: Sglctl, control: FakeControl) -> None:
    text = "verify-graph: 4 starts, median 31 s, longest silence 20 s, deadline 95 s of silence (learned), 900 s in all"
    views = (
        DeadlineView("verify-graph", 95, 95, 900, "learned", 4, 31.0, 20.0, text=text),
        DeadlineView("weights", 300, 60, 2400, "profile", 2, 30.0, 9.0, mode="observe", text="weights: 2 starts"),
    )
    start = StartupView("weights", "weights", 103.0)
    await control.put(snapshot("kimi", "starting", deadlines=views, start=start))
    assert (await sglctl("deadlines", "kimi")).out.splitlines() == [
        "  phase         silent    idle      in all  median  longest  runs  from",
        "  verify-graph  1 m 35 s  1 m 35 s  15 m    31 s    20 s     4     learned",
        "> weights       5 m       1 m       40 m    30 s    9 s      2     profile*",
        "* what was learned is only observed yet",
    ]
    told = json.loads((await sglctl("deadlines", "kimi", "--json")).out)
    assert told["deadlines"][0]["median_s"] == 31.0
    assert (await sglctl("deadlines", "none")).code == 4


async def test_phases_that_never_applied_are_left_out(sglctl: Sglctl, control: FakeControl) -> None:
    views = (
        DeadlineView("launch", 8.0, None, 3600.0, "config"),
        DeadlineView("draft-weights", 60.0, 60.0, 600.0, "profile"),
        DeadlineView("weights", 60.0, 60.0, 600.0, "profile", 1, 30.0, 9.0),
        DeadlineView("healthy", None, None, None, "profile", 1, 0.0, 0.0),
    )
    spans = (SpanView("", "launch", 100.0, 103.0),)
    start = StartupView("healthy", "healthy", 103.0, timeline=spans)
    await control.put(snapshot("kimi", "running", deadlines=views, start=start))
    lines = (await sglctl("deadlines", "kimi")).out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["launch", "weights"]
    assert " ".join(lines[1].split()) == "launch 8 s - 1 h - - - config"
    assert lines[3] == "  2 more that never applied or have no deadline: --all"
    assert "draft-weights" in (await sglctl("deadlines", "kimi", "--all")).out
    await control.put(snapshot("kimi", deadlines=views[:2]))
    assert "draft-weights" in (await sglctl("deadlines", "kimi")).out, "nothing ever applied, so all are shown"


@pytest.fixture
def evidence(control: FakeControl, tmp_path: Path) -> Path:
    control.state_dir = str(tmp_path)
    place = tmp_path / "evidence" / "kimi" / "000003"
    place.mkdir(parents=True)
    (place / "stacks.txt").write_text("stack\n" * 50_000)
    manifest = {"server": "kimi", "attempt": 3, "reason": "stalled", "wall": 1764410000.0, "took_s": 1.0}
    (place / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    return place


async def test_a_bundle_is_fetched_whole(sglctl: Sglctl, evidence: Path, tmp_path: Path) -> None:
    target = tmp_path / "e.tar.gz"
    outcome = await sglctl("bundle", "kimi", "-o", str(target))
    assert (outcome.code, outcome.out) == (0, f"{target}: {target.stat().st_size} bytes\n")
    with tarfile.open(target) as archive:
        assert "kimi-000003/stacks.txt" in archive.getnames()
    assert not target.with_name("e.tar.gz.part").exists()


async def test_bundles_are_listed(sglctl: Sglctl, evidence: Path) -> None:
    listed = (await sglctl("bundle", "kimi", "--list")).out
    assert listed.split() == ["3", *listed.split()[1:3], "0", "files", "0.3", "MB", "stalled"]
    assert json.loads((await sglctl("bundle", "kimi", "--json")).out)["bundles"][0]["attempt"] == 3


async def test_a_bundle_in_the_list_tells_its_cause(sglctl: Sglctl, control: FakeControl, evidence: Path) -> None:
    await control.put(snapshot("kimi", attempt=4, incidents=(STALL,)))
    assert (await sglctl("bundle", "kimi", "--list")).out.endswith("MB  capture-hang: stalled\n")


async def test_no_bundles_are_said_to_be_none(sglctl: Sglctl, control: FakeControl) -> None:
    assert await sglctl("bundle", "kimi", "--list") == (0, "", "kimi: no evidence is kept\n")
    assert json.loads((await sglctl("bundle", "kimi", "--json")).out)["bundles"] == []


async def test_without_evidence_or_room_a_bundle_is_refused(sglctl: Sglctl, evidence: Path, tmp_path: Path) -> None:
    outcome = await sglctl("bundle", "kimi", "--attempt", "9")
    assert (outcome.code, outcome.err) == (1, "kimi: ERROR (no evidence of attempt 9 is kept)\n")
    outcome = await sglctl("bundle", "kimi", "-o", str(tmp_path / "no" / "e"))
    assert outcome.code == 1
    assert "No such file or directory" in outcome.err


def drawn(**fields: object) -> list[str]:
    """A start of two ranks: one is through with the weights, the other is not."""

    def span(rank: str, phase: str, at: int, seconds: float, end: bool = True) -> dict[str, object]:
        begin = f"2025-11-29T12:{at // 60:02d}:{at % 60:02d}.000Z"
        return {"rank": rank, "phase": phase, "begin": begin, "end": "x" if end else None, "seconds": seconds}

    spans = [
        span("", "launch", 0, 10),
        span("TP0", "weights", 10, 30),
        span("TP0", "verify-graph", 50, 10, end=False),
        span("TP1", "weights", 10, 50, end=False),
    ]
    found = {
        "name": "kimi",
        "attempt": 3,
        "phase": "weights",
        "laggard": "TP1 still in weights; 1 rank waits in verify-graph",
        "stall_at": "2025-11-29T12:01:20.000Z",
        "stall_in_s": 20.0,
        "ready": None,
        "ended": None,
        "spans": spans,
        "usual": {"weights": 31.0},
    }
    return list(draw({**found, **fields}, 50))


def test_a_start_is_drawn_in_lanes_with_the_deadline() -> None:
    assert drawn() == [
        "kimi, attempt 3: in weights, 1 m so far",
        "          0 s                             1 m 20 s",
        "usual         WWWWWWWWWWWWWWW                    |",
        "launcher  LLLL                                   |",
        "TP0           WWWWWWWWWWWWWWW.....VVVVV          |",
        "> TP1         WWWWWWWWWWWWWWWWWWWWWWWWW          |",
        "          L launch 10 s",
        "          W weights 50 s (usually 31 s)",
        "          V verify-graph 10 s",
        "| called stalled 1 m 20 s after the launch, in 20 s",
        "TP1 still in weights; 1 rank waits in verify-graph",
    ]


def test_phases_that_usually_follow_are_drawn_and_explained() -> None:
    lines = drawn(usual={"weights": 31.0, "verify-graph": 20.0, "warmup": 5.0, "healthy": 9e5})
    assert lines[2] == "usual         WWWWWWWWWWWWWWWVVVVVVVVVVAAA       |"
    assert "          A warmup (usually 5.0 s)" in lines
    assert not any("healthy" in line for line in lines)


def test_nobody_is_slow_when_all_are_where_the_start_is() -> None:
    def span(rank: str) -> dict[str, object]:
        return {"rank": rank, "phase": "weights", "begin": "2025-11-29T12:00:00Z", "end": None, "seconds": 9}

    for ranks in (["TP0"], ["TP0", "TP1"]):
        lines = drawn(spans=[span(rank) for rank in ranks])
        assert [line for line in lines if line.startswith(">")] == []


def test_with_too_many_ranks_the_slow_ones_are_drawn_all_the_same() -> None:
    def span(rank: int, phase: str, at: int, seconds: float) -> dict[str, object]:
        return {"rank": f"TP{rank}", "phase": phase, "begin": f"2025-11-29T12:00:{at:02d}Z", "end": None,
                "seconds": seconds}  # fmt: skip

    spans = [span(n, "weights", 0, 50.0 if n == 60 else 30.0) for n in range(64)]
    spans += [span(n, "verify-graph", 30, 20.0) for n in range(64) if n != 60]
    lines = drawn(spans=spans)
    assert any(line.startswith("> TP60 ") for line in lines)
    assert "          and 32 more" in lines
    assert len([line for line in lines if line.startswith("TP")]) == 32, "31 lanes and the sentence"


def test_long_names_of_ranks_stay_off_the_lanes() -> None:
    begin = "2025-11-29T12:00:00Z"
    spans = [
        {"rank": rank, "phase": "weights", "begin": begin, "end": None, "seconds": 30} for rank in ("", "DP1 PP0 TP10")
    ]
    lanes = [line for line in drawn(spans=spans, usual={}) if "WWW" in line]
    assert len({line.index("W") for line in lanes}) == 1
    assert all(len(line) <= 50 for line in lanes)


def test_a_far_deadline_is_told_and_not_drawn() -> None:
    lines = drawn(stall_at="2025-11-29T12:40:00.000Z", stall_in_s=2340.0)
    assert lines[1].endswith("1 m")
    assert "| called stalled 40 m after the launch, in 39 m" in lines
    assert not any(line.endswith("|") for line in lines[2:5])


def test_a_finished_start_has_no_deadline_and_no_laggard() -> None:
    lines = drawn(ready="2025-11-29T12:01:00.000Z")
    assert lines[0] == "kimi, attempt 3: healthy after 1 m"
    assert not any("stalled" in line or "still in" in line for line in lines)


def test_the_axis_of_a_finished_start_ends_soon_after_it() -> None:
    def span(rank: str, phase: str, at: str, seconds: float) -> dict[str, object]:
        return {"rank": rank, "phase": phase, "begin": f"2025-11-29T12:{at}.000Z", "end": None, "seconds": seconds}

    spans = [span("TP0", "weights", "00:00", 100), span("TP0", "healthy", "01:40", 9e5), span("TP0", "x", "50:00", 1)]
    lines = drawn(spans=spans, ready="2025-11-29T12:01:40.000Z", usual={"weights": 90.0, "healthy": 70.0})
    assert lines == [
        "kimi, attempt 3: healthy after 1 m 40 s",
        "          0 s                             1 m 50 s",
        "usual     WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW",
        "TP0       WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWHHH",
        "          W weights 1 m 40 s (usually 1 m 30 s)",
        "          H healthy",
    ]


def test_an_early_phase_has_its_letter_whether_or_not_a_later_one_was_reached() -> None:
    def span(rank: str, phase: str, at: str, seconds: float) -> dict[str, object]:
        return {"rank": rank, "phase": phase, "begin": f"2025-11-29T12:{at}.000Z", "end": None, "seconds": seconds}

    spans = [span("", "warmup", "01:00", 30), span("TP0", "weights", "00:00", 60)]
    legend = " ".join(drawn(spans=spans, ready="2025-11-29T12:01:30.000Z"))
    assert "W weights" in legend
    assert "A warmup" in legend


def test_without_a_start_there_is_nothing_to_draw() -> None:
    assert drawn(spans=[]) == ["kimi: no start is known"]


async def test_the_timeline_of_a_failed_start_ends_with_it(sglctl: Sglctl, control: FakeControl) -> None:
    start = StartupView("weights", "weights", 103.0, timeline=(SpanView("TP0", "weights", 103.0),))
    gone = ExitView(4, 108.0, 1)
    await control.put(snapshot("kimi", "fatal", attempt=4, start=start, exit=gone, deadline=190.0))
    lines = (await sglctl("timeline", "kimi")).out.splitlines()
    assert lines[0] == "kimi, attempt 4: ended in weights, 5.0 s after its launch"
    assert not any("stalled" in line for line in lines)
    told = json.loads((await sglctl("timeline", "kimi", "--json")).out)
    assert (told["ended"], told["spans"][0]["seconds"]) == ("2025-11-29T12:39:08.000Z", 5.0)


async def test_timeline_of_a_running_start(sglctl: Sglctl, control: FakeControl) -> None:
    spans = (SpanView("TP0", "launch", 100.0, 103.0), SpanView("TP0", "weights", 103.0))
    start = StartupView("weights", "weights", 103.0, timeline=spans)
    await control.put(snapshot("kimi", "starting", attempt=4, start=start, deadline=190.0))
    outcome = await sglctl("timeline", "kimi")
    assert outcome.code == 0
    assert outcome.out.splitlines()[0] == "kimi, attempt 4: in weights, 1 m so far"
    assert json.loads((await sglctl("timeline", "kimi", "--json")).out)["attempt"] == 4


async def test_a_very_long_name_costs_its_own_room_alone(control: FakeControl, socket_path: str) -> None:
    long = "a-draft-model-of-seventy-billion-parameters"
    for name in ("kimi", long):
        state = FacetView("fatal", 90.0, "gpu-oom-kv-pool: a restart cannot help")
        await control.put(snapshot(name, "fatal", lifecycle=state))
    lines = {line.split()[0]: line for line in await on_terminal(socket_path, "status", columns=80)}
    assert "  FATAL     gpu-oom-kv-pool: a restart cannot help" in lines["kimi"]
    assert lines[long].startswith(f"{long}  FATAL     gpu-oom")
    assert max(map(len, lines.values())) <= 80
