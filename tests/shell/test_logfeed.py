"""A growing log file becomes events: at once, in order, to its last word; a traceback also when it falls silent."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from supervisor.edge.tail import watcher
from supervisor.events import AnyEvent, LineMatched, LogGrew, LogUnreadable
from supervisor.profile import load_profile
from supervisor.shell.logfeed import LogFeed

BEGIN = "[2026-11-29 10:00:02 TP0] Load weight begin. avail mem=78.00 GB\n"
READY = "[2026-11-29 10:00:40] The server is fired up and ready to roll!\n"
TRACEBACK = (
    "[2026-11-29 10:00:05 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "/x/sglang/srt/managers/scheduler.py", line 1, in run_scheduler_process\n'
    "    scheduler = Scheduler(server_args)\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB\n"
)


class Listener:
    """Takes what a feed posts."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self._news = anyio.Event()

    async def post(self, event: AnyEvent) -> None:
        self.events.append(event)
        self._news.set()
        self._news = anyio.Event()

    def rules(self) -> list[str]:
        return [event.rule for event in self.events if isinstance(event, LineMatched)]

    async def until(self, rule: str, limit_s: float = 10.0) -> None:
        with anyio.fail_after(limit_s):
            while rule not in self.rules():
                await self._news.wait()


@pytest.fixture
async def listener() -> Listener:
    return Listener()


@pytest.fixture
async def log(tmp_path: Path) -> Path:
    path = tmp_path / "000001.log"
    path.touch()
    return path


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


async def running(feed: LogFeed) -> AsyncIterator[None]:
    async with watcher() as watch, anyio.create_task_group() as tasks:
        tasks.start_soon(feed.run, watch)
        tasks.start_soon(feed.pauses)
        yield
        await feed.drain()


async def test_lines_are_told_as_they_come(log: Path, listener: Listener) -> None:
    feed = LogFeed(str(log), 3, load_profile("sglang"), listener.post)
    async for _ in running(feed):
        append(log, BEGIN)
        await listener.until("weights-begin")
        append(log, READY)
        await listener.until("ready")
    assert {event.attempt for event in listener.events} == {3}
    assert any(isinstance(event, LogGrew) for event in listener.events)
    assert feed.offset == log.stat().st_size


async def test_what_is_written_before_the_end_is_read_by_the_drain(log: Path, listener: Listener) -> None:
    feed = LogFeed(str(log), 1, load_profile("sglang"), listener.post)
    append(log, BEGIN + READY)
    await feed.drain()
    assert listener.rules() == ["weights-begin", "ready"]
    assert [event for event in listener.events if isinstance(event, LogGrew)][-1] == LogGrew(1, len(BEGIN + READY), 2)


async def test_reading_goes_on_from_an_offset(log: Path, listener: Listener) -> None:
    append(log, BEGIN + READY)
    feed = LogFeed(str(log), 1, load_profile("sglang"), listener.post, offset=len(BEGIN))
    await feed.drain()
    assert listener.rules() == ["ready"]


async def test_an_open_traceback_is_told_when_nothing_more_comes(log: Path, listener: Listener) -> None:
    feed = LogFeed(str(log), 1, load_profile("sglang"), listener.post)
    async for _ in running(feed):
        append(log, TRACEBACK)
        with anyio.fail_after(10):
            while not any("OutOfMemory" in event.text for event in listener.events if isinstance(event, LineMatched)):
                await listener._news.wait()


async def test_the_last_words_before_a_silence_are_counted(log: Path, listener: Listener) -> None:
    feed = LogFeed(str(log), 1, load_profile("sglang"), listener.post)
    async for _ in running(feed):
        append(log, BEGIN)
        await listener.until("weights-begin")
        append(log, READY)  # within the second in which growth has been told already
        with anyio.fail_after(10):
            while LogGrew(1, len(BEGIN + READY), 2) not in listener.events:
                await listener._news.wait()


async def test_a_bar_without_its_newline_is_news(log: Path, listener: Listener) -> None:
    feed = LogFeed(str(log), 1, load_profile("sglang"), listener.post)
    async for _ in running(feed):
        append(log, BEGIN)
        append(log, "Multi-thread loading shards:  25% Completed | 2/8 [00:01<00:03,  2.0it/s]")
        await listener.until("weights-bar")


async def test_a_log_that_cannot_be_read_makes_us_blind_and_says_so(tmp_path: Path, listener: Listener) -> None:
    feed = LogFeed(str(tmp_path), 1, load_profile("sglang"), listener.post)
    async with watcher() as watch:
        with anyio.fail_after(10):
            await feed.run(watch)
    (event,) = listener.events
    assert isinstance(event, LogUnreadable)
    assert str(tmp_path) in event.reason


