"""status, pid, why, version, tail and events: columns, words, exit codes, nothing that moves a cursor."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from supervisor.api.pulse import Pulse
from supervisor.snapshot import DiagnosisView, FacetView
from tests.api.fake import FakeControl, snapshot
from tests.cli.conftest import Sglctl

HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202eevil\r\nkimi  RUNNING\x00\x9b1m"


async def test_status_has_supervisorctls_columns(sglctl: Sglctl) -> None:
    outcome = await sglctl("status")
    assert outcome.out == (
        "kimi                             RUNNING   pid 4242, uptime 0:01:00\n"
        "draft                            STOPPED   Not started\n"
    )
    assert outcome.code == 3


async def test_a_long_name_widens_the_column(sglctl: Sglctl, control: FakeControl) -> None:
    await control.put(snapshot("k" * 40, "running"))
    line = (await sglctl("status", "kimi")).out
    assert line.index("RUNNING") == 33
    lines = (await sglctl("status")).out.splitlines()
    assert {line.index(state) for line, state in zip(lines, ("RUNNING", "STOPPED", "RUNNING"), strict=True)} == {43}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["kimi"], 0),
        (["draft"], 3),
        (["kimi", "draft"], 3),
        (["all"], 3),
        (["none"], 4),
        (["kimi", "none"], 4),
        (["--check", "kimi"], 0),
        (["--check", "draft"], 3),
    ],
)
async def test_status_exit_codes(sglctl: Sglctl, arguments: list[str], code: int) -> None:
    assert (await sglctl("status", *arguments)).code == code


@pytest.mark.parametrize(
    ("state", "code", "check"),
    [
        ("starting", 0, 3),
        ("backoff", 0, 3),
        ("stopping", 0, 3),
        ("running", 0, 0),
        ("fatal", 3, 3),
        ("quarantined", 3, 3),
    ],
)
async def test_status_as_supervisorctl_and_with_check(
    sglctl: Sglctl, control: FakeControl, state: str, code: int, check: int
) -> None:
    await control.put(snapshot("kimi", state))
    assert (await sglctl("status", "kimi")).code == code
    assert (await sglctl("status", "--check", "kimi")).code == check


async def test_status_of_an_unknown_name(sglctl: Sglctl) -> None:
    outcome = await sglctl("status", "none", "kimi")
    assert outcome.out.splitlines()[-1] == "none: ERROR (no such process)"
    assert outcome.out.startswith("kimi ")
    assert outcome.err == ""


@pytest.mark.parametrize("verb", ["status", "start", "stop", "restart", "why", "tail", "wait", "events"])
async def test_a_mistyped_name_is_guessed(sglctl: Sglctl, verb: str) -> None:
    outcome = await sglctl(verb, "kmi")
    assert outcome.code == 4
    assert outcome.err.endswith('no such server: kmi, did you mean "kimi"?\n')


async def test_status_as_json(sglctl: Sglctl) -> None:
    outcome = await sglctl("status", "--json", "kimi")
    body = json.loads(outcome.out)
    assert [server["name"] for server in body["servers"]] == ["kimi"]
    assert outcome.out.count("\n") == 1


async def test_a_state_directory_that_cannot_be_written_is_told_beside_the_columns(
    sglctl: Sglctl, control: FakeControl
) -> None:
    problem = "cannot write /state/servers/kimi.json: the disk has not answered within 1 s; nobody will know"
    usual = await sglctl("status")
    control.beat = Pulse(state_problem=problem)
    outcome = await sglctl("status")
    assert (outcome.out, outcome.code) == (usual.out, usual.code), "scripts that cut columns see no difference"
    assert outcome.err == f"WARNING: {problem}\n"
    assert json.loads((await sglctl("status", "--json")).out)["state_problem"] == problem


async def test_what_does_not_answer_is_told_beside_the_columns_too(sglctl: Sglctl, control: FakeControl) -> None:
    usual = await sglctl("status")
    control.beat = Pulse(hanging=1, unanswered="the disk (/var/log) has not answered for 5 m 12 s")
    outcome = await sglctl("status")
    assert (outcome.out, outcome.code) == (usual.out, usual.code)
    assert outcome.err == "WARNING: the disk (/var/log) has not answered for 5 m 12 s\n"
    assert json.loads((await sglctl("status", "--json")).out)["unanswered"] == control.beat.unanswered


async def test_a_journal_that_cannot_be_written_is_told_beside_the_columns_too(
    sglctl: Sglctl, control: FakeControl
) -> None:
    control.beat = Pulse(journal_problem="cannot write /state/journal.db: database or disk is full")
    assert (await sglctl("status")).err == f"WARNING: {control.beat.journal_problem}\n"


@pytest.mark.parametrize(
    "verb", [["status"], ["status", "--json"], ["why", "kimi"], ["why", "kimi", "--json"], ["events"]]
)
async def test_hostile_text_is_harmless(sglctl: Sglctl, control: FakeControl, verb: list[str]) -> None:
    await control.record("kimi", HOSTILE, HOSTILE)
    await control.put(
        snapshot(
            "kimi",
            "fatal",
            lifecycle=FacetView("fatal", 100.0, HOSTILE),
            diagnosis=DiagnosisView(HOSTILE, remedy=HOSTILE, evidence=HOSTILE),
            evidence_path=HOSTILE,
        )
    )
    outcome = await sglctl(*verb)
    assert all(letter.isprintable() or letter == "\n" for letter in outcome.out)
    assert not any(line.startswith("kimi  RUNNING") for line in outcome.out.splitlines())


async def test_pid(sglctl: Sglctl) -> None:
    assert await sglctl("pid") == (0, f"{os.getpid()}\n", "")
    assert await sglctl("pid", "kimi") == (0, "4242\n", "")
    assert await sglctl("pid", "draft") == (3, "0\n", "")
    assert await sglctl("pid", "all") == (0, "4242\n0\n", "")
    assert await sglctl("pid", "none") == (4, "", "error: no such server: none; there are kimi, draft\n")


async def test_pid_as_json(sglctl: Sglctl) -> None:
    async def told(*words: str) -> object:
        return json.loads((await sglctl("pid", "--json", *words)).out)

    draft = {"name": "draft", "pid": None}
    assert await told() == {"pid": os.getpid()}
    assert await told("kimi") == {"name": "kimi", "pid": 4242}
    assert await told("all") == {"servers": [{"name": "kimi", "pid": 4242}, draft]}
    assert await sglctl("pid", "--json", "draft") == (3, f"{json.dumps(draft)}\n", "")


async def test_version(sglctl: Sglctl) -> None:
    assert await sglctl("version") == (0, "0.1.0\n", "")
    assert json.loads((await sglctl("version", "--json")).out)["pid"] == os.getpid()


async def test_why_tells_story_proof_and_events(sglctl: Sglctl, control: FakeControl) -> None:
    await control.record("kimi", "fatal", "draft model too short")
    await control.put(snapshot("kimi", "fatal", evidence_path="/e/3", log_path="/l/kimi.log"))
    lines = (await sglctl("why", "kimi")).out.splitlines()
    assert lines[0] == "kimi is FATAL (unknown error); it is wanted up."
    assert lines[-4:] == [
        "bundle: /e/3",
        "log file: /l/kimi.log",
        "last changes (all: sglctl events kimi):",
        "  2025-11-29 12:40:01.000Z  kimi  lifecycle  fatal: draft model too short",
    ]
    assert json.loads((await sglctl("why", "kimi", "--json")).out)["evidence_path"] == "/e/3"
    assert (await sglctl("why", "none")).code == 4


@pytest.fixture
async def log(control: FakeControl, tmp_path: Path) -> Path:
    path = tmp_path / "kimi.log"
    await control.put(snapshot("kimi", "running", log_path=str(path)))
    path.write_bytes(b"[2025-11-29 10:00:00 TP0] Load weight begin\n[2025-11-29 10:00:01 TP3] stuck\nplain\n")
    return path


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (["-n", "1"], "plain\n"),
        (["-6"], "plain\n"),
        (["--bytes", "6"], "plain\n"),
        (["--lines=0"], ""),
        (["-0"], ""),
        (["--rank", "TP3"], "[2025-11-29 10:00:01 TP3] stuck\n"),
    ],
)
async def test_tail(sglctl: Sglctl, log: Path, arguments: list[str], out: str) -> None:
    assert await sglctl("tail", *arguments, "kimi") == (0, out, "")
    assert await sglctl("tail", *arguments, "kimi", "stderr") == (0, out, "")


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        ("TP9", "no line that was read is of rank TP9; they name TP0, TP3"),
        ("TP", "no line that was read is of rank TP"),
        ("(*", "no line that was read is of rank (*"),
    ],
)
async def test_a_rank_that_no_line_names(sglctl: Sglctl, log: Path, rank: str, said: str) -> None:
    assert await sglctl("tail", "--rank", rank, "kimi") == (1, "", f"error: {said}\n")


async def test_a_ranks_lines_are_counted_and_not_the_others(sglctl: Sglctl, log: Path) -> None:
    lines = [f"[2025-11-29 10:00:00 TP{number % 8}] line {number}" for number in range(400)]
    log.write_text("\n".join(lines) + "\n")
    assert (await sglctl("tail", "-n", "2", "--rank", "TP3", "kimi")).out.splitlines() == [lines[387], lines[395]]
    assert (await sglctl("tail", "-n", "0", "--rank", "TP3", "kimi")).out == ""
    assert (await sglctl("tail", "--rank", "TP3", "kimi")).out.count("\n") == 20
    assert (await sglctl("tail", "-100", "--rank", "TP7", "kimi")).out == f"{lines[399]}\n"


async def test_tail_shows_progress_bars_as_lines_and_nothing_hostile(sglctl: Sglctl, log: Path) -> None:
    log.write_bytes(b"0%| | 0/13\r50%|\xe2\x96\x88| 7/13\r\n\x1b[2J\x00\xff\xe2\x80\xae end\tx\n")
    assert (await sglctl("tail", "kimi")).out == "0%| | 0/13\n50%|█| 7/13\n?[2J?�? end\tx\n"


async def test_tail_without_a_log(sglctl: Sglctl) -> None:
    assert await sglctl("tail", "draft") == (4, "", "error: draft has no log file yet\n")
    outcome = await sglctl("maintail")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == (
        "error: the daemon keeps no log file: set daemon.log_file, or read its standard error output\n"
    )


async def test_maintail(sglctl: Sglctl, control: FakeControl, tmp_path: Path) -> None:
    control.log_path = str(tmp_path / "daemon.log")
    (tmp_path / "daemon.log").write_text("ready\n")
    assert await sglctl("maintail") == (0, "ready\n", "")


async def test_events(sglctl: Sglctl, control: FakeControl) -> None:
    await control.record("kimi", "starting")
    await control.record("draft", "running", "healthy")
    outcome = await sglctl("events")
    assert outcome.out == (
        "2025-11-29 12:40:01.000Z  kimi  lifecycle  starting\n"
        "2025-11-29 12:40:02.000Z  draft  lifecycle  running: healthy\n"
    )
    assert (await sglctl("events", "draft", "-n", "5")).out.count("\n") == 1
    assert [json.loads(line)["id"] for line in (await sglctl("events", "--json")).out.splitlines()] == [1, 2]
    assert (await sglctl("events", "--since", "2")).out == ""
    assert (await sglctl("events", "none")).code == 4


async def test_events_are_told_in_the_readers_time_zone(
    sglctl: Sglctl, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    await control.record("kimi", "starting")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert (await sglctl("events")).out == "2025-11-29 21:40:01.000+0900  kimi  lifecycle  starting\n"
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_an_event_without_a_value_has_no_dangling_arrow(sglctl: Sglctl, control: FakeControl) -> None:
    await control.record("kimi", "", before="weights", facet="phase")
    await control.record("kimi", "", facet="phase")
    lines = (await sglctl("events")).out.splitlines()
    assert [line.partition("  phase  ")[2] for line in lines] == ["weights is over", "it is over"]


async def test_followed_events_end_with_the_daemon(sglctl: Sglctl, control: FakeControl, tmp_path: Path) -> None:
    from tests.api.fake import served

    (tmp_path / "other").mkdir()
    await control.record("kimi", "starting")
    async with served(control, tmp_path / "other") as path:
        following = asyncio.create_task(sglctl("events", "-f", "--json", socket=path))
        await control.waiters(1)
        await control.record("kimi", "running")
    outcome = await following
    assert [json.loads(line)["after"] for line in outcome.out.splitlines()] == ["starting", "running"]
    assert outcome.code in (1, 4)
    assert outcome.err.count("\n") == 1
