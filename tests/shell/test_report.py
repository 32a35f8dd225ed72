"""A run's news as JSON lines and above a live view, in front of readers that stall, leave or close the terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
from collections.abc import Iterator

import anyio
import msgspec
import pytest

from supervisor.api.control import EventRecord
from supervisor.shell.report import LINE_BYTES, Above, JsonReport, LiveReport, Screen, writable
from supervisor.snapshot import FacetView
from tests.shell.made import BEGAN, clock, snapshot

STALLED = EventRecord(7, BEGAN + 14.0, "kimi", "lifecycle", "starting", "stopping", "stalled in draft-graph", 1)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The reading and the writing end."""
    reading, writing = os.pipe()
    yield reading, writing
    for end in (reading, writing):
        with contextlib.suppress(OSError):  # the test closed it
            os.close(end)


async def test_a_change_is_one_json_line(pipe: tuple[int, int]) -> None:
    report = JsonReport(pipe[1])
    await report.begin("kimi", "/var/log/kimi/current.log", "/run/kimi.sock")
    assert await report.changed([STALLED], snapshot("kimi"), clock(15.0)) is None
    lines = [json.loads(line) for line in os.read(pipe[0], 65536).splitlines()]
    assert [line["facet"] for line in lines] == ["log", "socket", "lifecycle"]
    assert lines[2] == {
        "time": "2023-11-14T22:13:34.000Z",
        "server": "kimi",
        "facet": "lifecycle",
        "from": "starting",
        "to": "stopping",
        "reason": "stalled in draft-graph",
        "attempt": 1,
    }


async def test_a_line_is_bounded_and_still_json(pipe: tuple[int, int]) -> None:
    long = EventRecord(8, BEGAN, "kimi", "verdict", "", "dead", "\u202e" * 100_000, 1)
    await JsonReport(pipe[1]).changed([long], snapshot("kimi"), clock(15.0))
    data = os.read(pipe[0], 65536)
    assert len(data) <= LINE_BYTES
    assert json.loads(data)["to"] == "dead"


async def test_a_full_pipe_is_waited_for_and_blocks_nobody_else(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe[1], b"x" * 4096)
    os.set_blocking(pipe[1], True)
    with anyio.move_on_after(0.1) as waited:
        await JsonReport(pipe[1]).changed([STALLED], snapshot("kimi"), clock(15.0))
    assert waited.cancelled_caught, "it waits, and can be cancelled while it does"


async def test_a_reader_that_has_gone_is_told_nothing_more(pipe: tuple[int, int]) -> None:
    report = JsonReport(pipe[1])
    os.close(pipe[0])
    await report.changed([STALLED, STALLED], snapshot("kimi"), clock(15.0))


async def test_a_file_never_blocks(tmp_path) -> None:
    with (tmp_path / "out").open("w") as out:
        with anyio.fail_after(1):
            await writable(out.fileno())


def drained(terminal: int) -> str:
    """All that has been written to it."""
    seen = b""
    while select.select([terminal], [], [], 0)[0]:
        seen += os.read(terminal, 65536)
    return seen.decode()


async def test_above_the_live_view_stands_what_decided_something() -> None:
    mine, theirs = pty.openpty()
    report = LiveReport(Screen(theirs))
    await report.begin("kimi", "/var/log/kimi/current.log", "/run/kimi.sock")
    phase = EventRecord(6, BEGAN, "kimi", "phase", "launch", "weights", "", 1)
    starting = await report.changed([phase, STALLED], snapshot("kimi", "stopping", "stalled"), clock(15.0))
    running = await report.changed([], snapshot("kimi", "running"), clock(16.0))
    report.end()
    shown = drained(mine)
    assert "/var/log/kimi/current.log" in shown
    assert "kimi stopping: stalled in draft-graph" in shown
    assert "weights" not in shown, "the view shows phases by itself"
    assert shown.endswith("\x1b[?25h")
    assert starting is not None
    assert running is not None
    assert starting < running, "bars move faster than an uptime"
    os.close(mine)
    os.close(theirs)


@pytest.mark.parametrize(("goal", "alarming"), [("up", True), ("down", False)])
async def test_a_stop_that_somebody_asked_for_is_no_alarm(goal: str, alarming: bool) -> None:
    mine, theirs = pty.openpty()
    report = LiveReport(Screen(theirs))
    dead = FacetView("dead", BEGAN, "ended")
    view = msgspec.structs.replace(snapshot("kimi", "stopping"), goal=goal, verdict=dead)
    await report.changed([STALLED], view, clock(15.0))
    report.end()
    assert ("31m" in drained(mine)) is alarming
    os.close(mine)
    os.close(theirs)


def test_a_terminal_that_was_closed_takes_everything_in_silence() -> None:
    mine, theirs = pty.openpty()
    os.close(mine)
    assert Screen(theirs).write("x" * 100) == 100
    os.close(theirs)


def test_the_daemons_warnings_appear_above_the_view_line_by_line() -> None:
    mine, theirs = pty.openpty()
    report = LiveReport(Screen(theirs))
    log = Above(report)
    log.write("journal: disk ")
    log.write("full\nnext")
    shown = drained(mine)
    assert "journal: disk full" in shown
    assert "next" not in shown
    os.close(mine)
    os.close(theirs)
