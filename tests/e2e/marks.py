"""Finds in /proc everything that one test has started, however far it has detached itself."""

import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path


def marked(*marks: bytes) -> dict[int, str]:
    """pid → command line of every living process whose environment or command line has all marks, but ourselves."""
    return {pid: command for pid, command in _living() if all(_carries(pid, mark) for mark in marks)}


def gone(mark: bytes, limit_s: float = 3.0) -> dict[int, str]:
    """What is left of them once all had a moment to go; {} is the proof that nothing is."""
    until = time.monotonic() + limit_s
    while (left := marked(mark)) and time.monotonic() < until:
        _wait_for_end(next(iter(left)), until)
    return left


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _living() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state not in (b"Z", b"X"):
                yield int(entry.name), command


def _carries(pid: int, mark: bytes) -> bool:
    for name in ("environ", "cmdline"):
        try:
            if mark in Path(f"/proc/{pid}/{name}").read_bytes():
                return True
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False
    return False


def _wait_for_end(pid: int, until: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
    finally:
        os.close(descriptor)
