"""Starts the launcher with its descriptors, and hears what it says."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import anyio

LAUNCHER = str(Path(__file__).with_name("launch.py"))
LAUNCH_LIMIT_S = 30.0  # an exec from a dead network file system hangs; the tree then exists and can be killed
_FIRST_FREE_FD = 10


class Prepared(NamedTuple):
    """What the launcher gets; descriptors, -1 for none."""

    order: bytes
    log: int
    record: int

    def close(self) -> None:
        os.close(self.log)
        if self.record >= 0:
            os.close(self.record)


class Answer(NamedTuple):
    """What the launcher said: the server's pid, where a recorder stands between (else 0); what went wrong, or None."""

    pid: int
    problem: bytes | None


def start_launcher(prepared: Prepared) -> tuple[int, int]:
    """Returns the pid and the reading end of the answer. posix_spawn: no fork of our memory, no Popen that reaps."""
    with contextlib.ExitStack() as stack:
        order_fd = stack.enter_context(_descriptor(os.memfd_create("launch-order", os.MFD_CLOEXEC)))
        os.write(order_fd, prepared.order)  # memory, so all of it; a pipe would block beyond 64 KiB
        os.lseek(order_fd, 0, os.SEEK_SET)
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            passed = [prepared.log, prepared.log, order_fd, writing] + [prepared.record] * (prepared.record >= 0)
            # Sources above every target: a dup2 onto 0-5 must not overwrite the next source.
            sources = [
                stack.enter_context(_descriptor(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD)))
                for fd in passed
            ]
            pid = _posix_spawn(sources)
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return pid, reading


def _posix_spawn(sources: list[int]) -> int:
    interpreter = os.path.realpath(sys.executable)
    return os.posix_spawn(
        interpreter,
        [interpreter, "-I", "-S", LAUNCHER],
        {},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            *((os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(sources, start=1)),
        ],
        setsid=True,
        setsigmask=[],
        # What the daemon ignores (SIGQUIT, SIGPIPE) would stay ignored in the server.
        setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
    )


@contextlib.contextmanager
def _descriptor(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


async def read_answer(answer: int) -> Answer:
    """No problem when the exec succeeded, or still hangs after the limit."""
    told = b""
    with anyio.move_on_after(LAUNCH_LIMIT_S):
        while True:
            await anyio.wait_readable(answer)
            piece = os.read(answer, 4096)
            if not piece:
                return _understood(told)
            told += piece
    return Answer(_understood(told).pid, None)


def _understood(told: bytes) -> Answer:
    pid = b""
    if told.startswith(b"="):
        pid, _, told = told[1:].partition(b"\0")
    return Answer(int(pid or b"0"), None if told == b"+" else told)
