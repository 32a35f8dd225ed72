"""Has a child look (`python -m supervisor.edge.inspect`), and waits for its answer within a limit.

A child, because only the user himself knows what he may read (access lists, root squashing of NFS), because a dead
network disk must not take a thread of the daemon with it, and because parsing an engine's sources takes memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import anyio
import anyio.to_thread
import msgspec

from supervisor.child import exited
from supervisor.preflight import Looked, Request

_REAP_LIMIT_S = 0.5
_ANSWER_BYTES_MAX = 32 << 20
_PROBLEM_CHARACTERS = 300


async def inspect(request: Request, limit_s: float) -> Looked:
    """What the child saw. When it gives no answer, nothing is known, and `skipped` says why."""
    child = await anyio.to_thread.run_sync(_start)
    try:
        with anyio.move_on_after(limit_s):
            return await _conversation(child, msgspec.json.encode(request))
        return Looked(skipped=(f"everything on disk: no answer within {limit_s:g} s",))
    finally:
        with anyio.CancelScope(shield=True):  # bounded by _REAP_LIMIT_S
            await _end(child)


def _start() -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "supervisor.edge.inspect"],  # -P: nobody's files in the present directory
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,  # Ctrl-C at a terminal is the parent's affair
    )
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None  # noqa: S101 - both were asked for
        os.set_blocking(pipe.fileno(), False)
    return child


async def _conversation(child: subprocess.Popen[bytes], question: bytes) -> Looked:
    assert child.stdin is not None and child.stdout is not None  # noqa: S101, PT018 - both were asked for
    with contextlib.suppress(BrokenPipeError):  # it ended early: what it wrote says why
        await _write(child.stdin.fileno(), question)
    child.stdin.close()
    answer = await _read(child.stdout.fileno())
    try:
        return msgspec.json.decode(answer, type=Looked)
    except msgspec.DecodeError:
        lines = answer.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        return Looked(skipped=(f"everything on disk: {lines[-1][:_PROBLEM_CHARACTERS]}",))


async def _write(descriptor: int, data: bytes) -> None:
    while data:
        await anyio.wait_writable(descriptor)
        data = data[os.write(descriptor, data) :]


async def _read(descriptor: int) -> bytes:
    answer = bytearray()
    while len(answer) < _ANSWER_BYTES_MAX:
        await anyio.wait_readable(descriptor)
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            break
        answer += piece
    return bytes(answer)


async def _end(child: subprocess.Popen[bytes]) -> None:
    """One that hangs in the kernel is left alone: it ends when the call does."""
    if child.stdout is not None:
        child.stdout.close()
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it is another user by now
            child.send_signal(signal.SIGKILL)
        with anyio.move_on_after(_REAP_LIMIT_S):
            await exited(child)
