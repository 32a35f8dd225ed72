"""What a server's dead processes left in shared memory goes when its tree is empty; anybody else's stays."""

from __future__ import annotations

import os
import pwd
import subprocess
import threading
import time
from pathlib import Path

import pytest

from supervisor.config import ServerConfig
from supervisor.profile import LeftoverRule
from supervisor.shell.tidy import tidy


@pytest.fixture
def dead() -> int:
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def left(directory: Path, pid: int) -> Path:
    path = directory / f"shm_{pid}_x"
    path.write_bytes(b"x")
    return path


async def test_files_of_the_trees_dead_go(tmp_path: Path, dead: int) -> None:
    rules = (LeftoverRule(str(tmp_path), r"shm_(?P<pid>\d+)_\w"),)
    ours, anothers = left(tmp_path, dead), left(tmp_path, dead + 1)
    await tidy(rules, ServerConfig("kimi"), {dead})
    assert not ours.exists()
    assert anothers.exists()


async def test_files_of_another_user_stay(tmp_path: Path, dead: int) -> None:
    rules = (LeftoverRule(str(tmp_path), r"shm_(?P<pid>\d+)_\w"),)
    path = left(tmp_path, dead)
    for user in ("nobody", "no-such-user"):
        await tidy(rules, ServerConfig("kimi", user=user), {dead})
    assert path.exists()


async def test_a_user_who_cannot_be_looked_up_holds_up_no_end(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()

    def hang(user: str) -> pwd.struct_passwd:
        answer.wait(20)
        return pwd.getpwuid(os.geteuid())

    monkeypatch.setattr(pwd, "getpwnam", hang)
    path = left(tmp_path, dead)
    began = time.monotonic()
    try:
        rules = (LeftoverRule(str(tmp_path), r"shm_(?P<pid>\d+)_\w"),)
        await tidy(rules, ServerConfig("kimi", user="far"), {dead}, limit_s=0.1)
    finally:
        answer.set()
    assert time.monotonic() - began < 5
    assert path.exists()
