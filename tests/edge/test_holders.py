"""Who holds a GPU: looked up in /proc, whatever a process calls itself."""

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.edge.holders import COMMAND_LIMIT, identify


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    name = "wicked\x1b[2Jname" + "x" * 400
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--api-key", "hunter2", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    with process, process.stdin, process.stdout:
        process.stdout.readline()
        yield process
        process.kill()


def test_a_living_process_is_named_with_user_command_and_start(holder: subprocess.Popen[bytes]) -> None:
    (owner,) = identify([holder.pid])
    assert owner.pid == holder.pid
    assert owner.uid == os.getuid()
    assert owner.user == pwd.getpwuid(os.getuid()).pw_name
    assert owner.command.startswith(sys.executable)
    assert owner.start_ticks > 0
    assert owner.server == ""


def test_what_a_process_calls_itself_cannot_reach_a_terminal_nor_fill_it(holder: subprocess.Popen[bytes]) -> None:
    (owner,) = identify([holder.pid])
    assert owner.command.isprintable()
    assert "wicked?[2Jname" in owner.command
    assert len(owner.command) == COMMAND_LIMIT


def test_a_key_on_a_command_line_is_not_shown(holder: subprocess.Popen[bytes]) -> None:
    (owner,) = identify([holder.pid])
    assert "--api-key ***" in owner.command
    assert "hunter2" not in owner.command


def test_the_server_is_what_the_caller_says(holder: subprocess.Popen[bytes]) -> None:
    (owner,) = identify([holder.pid], {holder.pid: "kimi"}.__getitem__)
    assert owner.server == "kimi"


def test_a_process_without_its_first_thread_is_somebody(headless: int) -> None:
    assert [owner.pid for owner in identify([headless])] == [headless]


def test_zombies_the_gone_and_pid_zero_are_nobody(holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped: a zombie
    assert identify([0, holder.pid]) == ()
    holder.wait()
    assert identify([holder.pid]) == ()


def test_a_process_named_twice_is_looked_up_once() -> None:
    assert len(identify([os.getpid(), os.getpid()])) == 1


def test_a_kernel_thread_has_a_name_without_a_command_line() -> None:
    name = Path("/proc/2/comm")
    if not name.exists() or name.read_text() != "kthreadd\n":
        pytest.skip("no kernel thread is seen here (a container)")
    (owner,) = identify([2])
    assert owner.command == "kthreadd"
