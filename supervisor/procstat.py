"""Reads /proc/PID/stat: who a process is, whose child, and whether it lives. It never blocks, unlike `environ`.

The standard library alone: the child that reads the GPUs, whose memory counts in the daemon's, asks it too.
"""

from __future__ import annotations

import os
from typing import NamedTuple, TypeAlias

Identity: TypeAlias = tuple[int, int]

_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_READ_BYTES = 4096
_ENDED = "ZXx"
_START_TICKS, _WAIT_STATUS = 19, 49  # counted from the state, which proc(5) calls field 3


class Process(NamedTuple):
    """One process at one moment. pid + start_ticks is its identity: the kernel reuses pids."""

    pid: int
    start_ticks: int
    parent: int
    group: int
    session: int
    state: str
    name: str
    threads: int = 1
    cpu_ticks: int = 0
    wait_status: int = 0  # of one that has ended, as wait(2) has it; 0 also for those who may not know (proc(5), 52)

    @property
    def identity(self) -> Identity:
        return self.pid, self.start_ticks

    @property
    def alive(self) -> bool:
        """A zombie is not: it holds nothing but its exit status. Unless only its first thread has ended: the state is
        that thread's, and another one may serve on, or be stuck in the driver with all the memory.
        """
        return self.state not in _ENDED or self.threads > 1

    @property
    def headless(self) -> bool:
        """Its first thread has ended, others have not."""
        return self.state in _ENDED and self.threads > 1

    @property
    def first_thread_alive(self) -> bool:
        """Its command line, environment and files go with that one, for whoever asks /proc/PID."""
        return self.state not in _ENDED


def read(pid: int) -> Process | None:
    """The process with this pid now; None when there is none, or it is hidden from us (hidepid).

    Raises OSError when nobody can tell: without a descriptor to look with, say.
    """
    try:
        descriptor = os.open(f"/proc/{pid}/stat", _FLAGS)  # half the price of `open()`
        try:
            return parse(pid, os.read(descriptor, _READ_BYTES))
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def parse(pid: int, text: bytes) -> Process:
    """What `stat` says of a process, or of one of its threads."""
    # The name is in parentheses and may hold anything, parentheses and newlines too: count from the last one.
    before, _, after = text.rpartition(b")")
    field = after.split(None, _START_TICKS + 1)  # no more of them: this is done for every process of the machine
    state = field[0].decode()
    return Process(
        pid,
        int(field[_START_TICKS]),
        int(field[1]),
        int(field[2]),
        int(field[3]),
        state,
        before.partition(b"(")[2].decode("utf-8", "backslashreplace"),
        int(field[17]),
        int(field[11]) + int(field[12]),
        _wait_status(after.split()) if state in _ENDED else 0,
    )


def _wait_status(field: list[bytes]) -> int:
    return int(field[_WAIT_STATUS]) if len(field) > _WAIT_STATUS else 0
