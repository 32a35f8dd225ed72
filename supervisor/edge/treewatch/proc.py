"""Reads what /proc says about a set of processes at one moment: cheaply, and only titles can block."""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from supervisor import procstat
from supervisor.procstat import Process

_TICKS_S = os.sysconf("SC_CLK_TCK")
_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_READ_BYTES = 4096
_STATE, _KERNEL_FLAGS, _PENDING = 0, 6, 28  # proc(5) fields 3, 9 and 31, counted from the state
_PF_EXITING = 0x4  # linux/sched.h
_SIGKILL_PENDING = 1 << 8  # a fatal signal of any number is turned into it for every thread (complete_signal)


class Seen(msgspec.Struct, frozen=True):
    """One process now. `transfer` None = its IO may not be looked at, `title` None = it was not asked for."""

    process: Process
    transfer: tuple[int, int] | None = None
    title: str | None = None

    @property
    def cpu_s(self) -> float:
        """User and system time of all its threads."""
        return self.process.cpu_ticks / _TICKS_S


def look(pids: Iterable[int]) -> list[Seen]:
    """Those of the processes that exist, without their titles. Does not block. OSError when nobody can look."""
    return [Seen(one, _transfer(one.pid)) for one in map(procstat.read, pids) if one]


def read_titles(pids: Iterable[int], into: dict[int, str]) -> None:
    """The command lines, which titles are written over. Takes each process's memory lock: may block for ever."""
    for pid in pids:
        data = _read(f"/proc/{pid}/cmdline") or b""
        into[pid] = data.replace(b"\0", b" ").decode("utf-8", "replace").rstrip()


def stat(pid: int) -> Process | None:
    """Identity, state and CPU time alone; None when there is no such process, or nobody can look."""
    try:
        return procstat.read(pid)
    except OSError:
        return None


def exit_status(pid: int, start_ticks: int) -> int | None:
    """How a process ended that nobody has reaped yet, negative for a signal.

    None when it lives or is gone, and for 0: the kernel shows that, too, to those who may not know (proc(5), 52).
    """
    now = stat(pid)
    if now is None or now.alive or now.start_ticks != start_ticks:
        return None
    return os.waitstatus_to_exitcode(now.wait_status) or None


def ending(pid: int) -> bool:
    """Whether a process is gone, ends just now, or has been sent what ends it: long before its pidfd says so.

    A process of many threads or much memory takes its time from the one to the other, and its children, who asked to
    die with it, are the first of whom one hears.
    """
    field = (_read(f"/proc/{pid}/stat") or b"").rpartition(b")")[2].split()
    if len(field) <= _PENDING or field[_STATE] in (b"Z", b"X", b"x"):
        return True
    return bool(int(field[_KERNEL_FLAGS]) & _PF_EXITING or int(field[_PENDING]) & _SIGKILL_PENDING)


def children(pid: int) -> list[int]:
    """Whom its main thread has started and nobody has reaped, the dead among them; none on a kernel that hides them."""
    return [int(word) for word in (_read(f"/proc/{pid}/task/{pid}/children") or b"").split()]


def _transfer(pid: int) -> tuple[int, int] | None:
    """Bytes that storage was asked to read and write; None for another user's process, unless we are root."""
    # "read_bytes: N\nwrite_bytes: N\n…", after four lines of no interest
    words = (_read(f"/proc/{pid}/io") or b"").partition(b"\nread_bytes: ")[2].split(None, 3)
    return (int(words[0]), int(words[2])) if len(words) > 2 else None


def _read(path: str) -> bytes | None:
    """The first 4 KiB; None when the process is gone or hidden. Half the price of `open()`."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        return os.read(descriptor, _READ_BYTES)
    except OSError:  # ESRCH: it ended after the open
        return None
    finally:
        os.close(descriptor)
