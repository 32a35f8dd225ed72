"""Describes processes as the kernel sees them: states, wait channels, kernel stacks, memory, threads. Never blocks.

`cmdline` and `environ` are left out on purpose: they take a lock that a process stuck in the kernel may hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from supervisor import procstat
from supervisor.procstat import Process

THREADS_MAX = 256
_FILES = ("stack", "io", "status", "limits", "cgroup", "oom_score")


def describe(pid: int, heading: str) -> str:
    """One process as text; says so when it is gone."""
    process = _stat(pid, f"/proc/{pid}")
    if process is None:
        return f"=== {heading}\ngone\n"
    lines = [f"=== {heading}", f"state {process.state}, wait channel {_wait_channel(f'/proc/{pid}')}"]
    for name in _FILES:
        if text := _read(f"/proc/{pid}/{name}").strip():
            lines += [f"--- {name}", text]
    return "\n".join([*lines, "--- threads", *_threads(pid)]) + "\n"


def _threads(pid: int) -> Iterator[str]:
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        return
    for thread in threads[:THREADS_MAX]:
        place = f"/proc/{pid}/task/{thread}"
        if (seen := _stat(thread, place)) is not None:
            cpu_s = seen.cpu_ticks / os.sysconf("SC_CLK_TCK")
            yield f"{thread} {seen.state} {cpu_s:.2f} s {_wait_channel(place)} ({seen.name})"
    if len(threads) > THREADS_MAX:
        yield f"and {len(threads) - THREADS_MAX} more"


def _wait_channel(place: str) -> str:
    text = _read(f"{place}/wchan").strip()
    return text if text not in ("", "0") else "-"


def _stat(number: int | str, place: str) -> Process | None:
    """Of a process, or of one thread."""
    data = _read_bytes(f"{place}/stat")
    return procstat.parse(int(number), data) if data else None


def _read(path: str) -> str:
    return _read_bytes(path).decode("utf-8", "replace")


def _read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(64 * 1024) or b""
    except OSError:  # gone, or not for us to see
        return b""
