"""Starts a child in a thread that may be left behind, and ends it with whatever it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence

import anyio


class Child:
    """A child that a thread starts, which may take for ever: who comes back too late finds that he must end it.

    Its output and errors go into one pipe that is read without waiting. `environment` None: ours.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, directory: str | None = None
    ) -> None:
        self._command = command
        self._environment = environment
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._left = False
        self._lock = threading.Lock()

    def start(self) -> subprocess.Popen[bytes]:
        """In a process group of its own, so that whatever it starts can be killed with it."""
        process = subprocess.Popen(
            self._command,
            cwd=self._directory,
            env=None if self._environment is None else dict(self._environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        os.set_blocking(process.stdout.fileno(), False)
        with self._lock:
            self._process = process
            too_late = self._left
        if too_late:
            _kill_group(process)
            process.communicate()  # bounded: nobody of the group is left to hold the pipe
        return process

    def leave(self) -> subprocess.Popen[bytes] | None:
        """The child, which is the caller's to end; None when there is none yet."""
        with self._lock:
            self._left = self._process is None
            return self._process


async def end(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """Kill the group of one that has not ended, and reap."""
    if process.poll() is None:
        _kill_group(process)
        with anyio.move_on_after(limit_s):
            await exited(process)
    if process.stdout is not None:
        process.stdout.close()


async def exited(process: subprocess.Popen[bytes]) -> None:
    """Bounded by the caller. The child is not reaped yet, so its pid is its own."""
    if process.poll() is None:
        pidfd = os.pidfd_open(process.pid)
        try:
            await anyio.wait_readable(pidfd)
        finally:
            os.close(pidfd)
        process.poll()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