@pytest.mark.parametrize("become", [Path.mkdir, os.mkfifo], ids=["folder", "fifo"])
async def test_a_log_that_became_something_else_has_no_last_words(
    tmp_path: Path, listener: Listener, become: Callable[[Path], None]
) -> None:
    become(tmp_path / "log")
    with anyio.fail_after(10):
        await LogFeed(str(tmp_path / "log"), 1, load_profile("sglang"), listener.post).drain()
    assert listener.events == []


async def test_the_drain_ends_even_when_nobody_takes_the_news(log: Path) -> None:
    async def post(_: AnyEvent) -> None:
        await anyio.sleep_forever()

    append(log, BEGIN)
    with anyio.fail_after(10):
        await LogFeed(str(log), 1, load_profile("sglang"), post, drain_limit_s=0.05).drain()


async def test_a_file_that_takes_the_logs_name_is_not_the_log(log: Path, listener: Listener) -> None:
    """Somebody else's logrotate: the child's stdout stays what it was, and so does what we read."""
    feed = LogFeed(str(log), 1, load_profile("sglang"), listener.post)
    with log.open("a", buffering=1) as stdout:
        async for _ in running(feed):
            stdout.write(BEGIN)
            await listener.until("weights-begin")
            log.rename(log.with_suffix(".1"))
            log.write_text(READY + BEGIN * 10)
            stdout.write(READY)
            await listener.until("ready")
    assert listener.rules() == ["weights-begin", "ready"], "nor are its last words the log's"


async def test_hostile_bytes_pass_without_harm(log: Path, listener: Listener) -> None:
    log.write_bytes(b"\x00\xff\xfe" * 1000 + b"\r\r\n" + b"x" * 10_000_000 + b"\n" + BEGIN.encode())
    feed = LogFeed(str(log), 1, load_profile("sglang"), listener.post)
    await feed.drain()
    assert listener.rules()[-1] == "weights-begin"


async def test_what_a_cancelled_feed_had_read_is_told_by_the_drain(log: Path) -> None:
    """The pauses between the steps of a chunk are places where the feed can be ended."""
    listener = Listener()
    first = anyio.Event()
    hold = anyio.Event()

    async def post(event: AnyEvent) -> None:
        first.set()
        if not isinstance(event, LogGrew):
            await hold.wait()
        await listener.post(event)

    log.write_text("".join(f"[2026-11-29 10:00:02 TP{n}] Load weight begin. avail mem=78.00 GB\n" for n in range(300)))
    feed = LogFeed(str(log), 1, load_profile("sglang"), post)
    async with watcher() as watch, anyio.create_task_group() as tasks:
        tasks.start_soon(feed.run, watch)
        with anyio.fail_after(10):
            await first.wait()
        tasks.start_soon(feed.drain)
        await anyio.lowlevel.checkpoint()
        hold.set()
    told = [event.rank for event in listener.events if isinstance(event, LineMatched)]
    assert told == [f"TP{n}" for n in range(300)]


HOSTILE = [
    b"[2026-03-01 10:00:00 TP0] quantization must be " + b"quantiz" * 2300,
    b"Capturing Capturing 1% " + b"Capturing 0000000000000%" * 700,
    b"".join(b"[rank%d]: Traceback (most recent call last):\n" % n for n in range(300)),
    b"Capturing batches:  10%|#   | 1/8 [00:00<00:00, 22.90it/s]\r" * 200,
]


async def test_a_hostile_flood_does_not_keep_the_loop_to_itself(log: Path, listener: Listener) -> None:
    """Between two breaths it takes some ms; others' tasks get their turn a hundred times in these 4 MB."""
    log.write_bytes(b"\n".join(HOSTILE * 60) + b"\n")
    feed = LogFeed(str(log), 1, load_profile("sglang"), listener.post)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await feed.drain()
        tasks.cancel_scope.cancel()
    assert turns > 100


async def test_what_is_said_for_each_request_is_told_now_and_then_and_counted(log: Path, listener: Listener) -> None:
    feed = LogFeed(str(log), 1, load_profile("sglang"), listener.post)
    append(log, "".join(TRACEBACK.replace("2.00 GiB", f"{number}.00 GiB") for number in range(200)))
    await feed.drain()
    told = [event for event in listener.events if isinstance(event, LineMatched) and "OutOfMemory" in event.text]
    assert len(told) < 50
    assert "199.00 GiB" in told[-1].text, "the last words are told in any case"
    assert len(told) + sum(int(event.fields.get("untold", "0")) for event in told) == 200


async def test_no_secret_leaves_the_log(log: Path, listener: Listener) -> None:
    words = TRACEBACK.replace(
        "torch.OutOfMemoryError: CUDA", "ValueError: api_key='S3CRET' Bearer S3CRET https://u:S3CRET@h"
    )
    feed = LogFeed(str(log), 1, load_profile("sglang"), listener.post)
    async for _ in running(feed):
        append(log, BEGIN + words)
    told = [event for event in listener.events if isinstance(event, LineMatched) and "***" in event.text]
    assert told
    assert "S3CRET" not in repr(listener.events)
