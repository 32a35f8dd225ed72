"""Who holds memory: asked of every process, remembered of those that cannot be asked now."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator

import anyio
import pytest

from supervisor.shell.owners import Owners


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


class Books:
    """Whose process it is, which may not be answered for a while."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.asked: list[int] = []

    def server_of(self, pid: int) -> str:
        self.asked.append(pid)
        assert self.answers.wait(30)
        return "glm"


@pytest.fixture
def books() -> Iterator[Books]:
    books = Books()
    yield books
    books.answers.set()


async def test_everybody_is_told_with_his_server(books: Books, other: subprocess.Popen[bytes]) -> None:
    owners = await Owners(books.server_of).of((other.pid,))
    assert [(one.pid, one.server) for one in owners] == [(other.pid, "glm")]


async def test_who_was_known_stays_known_while_nobody_answers(books: Books, other: subprocess.Popen[bytes]) -> None:
    owners = Owners(books.server_of, limit_s=0.05)
    known = await owners.of((other.pid,))
    books.answers.clear()
    assert await owners.of((other.pid, os.getpid())) == known
    assert await owners.of((other.pid, os.getpid())) == known
    assert len(books.asked) == 2, "what hangs is not asked again and again"
    assert await owners.of((os.getpid(),)) == (), "of those alone that still hold something"


async def test_the_dead_are_forgotten_meanwhile(books: Books, other: subprocess.Popen[bytes]) -> None:
    owners = Owners(books.server_of, limit_s=0.05)
    assert await owners.of((other.pid,))
    books.answers.clear()
    other.kill()
    other.wait()
    assert await owners.of((other.pid,)) == ()


async def test_an_answer_that_came_late_is_followed_by_another_look(
    books: Books, other: subprocess.Popen[bytes]
) -> None:
    owners = Owners(books.server_of, limit_s=0.05)
    books.answers.clear()
    assert await owners.of((other.pid,)) == ()
    books.answers.set()
    with anyio.fail_after(20):
        while not await owners.of((other.pid,)):
            await anyio.lowlevel.checkpoint()
