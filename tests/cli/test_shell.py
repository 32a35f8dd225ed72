"""The interactive shell reads verbs until it is left; nothing that fails ends it."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from pathlib import Path

from supervisor.cli.shell import matching
from tests.api.fake import FakeControl

COMMAND = [sys.executable, "-m", "supervisor.cli.main"]
KIMI = b"kimi                             RUNNING   pid 4242, uptime 0:01:00\n"
DRAFT = b"draft                            STOPPED   Not started\n"


async def shell(socket_path: str, lines: bytes) -> tuple[int | None, bytes, bytes]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "-s", socket_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate(lines)
    return process.returncode, out, err


async def test_status_comes_first_then_what_is_asked(control: FakeControl, socket_path: str) -> None:
    code, out, err = await shell(socket_path, b"pid kimi\n\nstart draft\nquit\npid kimi\n")
    assert (code, out, err) == (0, KIMI + DRAFT + b"4242\ndraft: started\n", b"")


async def test_the_end_of_the_input_ends_it(socket_path: str) -> None:
    assert await shell(socket_path, b"") == (0, KIMI + DRAFT, b"")


async def test_mistakes_end_nothing(socket_path: str) -> None:
    code, out, err = await shell(socket_path, b"nonsense\nstart\npid none\nstatus 'x\npid kimi\nexit\n")
    assert code == 0
    assert out.endswith(b"4242\n")
    assert b"error: no such server: none" in err
    assert b"cannot read the line: No closing quotation" in err
    assert b"Traceback" not in err


async def test_no_daemon_ends_nothing_either(tmp_path: Path) -> None:
    code, out, err = await shell(str(tmp_path / "none"), b"status\n")
    assert (code, out) == (0, b"")
    assert err.count(b"cannot reach the daemon at ") == 2


async def test_on_a_terminal_it_prompts_and_completes(socket_path: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "-s", socket_path),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "HOME": str(tmp_path), "TERM": "dumb", "NO_COLOR": "1"},
    )
    os.close(theirs)
    seen = await asyncio.to_thread(read_until, ours, b"sglctl> ")
    os.write(ours, b"pid ki\t\n")
    seen += await asyncio.to_thread(read_until, ours, b"4242")
    os.write(ours, b"quit\n")
    assert await process.wait() == 0
    os.close(ours)
    assert b"pid kimi" in seen
    assert "pid kimi" in (tmp_path / ".sglctl_history").read_text()


def read_until(descriptor: int, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        seen += os.read(descriptor, 65536)
    return seen


def test_completion_offers_what_begins_so() -> None:
    assert matching("sta", ("status", "start", "stop")) == ["status ", "start "]
    assert matching("x", ("status",)) == []
