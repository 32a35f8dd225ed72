"""Reading files for who asks: a disk that hangs is given up, and takes no thread from anybody else."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from supervisor.api.files import AT_MOST, in_thread, piece


@pytest.fixture
def hangs() -> Iterator[threading.Event]:
    """A call that does not return before the test is over."""
    answer = threading.Event()
    yield answer
    answer.set()


async def test_what_is_read_is_answered_and_what_cannot_be_read_is_raised(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("ready")
    assert await in_thread((tmp_path / "log").read_text) == "ready"
    assert await piece(os.path.getsize, str(tmp_path / "log")) == 5
    with pytest.raises(FileNotFoundError):
        await in_thread(os.path.getsize, str(tmp_path / "none"))


async def test_a_disk_that_does_not_answer_is_given_up(hangs: threading.Event) -> None:
    with pytest.raises(TimeoutError, match="the disk has not answered") as raised:
        await in_thread(hangs.wait, 30, limit_s=0.01)
    assert raised.value.strerror == "the disk has not answered within 0.01 s"


async def test_who_asks_too_much_of_it_takes_no_thread_from_others(hangs: threading.Event) -> None:
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(3 * AT_MOST):
                tasks.start_soon(piece, hangs.wait, 30)
            await anyio.wait_all_tasks_blocked()
            assert await anyio.to_thread.run_sync(lambda: "at once") == "at once"
            tasks.cancel_scope.cancel()  # who asked has left: nobody waits for the disk


async def test_with_many_that_hang_nobody_needs_another_thread_to_find_out(hangs: threading.Event) -> None:
    begun = threading.Semaphore(0)

    def read() -> None:
        begun.release()
        hangs.wait(30)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(AT_MOST):
                tasks.start_soon(piece, read)
            for _ in range(AT_MOST):
                await anyio.to_thread.run_sync(begun.acquire)
            tasks.cancel_scope.cancel()
        with pytest.raises(TimeoutError):
            await in_thread(read)
    assert not begun.acquire(blocking=False)
