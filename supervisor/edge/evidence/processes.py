"""Describes processes as the kernel sees them: states, wait channels, kernel stacks, memory, threads. Never blocks.

`cmdline` and `environ` are left out on purpose: they take a lock that a process stuck in the kernel may hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

THREADS_MAX = 256
_FILES = ("stack", "io", "status", "limits", "cgroup", "oom_score")


def describe(pid: int, heading: str) -> str:
    """One process as text; says so when it is gone."""
    state = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1]
    if not state:
        return f"=== {heading}\ngone\n"
    lines = [f"=== {heading}", f"state {state[0]}, wait channel {_wait_channel(f'/proc/{pid}')}"]
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
        name, _, rest = _read(f"{place}/stat").partition("(")[2].rpartition(")")
        fields = rest.split()
        if len(fields) > 12:
            ticks = int(fields[11]) + int(fields[12])
            yield f"{thread} {fields[0]} {ticks / os.sysconf('SC_CLK_TCK'):.2f} s {_wait_channel(place)} ({name})"
    if len(threads) > THREADS_MAX:
        yield f"and {len(threads) - THREADS_MAX} more"


def _wait_channel(place: str) -> str:
    text = _read(f"{place}/wchan").strip()
    return text if text not in ("", "0") else "-"


def _read(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(64 * 1024) or b"").decode("utf-8", "replace")
    except OSError:  # gone, or not for us to see
        return ""
