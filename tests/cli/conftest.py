"""sglctl against a daemon in memory on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from supervisor.cli.main import run
from tests.api.fake import FakeControl, served, snapshot


class Outcome(NamedTuple):
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


Sglctl = Callable[..., Awaitable[Outcome]]


@pytest.fixture
def control() -> FakeControl:
    return FakeControl(snapshot("kimi", "running"), snapshot("draft"))


@pytest.fixture
async def socket_path(control: FakeControl, tmp_path: Path) -> AsyncIterator[str]:
    async with served(control, tmp_path) as path:
        yield path


@pytest.fixture
def sglctl(socket_path: str) -> Sglctl:
    """Runs the client in a thread of this process."""

    async def call(*arguments: str, socket: str = socket_path) -> Outcome:
        async with asyncio.timeout(30):
            return await asyncio.to_thread(_captured, ("-s", socket, *arguments))

    return call


def _captured(arguments: tuple[str, ...]) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run(arguments)
        except SystemExit as usage:
            code = usage.code if isinstance(usage.code, int) else 1
    return Outcome(code, out.getvalue(), err.getvalue())
