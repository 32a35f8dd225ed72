"""Reads an exit status where the kernel tells it to nobody but the parent: from what the recorder has written.

Before Linux 6.15 only the parent of a process learns how it ended. There the launcher stays as the server's parent and
writes the status into a file (`recorder.py`), so that a daemon which is not the parent, or was not there, knows it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from supervisor import procstat
from supervisor.edge.process import exits

_LOOK_EVERY_S = 0.02


class Recorder(msgspec.Struct, frozen=True):
    """The parent of one tree's leader, and where it writes. `marker` tells whose status the file holds."""

    path: str
    marker: str
    pid: int = 0

    @property
    def alive(self) -> bool:
        """Whether it may still write."""
        process = procstat.read(self.pid)
        return process is not None and process.alive

    def told(self) -> exits.Status | None:
        """What it has written; None when nothing yet, or nothing of this tree."""
        try:
            lines = Path(self.path).read_text().split("\n")
        except (OSError, UnicodeDecodeError):
            return None
        if len(lines) != 3 or lines[0] != self.marker or not lines[1].lstrip("-").isdecimal():
            return None
        return exits.Status(int(lines[1]))


def open_record(path: str, marker: str) -> int:
    """A fresh file for one status, open for the recorder: its user may not open it. OSError when not."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # Never the file of an earlier attempt: its recorder may be late.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    record = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    os.write(record, f"{marker}\n".encode())
    return record


async def recorded(recorder: Recorder, pidfd: int | None, limit_s: float = exits.REAP_LIMIT_S) -> exits.Status | None:
    """How the ended leader ended. None when nobody has written it.

    A recorder that was killed first has left the leader to us, if we are its parent or it was our subreaper's.
    """
    with anyio.move_on_after(limit_s):
        while True:
            writing = recorder.alive
            told = recorder.told() or (exits.reap(pidfd) if pidfd is not None else None)
            if told is not None or not writing:
                return told
            await anyio.sleep(_LOOK_EVERY_S)
    return recorder.told()


async def kernel_tells() -> bool:
    """Whether this kernel tells the status of a process to others than its parent. Tried out, once a daemon."""
    return await anyio.to_thread.run_sync(_try_out)


def _try_out() -> bool:
    """A child of ours that has been reaped is nobody's child: what is told of it then, is told of anybody."""
    interpreter = os.path.realpath(sys.executable)
    pid = os.posix_spawn(interpreter, [interpreter, "-I", "-S", "-c", "import os; os._exit(7)"], {}, setsigmask=[])
    pidfd = os.pidfd_open(pid)
    try:
        os.waitpid(pid, 0)  # bounded by a program that ends at once
        return exits.told_by_kernel(pidfd) == exits.Status(7)
    finally:
        os.close(pidfd)
