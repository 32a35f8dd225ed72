"""watch shows what changes: a picture on a terminal, lines in a file."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from typing import Any

import msgspec

from supervisor.api import wire
from supervisor.cli.watch import frame
from supervisor.snapshot import ProgressView, RankView, SpanView, StartupView
from tests.api.fake import FakeControl, snapshot
from tests.cli.conftest import Sglctl


def loading(ranks: int = 2) -> StartupView:
    bar = ProgressView(9, 20, "shards", eta_s=80.0)
    views = tuple(RankView(f"TP{n}", "weights", "weights", 130.0, bar if n else None) for n in range(ranks))
    spans = (SpanView("TP0", "launch", 100.0, 130.0), SpanView("TP1", "weights", 130.0))
    return StartupView("weights", "weights", 130.0, views, "TP0 still in weights; 1 rank waits", 150.0, timeline=spans)


def seen(*servers: Any) -> list[Any]:
    clock = FakeControl().clock()
    return [msgspec.to_builtins(wire.server(server, clock)) for server in servers]


def test_a_start_shows_phases_silence_and_ranks() -> None:
    server = snapshot("kimi", "starting", start=loading(), deadline=240.0)
    assert list(frame(seen(server), 100)) == [
        "kimi  STARTING  weights 45 % for 30 s, TP0 slowest, about 1 m 20 s left in it",
        "  launch 30 s > weights 30 s",
        "  silence  [##..................] 10 s of 1 m 30 s allowed",
        "  TP0 still in weights; 1 rank waits",
        "  TP0      weights             30 s",
        "  TP1      weights             [#########...........] 9 of 20 shards, 1 m 20 s left",
    ]


def test_no_line_is_wider_than_the_terminal_and_ranks_are_bounded() -> None:
    lines = list(frame(seen(snapshot("kimi", "starting", start=loading(40)), snapshot("x\x1b" * 9, "running")), 40))
    assert all(len(line) <= 40 for line in lines)
    assert "  and 24 more ranks" in lines
    assert not any("\x1b" in line for line in lines)


def test_a_daemon_that_is_away_is_told_in_place() -> None:
    assert list(frame("cannot reach the daemon; trying again", 80)) == ["cannot reach the daemon; trying again"]


async def test_a_file_gets_one_line_a_change(sglctl: Sglctl, control: FakeControl) -> None:
    outcome = await sglctl("watch", "--count", "3", "--interval", "10ms")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert [line.split()[1:3] for line in lines] == [["kimi", "RUNNING"], ["draft", "STOPPED"]]
    assert len((await sglctl("watch", "kimi", "--count", "1")).out.splitlines()) == 1


async def test_without_a_daemon_it_ends(sglctl: Sglctl) -> None:
    assert (await sglctl("watch", "--count", "1", socket="/nowhere/s")).code == 4


async def test_a_terminal_is_repainted_and_gets_its_cursor_back(socket_path: str) -> None:
    main, side = pty.openpty()
    try:
        command = [sys.executable, "-m", "supervisor.cli.main", "-s", socket_path, "watch", "--count", "2"]
        process = await asyncio.to_thread(
            subprocess.run, [*command, "--interval", "10ms"], stdout=side, stderr=side, timeout=30
        )
        painted = os.read(main, 65536).decode()
    finally:
        os.close(main)
        os.close(side)
    assert process.returncode == 0
    assert painted.count("kimi") == 2
    assert "\x1b[2A" in painted, "the second frame goes over the first"
    assert painted.endswith("\x1b[?25h")
