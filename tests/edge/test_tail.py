"""Every byte of a log comes once, in order and soon, whatever befalls the file; a flood leaves the loop to others."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from supervisor.edge import tail
from supervisor.edge.tail import SLICE_BYTES, Chunk, Watcher, follow, watcher

LIMIT_S = 20.0


class Follower:
    """A task that follows a file; what it got can be waited for."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.arrived: list[float] = []
        self._news = anyio.Event()

    async def run(self, path: Path, offset: int, watch: Watcher) -> None:
        async with aclosing(follow(str(path), offset, watch)) as chunks:
            async for chunk in chunks:
                self.chunks.append(chunk)
                self.arrived.append(time.monotonic())
                self._news.set()
                self._news = anyio.Event()

    @property
    def text(self) -> bytes:
        return b"".join(chunk.data for chunk in self.chunks)

    async def until(self, ending: bytes) -> None:
        with anyio.fail_after(LIMIT_S):
            while not self.text.endswith(ending):
                await self._news.wait()


@asynccontextmanager
async def following(path: Path, offset: int = 0, watch: Watcher | None = None) -> AsyncIterator[Follower]:
    follower = Follower()
    async with AsyncExitStack() as stack:
        watch = watch or await stack.enter_async_context(watcher())
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(follower.run, path, offset, watch)
        yield follower
        tasks.cancel_scope.cancel()


async def idle() -> None:
    """Until the followers have armed their watches and wait: a batch's pause later everybody is blocked."""
    await anyio.sleep(tail.BATCH_S * 3)
    await anyio.wait_all_tasks_blocked()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.touch()
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


async def test_what_is_there_and_what_comes(log: Path) -> None:
    append(log, b"before\n")
    async with following(log) as follower:
        await follower.until(b"before\n")
        append(log, b"after\n")
        await follower.until(b"after\n")
    assert [(chunk.offset, chunk.data, chunk.truncated) for chunk in follower.chunks] == [
        (0, b"before\n", False),
        (7, b"after\n", False),
    ]
    assert follower.chunks[-1].caught_up


async def test_from_an_offset(log: Path) -> None:
    append(log, b"old new")
    async with following(log, offset=4) as follower:
        await follower.until(b"new")
    assert follower.chunks == [Chunk(4, b"new", caught_up=True)]


async def test_the_first_byte_after_silence_comes_at_once(log: Path) -> None:
    """ "Ready" must not wait for the next batch: `wait` promises 100 ms in all."""
    async with following(log) as follower:
        await idle()
        began = time.monotonic()
        append(log, b"ready\n")
        await follower.until(b"ready\n")
    assert follower.arrived[0] - began < tail.BATCH_S  # 0.3-0.7 ms on a quiet machine


async def test_a_busy_log_is_read_in_batches(log: Path) -> None:
    async with following(log) as follower:
        for number in range(300):
            append(log, b"%d\n" % number)
            await anyio.sleep(0.001)
        await follower.until(b"299\n")
    assert follower.text == b"".join(b"%d\n" % number for number in range(300))
    assert len(follower.chunks) < 100


async def test_a_file_that_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "later.log"
    async with following(path) as follower:
        await idle()
        began = time.monotonic()
        append(path, b"here\n")
        await follower.until(b"here\n")
    assert follower.arrived[0] - began < tail.UNWATCHED_LOOK_S  # told by the directory, not by looking now and then


async def test_a_directory_that_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "later" / "it.log"
    async with following(path) as follower:
        await idle()
        path.parent.mkdir()
        append(path, b"here\n")
        await follower.until(b"here\n")


async def test_truncation_begins_again(log: Path) -> None:
    append(log, b"a long first life\n")
    async with following(log) as follower:
        await follower.until(b"life\n")
        os.truncate(log, 0)
        await idle()
        append(log, b"second\n")
        await follower.until(b"second\n")
    assert follower.chunks[-1] == Chunk(0, b"second\n", truncated=True, caught_up=True)


async def test_truncated_and_written_between_two_looks(log: Path) -> None:
    append(log, b"a long first life\n")
    async with following(log) as follower:
        await follower.until(b"life\n")
        log.write_bytes(b"second\n")
        await follower.until(b"second\n")
    assert follower.chunks[-1].truncated


async def test_an_offset_beyond_the_end_is_a_truncation(log: Path) -> None:
    append(log, b"short\n")
    async with following(log, offset=1000) as follower:
        await follower.until(b"short\n")
    assert follower.chunks == [Chunk(0, b"short\n", truncated=True, caught_up=True)]


async def test_a_renamed_file_is_followed_whatever_takes_its_name(log: Path) -> None:
    """logrotate without copytruncate: the server keeps its descriptor and goes on writing to the renamed file."""
    with log.open("ab", buffering=0) as server:
        server.write(b"one\n")
        async with following(log) as follower:
            await follower.until(b"one\n")
            log.rename(log.with_suffix(".1"))
            await idle()
            began = time.monotonic()
            server.write(b"two\n")
            await follower.until(b"two\n")
            assert follower.arrived[-1] - began < 5  # by its event, not by a look now and then
            log.touch()
            await idle()
            server.write(b"three\n")
            await follower.until(b"three\n")
            append(log, b"not the server's\n")
            await idle()
            server.write(b"four\n")
            await follower.until(b"four\n")
    assert follower.text == b"one\ntwo\nthree\nfour\n"
    assert not any(chunk.truncated for chunk in follower.chunks)


