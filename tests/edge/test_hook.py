"""A hook runs within its limits of time and output, and every way to fail is an answer."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from supervisor.edge.hook import OUTPUT_BYTES, HookRun, run_hook

ENVIRONMENT = {"PATH": os.environ["PATH"], "SGLSUP_TEST_RUN": os.environ["SGLSUP_TEST_RUN"]}


async def run(*command: str, timeout_s: float = 20.0, **variables: str) -> HookRun:
    return await run_hook(command, ENVIRONMENT | variables, timeout_s)


async def test_status_and_output_are_told() -> None:
    done = await run("sh", "-c", "echo one; echo two >&2; exit 3")

    assert (done.status, done.output) == (3, "one\ntwo\n")
    assert done.last_line == "two"


async def test_it_gets_its_environment_and_no_other() -> None:
    done = await run("sh", "-c", 'echo "$SGLSUP_EVENT:$HOME:$PWD"', SGLSUP_EVENT="running")

    assert done.output == "running::/\n"


async def test_no_shell_reads_the_command() -> None:
    done = await run("echo", "$HOME;", "exit", "1")

    assert done.output == "$HOME; exit 1\n"


async def test_a_silent_end_is_told_by_its_status() -> None:
    assert (await run("false")).last_line == "exit status 1"


async def test_who_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; echo waiting; wait"

    done = await run("sh", "-c", script, timeout_s=0.5)

    assert done.status is None
    assert done.problem == "sh was ended: it took longer than 0.5 s"
    assert done.output == "waiting\n"
    pid = int((tmp_path / "pid").read_text())
    assert await gone(pid)


async def gone(pid: int) -> bool:
    """A killed process leaves /proc, or stays as a zombie of an init that does not reap."""
    import anyio

    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        await anyio.sleep(0.01)
    return False


async def test_what_goes_on_in_the_background_is_not_waited_for(tmp_path: Path) -> None:
    """It holds the pipe, but the hook itself has ended."""
    began = time.monotonic()

    done = await run("sh", "-c", f"sleep 3 & echo $! > {tmp_path}/pid; echo done")

    assert (done.status, done.output) == (0, "done\n")
    assert time.monotonic() - began < 2.5
    os.kill(int((tmp_path / "pid").read_text()), 9)


async def test_the_last_output_is_kept_of_one_that_talks_without_end() -> None:
    done = await run(sys.executable, "-c", "print('x' * 99 + '\\n', end='') or [print(i) for i in range(100_000)]")

    assert done.status == 0
    assert len(done.output) == OUTPUT_BYTES
    assert done.output.endswith("99998\n99999\n")


@pytest.mark.parametrize(
    ("command", "why"),
    [("/no/such/program", "No such file"), ("/etc/passwd", "Permission denied"), ("/", "Permission")],
)
async def test_what_cannot_be_run_is_said(command: str, why: str) -> None:
    done = await run(command)

    assert done.status is None
    assert done.last_line.startswith(f"cannot run {command}: {why}")


async def test_control_characters_are_not_shown() -> None:
    assert (await run("printf", "\\033[31mred\\007\\n")).last_line == "?[31mred?"


async def test_a_signal_is_a_negative_status() -> None:
    assert (await run("sh", "-c", "kill -KILL $$")).status == -9


async def test_output_that_is_no_text_is_kept_as_far_as_it_goes() -> None:
    assert (await run("printf", "\\377\\n")).output == "\ufffd\n"


async def test_a_start_that_comes_too_late_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late, started, popen = threading.Event(), [], subprocess.Popen

    def hang(*arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        late.wait(20)
        started.append(popen(*arguments, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", hang)
    done = await run_hook(["sleep", "1000"], ENVIRONMENT, timeout_s=20.0, start_limit_s=0.1)
    assert done.problem == "cannot run sleep: the disk it lies on has not answered within 0.1 s"
    late.set()
    for _ in range(500):
        if started and started[0].returncode is not None:
            break
        await anyio.sleep(0.01)
    assert started[0].returncode == -9
