"""Runs one command of the operator's within a limit of time and of output, and says how it ended."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence

import anyio
import msgspec

from supervisor.child import Child, end, exited
from supervisor.lines import printable
from supervisor.threads import Threads

OUTPUT_BYTES = 64 * 1024  # the last ones are kept
END_LIMIT_S = 2.0
LINE_CHARACTERS = 300
START_LIMIT_S = 10.0  # an exec from a dead network file system hangs
_starting = Threads("the disk it lies on", 16)


class HookRun(msgspec.Struct, frozen=True):
    """How a hook ended. `status` None: it could not be run, or not to its end; `problem` says why."""

    status: int | None
    output: str = ""
    took_s: float = 0.0
    problem: str = ""

    @property
    def last_line(self) -> str:
        """What it said last, fit to be shown; else how it ended."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        shown = printable(lines[-1]) if lines else ""
        return self.problem or shown[:LINE_CHARACTERS] or f"exit status {self.status}"


async def run_hook(
    command: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
    start_limit_s: float = START_LIMIT_S,
) -> HookRun:
    """Run it to its end, without a shell, in a process group of its own, which is killed when the time is over.

    What it leaves in the background keeps running once it has ended in time; its output is not waited for.
    """
    began = time.monotonic()
    output, child = bytearray(), Child(command, environment, "/")
    try:
        try:
            process = await _starting.run(child.start, limit_s=start_limit_s, thing=command[0])
        except OSError as problem:  # TimeoutError too
            return HookRun(None, problem=f"cannot run {command[0]}: {problem.strerror}")
        with anyio.move_on_after(timeout_s) as limit:
            await _to_the_end(process, output)
    finally:
        if (started := child.leave()) is not None:
            with anyio.CancelScope(shield=True):  # bounded by END_LIMIT_S
                await end(started, END_LIMIT_S)
    text, took_s = output.decode("utf-8", "replace"), time.monotonic() - began
    if limit.cancelled_caught:
        return HookRun(None, text, took_s, f"{command[0]} was ended: it took longer than {timeout_s:g} s")
    return HookRun(process.returncode, text, took_s)


async def _to_the_end(process: subprocess.Popen[bytes], output: bytearray) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, process, output)
        await exited(process)
        tasks.cancel_scope.cancel()
    _take(process, output)


async def _read(process: subprocess.Popen[bytes], output: bytearray) -> None:
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    while True:
        await anyio.wait_readable(process.stdout)
        if not _take(process, output):
            return


def _take(process: subprocess.Popen[bytes], output: bytearray) -> bool:
    """What is in the pipe now; False at its end."""
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    try:
        piece = os.read(process.stdout.fileno(), OUTPUT_BYTES)
    except BlockingIOError:
        return True
    output += piece
    del output[:-OUTPUT_BYTES]
    return bool(piece)
