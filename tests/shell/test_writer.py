"""The writer of the state directory: order, the newest of what waits, patience, refusals, and the end."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from supervisor.shell.writer import LIMIT_S, THREADS, Change, StateWriter

KIMI, GLM = Path("/state/servers/kimi.json"), Path("/state/servers/glm.json")
COST = "a daemon that comes back will not know better"
HANGS = f"cannot write {KIMI}: the disk has not answered within 1 s; {COST}"
SOON_S = 0.02  # the patience of a test that knows that nothing will come


class Disk:
    """What is written is noted. While it hangs no call returns; while it refuses each one fails."""

    def __init__(self) -> None:
        self.written: list[tuple[Path, int]] = []
        self.refuses: dict[Path, int] = {}
        self.hung = 0  # calls that have not returned
        self._answers = threading.Event()
        self._answers.set()
        self._news = threading.Condition()

    def write(self, path: Path, version: int) -> None:
        with self._news:
            self.hung += 1
            self._news.notify_all()
        assert self._answers.wait(30)
        with self._news:
            self.hung -= 1
        if (number := self.refuses.get(path)) is not None:
            raise OSError(number, os.strerror(number), str(path))
        self.written.append((path, version))

    def hang(self) -> None:
        self._answers.clear()

    def answer(self) -> None:
        self._answers.set()

    def meets(self, calls: int) -> bool:
        """Whether so many calls hang, sooner or later."""
        with self._news:
            return self._news.wait_for(lambda: self.hung == calls, 20)


class Stage:
    """A writer on such a disk, in time that only the test moves."""

    def __init__(self, threads: int = THREADS) -> None:
        self.now = 100.0
        self.disk = Disk()
        self.told: list[str] = []
        self.writer = StateWriter(self.told.append, threads=threads, monotonic=lambda: self.now)

    def ask(self, path: Path, version: int) -> Change:
        return self.writer.ask(path, partial(self.disk.write, path, version), COST)

    async def hangs(self, path: Path = KIMI, version: int = 1) -> Change:
        """The disk hangs, and this is what it was asked last."""
        self.disk.hang()
        change = self.ask(path, version)
        assert await anyio.to_thread.run_sync(self.disk.meets, 1)
        return change

    async def until(self, reached: Callable[[], bool]) -> None:
        with anyio.fail_after(20):
            while not reached():
                await anyio.sleep(0.002)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    made.disk.answer()
    await made.writer.close()


async def test_what_is_made_is_on_disk(stage: Stage) -> None:
    await stage.writer.made(stage.ask(KIMI, 1), 20)
    await stage.writer.made(stage.ask(GLM, 1), 20)
    assert stage.disk.written == [(KIMI, 1), (GLM, 1)]
    assert (stage.writer.problem, stage.told) == ("", [])


async def test_of_one_file_what_is_asked_first_is_made_first_and_of_what_waits_only_the_newest(stage: Stage) -> None:
    first = await stage.hangs()
    second, third = stage.ask(KIMI, 2), stage.ask(KIMI, 3)
    other = stage.ask(GLM, 1)
    assert second is third, "who waits for the older one is served by the newer one"
    stage.disk.answer()
    for change in (first, second, third, other):
        await stage.writer.made(change, 20)
    assert [version for path, version in stage.disk.written if path == KIMI] == [1, 3]
    assert (GLM, 1) in stage.disk.written


async def test_one_file_is_never_written_by_two_at_once(stage: Stage) -> None:
    await stage.hangs()
    stage.ask(KIMI, 2)
    stage.ask(GLM, 1)
    assert await anyio.to_thread.run_sync(stage.disk.meets, 2), "the other file has a thread of its own"
    assert stage.disk.hung == 2


async def test_a_disk_that_hangs_is_waited_for_no_longer_than_the_limit_and_is_told_once(stage: Stage) -> None:
    change = await stage.hangs()
    assert (stage.writer.hangs, stage.writer.problem) == (False, "")
    stage.now += LIMIT_S
    with pytest.raises(TimeoutError) as raised:
        await stage.writer.made(change)
    assert (raised.value.filename, raised.value.errno) == (str(KIMI), errno.ETIMEDOUT)
    await stage.writer.tried(stage.ask(GLM, 1))  # what is done all the same
    assert stage.writer.hangs
    assert stage.told == [HANGS]
    stage.disk.answer()
    await stage.until(lambda: stage.told[-1] == "" and len(stage.disk.written) == 2)  # two threads, in any order
    assert sorted(stage.disk.written) == [(GLM, 1), (KIMI, 1)], "nothing is lost"
    assert (stage.writer.problem, stage.told) == ("", [HANGS, ""])


async def test_who_has_little_patience_is_answered_before_anybody_calls_it_a_hang(stage: Stage) -> None:
    change = await stage.hangs()
    with pytest.raises(TimeoutError, match="the disk has not answered"):
        await stage.writer.made(change, SOON_S)
    assert stage.told == []
    stage.disk.answer()
    await stage.writer.made(change, 20)


async def test_all_threads_that_hang_hold_up_nobody_who_asks(stage: Stage) -> None:
    stage.disk.hang()
    files = [Path(f"/state/servers/{number}.json") for number in range(3 * THREADS)]
    changes = [stage.ask(path, 1) for path in files]
    assert await anyio.to_thread.run_sync(stage.disk.meets, THREADS)
    stage.disk.answer()
    for change in changes:
        await stage.writer.made(change, 20)
    assert sorted(stage.disk.written) == sorted((path, 1) for path in files)


async def test_a_refusal_is_told_with_its_cost_and_made_good_with_the_next_change_of_any_file(stage: Stage) -> None:
    stage.disk.refuses[KIMI] = errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        await stage.writer.made(stage.ask(KIMI, 1), 20)
    refused = f"cannot write {KIMI}: No space left on device; {COST}"
    assert (stage.writer.problem, stage.told) == (refused, [refused])
    with pytest.raises(OSError, match="No space left"):
        await stage.writer.made(stage.ask(KIMI, 2), 20)
    assert stage.told[-1] == refused
    stage.disk.refuses.clear()
    await stage.writer.made(stage.ask(GLM, 1), 20)
    await stage.until(lambda: (KIMI, 2) in stage.disk.written)
    assert (KIMI, 1) not in stage.disk.written
    await stage.until(lambda: stage.told[-1] == "")


async def test_a_refusal_that_is_late_to_be_heard_of_does_not_undo_the_change_after_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    report, overtaken = loop.call_soon_threadsafe, threading.Event()
    heard: list[Change] = []

    def late_at_first(callback: Callable[..., object], *arguments: Any) -> asyncio.Handle:
        if arguments and isinstance(arguments[0], Change):
            heard.append(arguments[0])
            if len(heard) == 1:
                overtaken.wait(10 * SOON_S)
            overtaken.set()
        return report(callback, *arguments)

    monkeypatch.setattr(loop, "call_soon_threadsafe", late_at_first)
    stage.disk.refuses[KIMI] = errno.ENOSPC
    older = await stage.hangs()
    newer = stage.writer.ask(KIMI, lambda: stage.disk.written.append((KIMI, 2)), COST)
    stage.disk.answer()
    await stage.writer.tried(older)
    await stage.writer.made(newer, 20)
    stage.disk.refuses.clear()
    await stage.writer.made(stage.ask(GLM, 1), 20)
    assert await stage.writer.flush(20)
    assert stage.disk.written == [(KIMI, 2), (GLM, 1)], "the older one is not made again over the newer one"


async def test_a_file_that_is_refused_for_ever_is_no_endless_work(stage: Stage) -> None:
    stage.disk.refuses[KIMI] = errno.EACCES
    await stage.writer.tried(stage.ask(KIMI, 1))
    for version in (1, 2):
        await stage.writer.made(stage.ask(GLM, version), 20)
        assert await stage.writer.flush(20)
    assert stage.told == [f"cannot write {KIMI}: Permission denied; {COST}"], "told once"


async def test_a_bug_costs_its_change_alone(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="error of the supervisor itself: ZeroDivisionError"):
        await stage.writer.made(stage.writer.ask(KIMI, lambda: stage.disk.write(KIMI, 1 // 0), COST), 20)
    assert "ZeroDivisionError" in capsys.readouterr().out
    await stage.writer.made(stage.ask(KIMI, 2), 20)
    assert stage.writer.problem == ""


async def test_a_flush_waits_for_everything_and_not_for_ever(stage: Stage) -> None:
    assert await stage.writer.flush(0), "nothing is under way"
    await stage.hangs()
    stage.ask(KIMI, 2)
    stage.ask(GLM, 1)
    assert not await stage.writer.flush(SOON_S)
    stage.disk.answer()
    assert await stage.writer.flush(20)
    assert sorted(stage.disk.written) == [(GLM, 1), (KIMI, 1), (KIMI, 2)]


async def test_the_end_says_what_is_not_written_and_leaves_the_thread_that_hangs(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    await stage.hangs()
    await stage.writer.close(SOON_S)
    said = capsys.readouterr().out
    assert "the disk has not answered within 0.02 s" in said
    assert f"not written: {KIMI}" in said


async def test_the_end_writes_what_waits_even_when_everybody_else_is_cancelled(stage: Stage) -> None:
    await stage.hangs()
    stage.ask(KIMI, 2)
    with anyio.CancelScope() as scope:
        scope.cancel()
        threading.Timer(SOON_S, stage.disk.answer).start()
        await stage.writer.close(20)
    assert stage.disk.written == [(KIMI, 1), (KIMI, 2)]


async def test_without_threads_it_is_written_at_once() -> None:
    stage = Stage(threads=0)
    assert stage.ask(KIMI, 1).settled.is_set()
    stage.disk.refuses[KIMI] = errno.EROFS
    with pytest.raises(OSError, match="Read-only"):
        await stage.writer.made(stage.ask(KIMI, 2))
    stage.disk.refuses.clear()
    stage.ask(GLM, 1)
    assert stage.disk.written == [(KIMI, 1), (GLM, 1), (KIMI, 2)]
    assert stage.told[-1] == ""
