"""The lock of the state directory: one holder, said by name, gone with its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.edge.statelock import StateLockProblem, state_lock

HOLDER = (
    "import sys; from pathlib import Path; from supervisor.edge.statelock import state_lock\n"
    "with state_lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
)


def test_the_second_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with state_lock(tmp_path), pytest.raises(StateLockProblem) as refused, state_lock(tmp_path):
        pass
    assert str(refused.value) == f"cannot use {tmp_path}: the daemon with pid {os.getpid()} uses it"


def test_it_can_be_had_again_after_a_refusal_and_after_its_release(tmp_path: Path) -> None:
    with state_lock(tmp_path):
        with pytest.raises(StateLockProblem), state_lock(tmp_path):
            pass
        with pytest.raises(StateLockProblem), state_lock(tmp_path):
            pass
    with state_lock(tmp_path):
        assert (tmp_path / "daemon.lock").read_text() == f"{os.getpid()}\n"


def test_a_deleted_file_lets_nobody_in(tmp_path: Path) -> None:
    with state_lock(tmp_path):
        (tmp_path / "daemon.lock").unlink()
        with pytest.raises(StateLockProblem, match="pid unknown"), state_lock(tmp_path):
            pass


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StateLockProblem, match=f"pid {holder.pid} "), state_lock(tmp_path):
            pass
        holder.kill()
    with state_lock(tmp_path):
        pass


def test_a_place_that_is_no_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(StateLockProblem, match=r"cannot lock .*file/daemon.lock: Not a directory"),
        state_lock(tmp_path / "file"),
    ):
        pass
