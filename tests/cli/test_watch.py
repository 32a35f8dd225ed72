"""watch shows what changes: a picture on a terminal, lines in a file."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
import termios
from typing import Any

import msgspec

from supervisor.api import wire
from supervisor.api.gpus import describe
from supervisor.cli.frame import Look, frame
from supervisor.snapshot import DeadlineView, ProgressView, RankView, SpanView, StartupView
from tests.api.fake import FakeControl, snapshot
from tests.cli.conftest import Sglctl
from tests.metrics import fleet


def loading(ranks: int = 2) -> StartupView:
    bar = ProgressView(9, 20, "shards", eta_s=80.0)
    views = tuple(RankView(f"TP{n}", "weights", "weights", 130.0, bar if n else None) for n in range(ranks))
    spans = (SpanView("TP0", "launch", 100.0, 130.0), SpanView("TP1", "weights", 130.0))
    return StartupView("weights", "weights", 130.0, views, "TP0 still in weights; 1 rank waits", 150.0, timeline=spans)


def seen(*servers: Any) -> list[Any]:
    clock = FakeControl().clock()
    return [msgspec.to_builtins(wire.server(server, clock)) for server in servers]


def picture(*servers: Any, columns: int = 100, rows: int = 40, gpus: Any = None, events: Any = ()) -> list[str]:
    lines = frame(Look(seen(*servers), gpus, events), columns, rows)
    assert all(len(line) <= columns for line in lines), lines
    assert len(lines) <= rows
    return lines


def event(name: str, facet: str, before: str, after: str, reason: str = "") -> dict[str, str]:
    return {"at": "2025-11-29T12:40:01.000Z", "server": name, "facet": facet, "before": before, "after": after,
            "reason": reason}  # fmt: skip


def test_a_start_shows_phases_silence_and_ranks() -> None:
    server = snapshot("kimi", "starting", start=loading(), deadline=240.0)
    assert picture(server) == [
        "kimi  STARTING  weights 45 % for 30 s, TP0 slowest, about 1 m 20 s left in it",
        "  launch 30 s > weights 30 s",
        "  silence  [##..................] 10 s of 1 m 30 s allowed",
        "  TP0 still in weights; 1 rank waits",
        "  TP0      weights  30 s",
        "  TP1      weights  [#########...........] 9/20 shards, 1 m 20 s left",
    ]


def test_a_start_that_is_known_tells_when_it_will_be_ready() -> None:
    usual = (DeadlineView("weights", 60.0, None, None, "learned", median_s=90.0),)
    soon = snapshot("kimi", "starting", start=loading(), deadlines=usual)
    late = msgspec.structs.replace(soon, start=msgspec.structs.replace(loading(0), since=0.0))

    assert "  ready    [#########...........] in about 1 m 20 s, as usual" in picture(soon)
    assert "  ready    [####################] at any moment, as usual" in picture(late)


def test_ranks_give_way_and_the_slow_one_does_not() -> None:
    start = msgspec.structs.replace(fleet.starting(ranks=64, slow="TP41"), at=160.0)
    others = [snapshot(f"other-{number}", "running") for number in range(6)]
    lines = picture(start, *others, rows=18)

    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["kimi-k2", *(one.name for one in others)]
    assert any(line.startswith("  TP41 ") for line in lines)
    assert any(line.startswith("  and ") and line.endswith(" more ranks") for line in lines)


def test_no_line_is_wider_than_the_terminal_and_ranks_are_bounded() -> None:
    lines = picture(snapshot("kimi", "starting", start=loading(40)), snapshot("x\x1b" * 9, "running"), columns=40)
    assert "  and 24 more ranks" in lines
    assert not any("\x1b" in line for line in lines)
    picture(snapshot("n" * 90, "running"), columns=60)


def test_what_does_not_fit_is_said() -> None:
    servers = [snapshot(f"server-{number}", "running") for number in range(30)]
    assert picture(*servers, rows=10)[-1] == "... 21 more lines: watch NAME shows less"


def test_of_many_phases_the_newest_are_told() -> None:
    spans = tuple(SpanView("TP0", f"phase-{n}", 100.0 + n, 101.0 + n) for n in range(20))
    long = StartupView("phase-19", "x", 119.0, timeline=spans)
    trail = picture(snapshot("kimi", "starting", start=long), columns=60)[1]
    assert trail.startswith("  ... > ")
    assert trail.endswith("phase-19 1.0 s")


def test_gpus_show_whose_their_memory_is() -> None:
    view = msgspec.structs.replace(fleet.control().gpus(), at=150.0)
    gpus = msgspec.to_builtins(describe(view, FakeControl().clock()))
    lines = picture(snapshot("kimi"), gpus=gpus)

    assert "GPU 0  [#############-......] 103.1 of 151.4 GB  kimi-k2" in lines
    assert "GPU 8  [#################!..] 134.2 of 151.4 GB  qwen3-32b, 6.4 GB somebody else's" in lines
    assert "  3.2 of 151.4 GB  quarantined: Xid 79: the GPU has fallen off the bus" in lines[-1]

    blind = {**gpus, "sight": "blind", "reason": "a driver call\x1b hangs", "gpus": []}
    assert picture(snapshot("kimi"), gpus=blind)[-1].endswith(": a driver call? hangs")
    assert len(picture(snapshot("kimi"), gpus={**gpus, "sight": "absent"})) == 1
    unseen = {**gpus["gpus"][0], "memory": {**gpus["gpus"][0]["memory"], "used": None}}
    assert picture(snapshot("kimi"), gpus={**gpus, "gpus": [unseen]})[-1].startswith(
        "GPU 0  [????????????????????] not seen"
    )


def test_the_last_events_are_told_but_not_phases() -> None:
    events = [event("kimi", "phase", "launch", "weights"), *([event("kimi", "goal", "", "up")] * 9),
              event("kimi", "lifecycle", "starting", "running", "ready\x1b[2J")]  # fmt: skip
    lines = picture(snapshot("kimi"), events=events)

    assert len(lines) == 2 + 6
    assert lines[-1][8:] == "  kimi  lifecycle  starting -> running: ready?[2J"


def test_gpus_and_events_are_left_out_where_there_is_no_room() -> None:
    servers = [snapshot(f"server-{number}", "running") for number in range(5)]
    events = [event("kimi", "goal", "", "up")] * 5
    assert picture(*servers, rows=8, events=events) == picture(*servers, rows=8)


def test_a_daemon_that_is_away_is_told_in_place() -> None:
    assert frame("cannot reach the daemon; trying again", 80, 24) == ["cannot reach the daemon; trying again"]


async def test_a_file_gets_one_line_a_change(sglctl: Sglctl, control: FakeControl) -> None:
    outcome = await sglctl("watch", "--count", "3", "--interval", "10ms")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert [line.split()[1:3] for line in lines] == [["kimi", "RUNNING"], ["draft", "STOPPED"]]
    assert len((await sglctl("watch", "kimi", "--count", "1")).out.splitlines()) == 1


async def test_without_a_daemon_it_ends(sglctl: Sglctl) -> None:
    assert (await sglctl("watch", "--count", "1", socket="/nowhere/s")).code == 4


async def on_a_terminal(socket_path: str, **environment: str) -> str:
    """What two looks put on a screen of 80 columns and 24 rows."""
    main, side = pty.openpty()
    termios.tcsetwinsize(side, (24, 80))
    try:
        command = [sys.executable, "-m", "supervisor.cli.main", "-s", socket_path, "watch", "--count", "2"]
        process = await asyncio.to_thread(
            subprocess.run, [*command, "--interval", "10ms"], stdout=side, stderr=side, timeout=30,
            env={**os.environ, "TERM": "xterm", **environment},
        )  # fmt: skip
        painted = os.read(main, 65536).decode()
    finally:
        os.close(main)
        os.close(side)
    assert process.returncode == 0
    return painted


async def test_a_terminal_that_knows_no_escapes_gets_none(socket_path: str) -> None:
    assert "\x1b" not in await on_a_terminal(socket_path, TERM="dumb")


async def test_no_colour_where_none_is_wanted(socket_path: str) -> None:
    assert "\x1b[32m" in await on_a_terminal(socket_path, NO_COLOR="")
    assert "\x1b[32m" not in await on_a_terminal(socket_path, NO_COLOR="1")


async def test_a_terminal_is_repainted_and_gets_its_cursor_back(socket_path: str) -> None:
    painted = await on_a_terminal(socket_path)
    assert painted.count("kimi") == 2
    assert "\x1b[2A" in painted, "the second frame goes over the first"
    assert painted.endswith("\x1b[?25h")
