"""The end of each log is read for those who may read it, and nothing else of the file system is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import pytest

from supervisor.api.lastwords import last_lines
from supervisor.web.tails import BYTES, LINES, tails
from tests.api.conftest import connected
from tests.api.fake import FakeControl, served, served_on_tcp
from tests.metrics import fleet


def logging(path: Path) -> FakeControl:
    return fleet.control(msgspec.structs.replace(fleet.running(), log_path=str(path)), fleet.fatal())


def test_the_last_lines_that_say_something() -> None:
    said = [f"line {number}" for number in range(30)]
    assert last_lines("\n".join(said).encode(), LINES, whole=True) == said[-LINES:]
    assert last_lines(b"middle of one\nwhole\n\n \n", LINES, whole=False) == ["whole"]
    assert last_lines(b"25%\r50%\r\ndone\n", LINES, whole=True) == ["25%", "50%", "done"]
    assert last_lines(b"\0\0\0\n\xff\n", LINES, whole=True) == ["\ufffd"], "a hole, and bytes that are no text"
    assert last_lines(b"", LINES, whole=True) == []


async def test_each_server_that_has_a_log(tmp_path: Path) -> None:
    log = tmp_path / "000001.log"
    log.write_bytes(b"x" * BYTES + b"\nlast words\n")

    assert await tails(logging(log)) == {"qwen3-32b": "last words"}


@pytest.mark.parametrize("become", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
async def test_what_is_no_log_is_not_read(tmp_path: Path, become: Callable[[Path], None]) -> None:
    assert await tails(logging(tmp_path / "gone")) == {}
    become(tmp_path / "log")
    assert await tails(logging(tmp_path / "log")) == {}


async def test_the_page_shows_them_over_the_socket_alone(tmp_path: Path) -> None:
    log = tmp_path / "000001.log"
    log.write_text("a user's prompt <b>api_key=sk-secret\x1b[2J\n")
    control = logging(log)

    async with served(control, tmp_path) as path, connected(path) as local:
        page = (await local.get("/")).text
        async with local.stream("GET", "/live") as live:
            first = await anext(piece async for piece in live.aiter_text() if "data:" in piece)
    assert "a user&#x27;s prompt &lt;b&gt;api_key=***" in page
    assert "a user&#x27;s prompt" in first
    assert "sk-secret" not in page
    assert "\x1b" not in page

    async with (
        served_on_tcp(control) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as anybody,
    ):
        assert "prompt" not in (await anybody.get("/")).text
