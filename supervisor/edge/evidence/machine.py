"""Tells what the machine is up to when an attempt ends: the kernel's last lines, load, memory, pressure."""

from __future__ import annotations

import os
from collections import deque

KERNEL_LOG = "/dev/kmsg"
KERNEL_LINES = 400
_RECORD_BYTES = 8192  # the kernel's own limit; a shorter buffer makes read fail with EINVAL
_RECORDS_MAX = 200_000
_FILES = (
    "/proc/uptime", "/proc/loadavg", "/proc/meminfo", "/proc/pressure/cpu", "/proc/pressure/memory",
    "/proc/pressure/io", "/proc/driver/nvidia/version",
)  # fmt: skip


def kernel_lines(path: str = KERNEL_LOG) -> str:
    """The last lines of the kernel itself, with GPU errors and OOM kills among them. OSError when we may not look."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    lines: deque[str] = deque(maxlen=KERNEL_LINES)
    try:
        for _ in range(_RECORDS_MAX):
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # overwritten while we read: go on with the oldest that is left
            if not record:
                break
            if (line := _line(record)) is not None:
                lines.append(line)
    finally:
        os.close(descriptor)
    return "\n".join(lines) + "\n"


def _line(record: bytes) -> str | None:
    """ "priority,sequence,microseconds,flags;text" as people know it; None for what a program of a user wrote there."""
    head, _, body = record.partition(b";")
    fields = head.split(b",")
    if len(fields) < 3 or not (fields[0].isdigit() and fields[2].isdigit()) or int(fields[0]) >> 3:
        return None
    text = body.partition(b"\n")[0].decode("utf-8", "replace")
    return f"[{int(fields[2]) / 1e6:12.6f}] {text}"


def figures() -> str:
    """Uptime, load, memory, pressure and the driver's version, as far as the kernel has them."""
    parts = []
    for path in _FILES:
        try:
            with open(path, "rb") as file:
                parts.append(f"--- {path}\n{file.read(64 * 1024).decode('utf-8', 'replace').strip()}\n")
        except OSError:  # no driver, or a kernel without pressure figures
            continue
    return "".join(parts)