async def test_a_deleted_file_is_followed_while_it_is_written(log: Path) -> None:
    with log.open("ab", buffering=0) as server:
        server.write(b"one\n")
        async with following(log) as follower:
            await follower.until(b"one\n")
            log.unlink()
            await idle()
            append(log, b"not the server's\n")
            server.write(b"two\n")
            await follower.until(b"two\n")
            await idle()
    assert follower.text == b"one\ntwo\n"


async def test_nul_bytes_and_anything_else_pass_untouched(log: Path) -> None:
    data = bytes(range(256)) * 10 + b"\r\r\n\x00"
    async with following(log) as follower:
        append(log, data)
        await follower.until(data)


async def test_many_followers_share_one_watcher(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.log" for number in range(20)]
    followers = [Follower() for _ in paths]
    async with watcher() as watch, anyio.create_task_group() as tasks:
        for path, follower in zip(paths, followers, strict=True):
            tasks.start_soon(follower.run, path, 0, watch)
        await idle()
        for number, path in enumerate(paths):
            append(path, b"%d\n" % number)
        for number, follower in enumerate(followers):
            await follower.until(b"%d\n" % number)
        tasks.cancel_scope.cancel()
    assert [follower.text for follower in followers] == [b"%d\n" % number for number in range(20)]


async def test_two_followers_of_one_file(log: Path) -> None:
    """The daemon and a `tail -f` of a client: neither takes the other's watch away."""
    async with watcher() as watch, following(log, watch=watch) as first:
        async with following(log, watch=watch) as second:
            await idle()
            append(log, b"both\n")
            await first.until(b"both\n")
            await second.until(b"both\n")
            await idle()
        append(log, b"one\n")
        await first.until(b"one\n")


async def test_a_follower_that_leaves_takes_its_watches_along(log: Path) -> None:
    async with watcher() as watch:
        async with following(log, watch=watch):
            await idle()
            assert watch._waiting
        assert not watch._waiting


async def test_without_inotify_watches_it_still_follows(log: Path) -> None:
    """fs.inotify.max_user_watches used up by others."""

    class Exhausted(Watcher):
        def arm(self, path: str, mask: int, event: anyio.Event) -> int | None:
            return None

    async with following(log, watch=Exhausted(-1, ctypes.CDLL(None))) as follower:
        await idle()
        append(log, b"seen\n")
        await follower.until(b"seen\n")


async def test_without_an_inotify_instance_it_still_follows(log: Path) -> None:
    """fs.inotify.max_user_instances used up by containers: a daemon that did not start for it adopted nobody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with AsyncExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))  # the same errno
        try:
            watch = await stack.enter_async_context(watcher())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert watch.problem.startswith("cannot make an inotify descriptor: Too many open files")
        async with following(log, watch=watch) as follower:
            await idle()
            append(log, b"seen\n")
            await follower.until(b"seen\n")


async def test_an_overflow_of_the_event_queue_wakes_everybody(log: Path) -> None:
    async with watcher() as watch:
        event = anyio.Event()
        watch.arm(str(log), 0x2, event)
        watch._dispatch(tail._HEADER.pack(-1, tail._IN_Q_OVERFLOW, 0, 0))
        assert event.is_set()


async def test_a_log_that_cannot_be_read_ends_the_feed(tmp_path: Path) -> None:
    async with watcher() as watch:
        with pytest.raises(IsADirectoryError):
            await Follower().run(tmp_path, 0, watch)


# --- floods --------------------------------------------------------------------------------------------------------

FLOOD = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
block = b"".join(b"%07d this is a line of the usual length, of some engine in some mood\\n" % n for n in range(1000))
for _ in range(int(sys.argv[2])):
    os.write(fd, block)
os.write(fd, b"END\\n")
"""


@pytest.fixture
def flood(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-E", "-c", FLOOD, str(log), "300"])
    yield process
    process.wait()


async def test_a_flood_comes_whole_in_bounded_slices(log: Path, flood: object) -> None:
    async with following(log) as follower:
        await follower.until(b"END\n")
    assert follower.text == log.read_bytes()
    assert max(len(chunk.data) for chunk in follower.chunks) <= SLICE_BYTES
    offset = 0
    for chunk in follower.chunks:
        assert chunk.offset == offset
        offset += len(chunk.data)


async def test_a_flood_leaves_the_loop_to_others(log: Path, flood: object) -> None:
    """Between any two slices the loop turns once: who is ready gets his turn."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with following(log) as follower, anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await follower.until(b"END\n")
        tasks.cancel_scope.cancel()
    assert turns >= len(follower.chunks)


async def test_a_slow_disk_is_read_in_a_thread(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    real = os.pread

    def slow(*arguments: int) -> bytes:
        threads.append(threading.current_thread().name)
        time.sleep(tail.SLOW_READ_S * 1.5)
        return real(*arguments)

    monkeypatch.setattr(os, "pread", slow)
    append(log, b"x" * SLICE_BYTES * 3)
    async with following(log) as follower:
        with anyio.fail_after(LIMIT_S):
            while len(follower.text) < SLICE_BYTES * 3:
                await anyio.sleep(0.01)
    assert threads[0] == threading.main_thread().name
    assert all(name != threads[0] for name in threads[1:])
