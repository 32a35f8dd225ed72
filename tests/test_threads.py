"""Threads that may be left behind: those that hang keep their places, and nobody sends another one after them."""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from supervisor.threads import Threads, hanging

PACKAGE = Path(__file__).resolve().parents[1] / "supervisor"


class Disk:
    """Answers when it is told to; counts who has asked."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = threading.Semaphore(0)
        self.times = 0

    def read(self) -> str:
        self.times += 1
        self.asked.release()
        assert self.answers.wait(30)
        return "bytes"


@pytest.fixture
async def disk() -> AsyncIterator[Disk]:
    await all_back()  # those of other tests
    disk = Disk()
    yield disk
    disk.answers.set()
    await all_back()


async def given_up(threads: Threads, disk: Disk, thing: str = "") -> None:
    """A call that begins, and whose asker leaves before the disk answers."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: threads.run(disk.read, thing=thing))
        await anyio.to_thread.run_sync(disk.asked.acquire)
        tasks.cancel_scope.cancel()


async def all_back() -> None:
    with anyio.fail_after(20):
        while hanging():
            await anyio.sleep(0.005)


async def hang_by_now(count: int = 1) -> None:
    """Before that, a call that was left may be about to come back."""
    with anyio.fail_after(20):
        while len(hanging()) < count:
            await anyio.sleep(0.05)


async def test_what_the_work_answers_or_raises_is_handed_on(tmp_path: Path) -> None:
    threads = Threads("the disk")
    assert await threads.run(max, 1, 2) == 2
    with pytest.raises(FileNotFoundError):
        await threads.run((tmp_path / "none").read_text)
    assert await threads.run(lambda: "as before", limit_s=20) == "as before"


async def test_a_disk_that_does_not_answer_in_time_is_said_to_whoever_asks(disk: Disk) -> None:
    with pytest.raises(TimeoutError) as raised:
        await Threads("the disk").run(disk.read, limit_s=0.05)
    assert (raised.value.errno, raised.value.strerror) == (errno.ETIMEDOUT, "the disk has not answered within 0.05 s")


async def test_all_night_a_disk_that_hangs_is_looked_at_by_one_thread(disk: Disk) -> None:
    threads, before = Threads("the disk", 4), threading.active_count()
    await given_up(threads, disk, "/var/log")
    await hang_by_now()
    for _ in range(2000):
        with pytest.raises(TimeoutError, match=r"the disk has not answered for \d+ s"):
            await threads.run(disk.read, limit_s=3600, thing="/var/log")
    assert disk.times == 1
    assert threading.active_count() <= before + 2, "one that hangs, and one that the test itself waited with"
    assert [one.what for one in hanging()] == ["the disk (/var/log)"]
    assert await threads.run(lambda: "another disk", thing="/srv") == "another disk"
    assert threads.hang("/var/log")
    assert not threads.hang("/srv")


async def test_of_a_kind_there_are_so_many_at_most_whatever_they_are_asked_for(disk: Disk) -> None:
    threads = Threads("the disk", 3)
    for number in range(3):
        await given_up(threads, disk, f"file {number}")
    with pytest.raises(TimeoutError):
        await threads.run(disk.read, thing="file 3")
    await hang_by_now(3)
    assert (disk.times, len(hanging()), threads.hang()) == (3, 3, True)


async def test_once_it_has_answered_it_is_asked_again(disk: Disk) -> None:
    threads = Threads("the disk")
    await given_up(threads, disk, "/var/log")
    disk.answers.set()
    await all_back()
    assert await threads.run(disk.read, thing="/var/log") == "bytes"


async def test_who_comes_while_all_are_at_work_waits_for_his_turn(disk: Disk) -> None:
    threads, got = Threads("the disk", 2), list[str]()

    async def ask() -> None:
        got.append(await threads.run(disk.read, thing="/var/log"))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(7):
                tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            await anyio.to_thread.run_sync(disk.asked.acquire)
            await anyio.to_thread.run_sync(disk.asked.acquire)
            assert disk.times == 2
            disk.answers.set()
    assert got == ["bytes"] * 7


async def test_who_waits_for_his_turn_is_refused_when_those_before_him_are_given_up(disk: Disk) -> None:
    threads, refused = Threads("the disk"), anyio.Event()

    async def second() -> None:
        with pytest.raises(TimeoutError, match="has not answered for"):
            await threads.run(disk.read)
        refused.set()

    async with anyio.create_task_group() as tasks, anyio.create_task_group() as first:
        first.start_soon(threads.run, disk.read)
        await anyio.to_thread.run_sync(disk.asked.acquire)
        tasks.start_soon(second)
        await anyio.wait_all_tasks_blocked()
        first.cancel_scope.cancel()
    assert refused.is_set()
    assert disk.times == 1


async def test_who_comes_right_after_somebody_has_left_waits_for_the_thread_to_come_back(disk: Disk) -> None:
    """A client that goes away, a server that is given another configuration: nothing hangs because of that."""
    threads = Threads("the disk")
    await given_up(threads, disk, "/var/log")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.run, len, "abc")
        await anyio.wait_all_tasks_blocked()
        disk.answers.set()
    assert not threads.hang()


async def test_what_comes_too_late_is_closed(disk: Disk) -> None:
    threads, closed = Threads("the disk"), threading.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: threads.run(disk.read, unwanted=lambda found: closed.set() if found else None))
        await anyio.to_thread.run_sync(disk.asked.acquire)
        tasks.cancel_scope.cancel()
    assert not closed.is_set()
    disk.answers.set()
    assert await anyio.to_thread.run_sync(closed.wait, 20)
    wanted: list[str] = []
    assert await threads.run(disk.read, unwanted=wanted.append) == "bytes"
    assert wanted == []


async def test_who_gives_up_before_it_has_begun_leaves_nothing(disk: Disk) -> None:
    threads = Threads("the disk")
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await threads.run(disk.read, limit_s=0)
    assert hanging() == ()
    assert not threads.hang()


async def test_a_hanging_call_takes_no_thread_from_others(disk: Disk) -> None:
    threads = Threads("the disk", 100)
    for number in range(60):  # more than anyio's own threads
        await given_up(threads, disk, str(number))
    with anyio.fail_after(20):
        assert await anyio.to_thread.run_sync(lambda: "at once") == "at once"


def test_nobody_leaves_threads_behind_in_another_way() -> None:
    """A thread that anyio leaves behind is counted by nobody."""
    found = [
        path for path in PACKAGE.rglob("*.py") if re.search(r"abandon_on_cancel|cancellable=True", path.read_text())
    ]
    assert found == [PACKAGE / "threads.py"]
