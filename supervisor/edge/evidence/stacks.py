"""Asks py-spy for the stacks of processes, each within a limit: a py-spy that hangs costs that and no more."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec

from supervisor import procstat
from supervisor.child import Child, end, exited
from supervisor.procstat import Process
from supervisor.threads import Threads

OUTPUT_BYTES = 512 * 2**10
REAP_LIMIT_S = 0.5
_threads = Threads("the disk of py-spy", 16)
_PLAIN: tuple[str, ...] = ()
_WITHOUT_STOPPING = ("--nonblocking",)  # of a process that is stopped already, py-spy 0.4.3 reads nothing otherwise
_WITH_NATIVE = ("--native",)


class Stack(msgspec.Struct, frozen=True):
    """What py-spy printed, or why it did not."""

    text: str = ""
    problem: str = ""
    hung: bool = False


def find_py_spy() -> str | None:
    """Our own environment's py-spy, else the first on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


async def stack(program: str, pid: int, limit_s: float) -> Stack:
    """The Python stacks of all threads. A stopped or stuck process is read without stopping it first."""
    process = await _threads.run(_look, pid, thing=f"pid {pid}")
    if process is None or not process.alive:
        return Stack(problem="the process has ended")
    if process.headless:
        return Stack(problem="its first thread has ended, and py-spy finds no other without it")
    ways = [_WITHOUT_STOPPING] if process.state in "TtD" else [_PLAIN, _WITHOUT_STOPPING]
    made = Stack()
    for options in ways:
        made = await _dump(program, pid, options, limit_s)
        if made.text or made.hung:
            break
    return made


async def native_stack(program: str, pid: int, limit_s: float) -> Stack:
    """The same with the frames of C and CUDA libraries, whose symbols may take seconds to load."""
    return await _dump(program, pid, _WITH_NATIVE, limit_s)


async def _dump(program: str, pid: int, options: Sequence[str], limit_s: float) -> Stack:
    command = [program, "dump", "--pid", str(pid), *options]
    output, child = bytearray(), Child(command)
    try:
        with anyio.move_on_after(limit_s) as scope:
            await _read_all(await _threads.run(child.start, thing=program), output)
    except OSError as problem:
        return Stack(problem=f"cannot run {program}: {problem.strerror}")
    finally:
        if (process := child.leave()) is not None:
            with anyio.CancelScope(shield=True):  # bounded by REAP_LIMIT_S
                await end(process, REAP_LIMIT_S)
    text = output.decode("utf-8", "replace")
    if scope.cancelled_caught or process is None:
        return Stack(problem=f"py-spy gave no answer within {limit_s:g} s", hung=True)
    if process.returncode != 0:
        return Stack(problem=_reason(text))
    return Stack(text=text)


async def _read_all(process: subprocess.Popen[bytes], output: bytearray) -> None:
    """Until the end of the output and of the process, or until there is enough of it."""
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    while len(output) < OUTPUT_BYTES:
        await anyio.wait_readable(process.stdout)
        piece = process.stdout.read(OUTPUT_BYTES - len(output))
        if not piece:
            await exited(process)
            return
        output += piece


def _look(pid: int) -> Process | None:
    try:
        return procstat.read(pid)
    except OSError:
        return None


def _reason(text: str) -> str:
    """py-spy prints "Error: …", perhaps "Reason: …", and a backtrace of its own."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("Error", "Reason"))]
    return "; ".join(told[:2]) or (lines[-1] if lines else "py-spy failed without a word")
