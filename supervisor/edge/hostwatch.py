"""Watches what the host does to servers: kernel OOM kills, GPU errors in the kernel's log, space running out."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import AsyncGenerator
from typing import TypeAlias

import anyio
import msgspec

from supervisor.threads import Threads

KERNEL_LOG = "/dev/kmsg"
_RECORD_BYTES = 8192  # the kernel's own limit; a shorter buffer makes read fail with EINVAL
SPACE_LIMIT_S = 3.0
_looks = Threads("the disk", 4)

# mm/oom_kill.c: dump_oom_summary (Linux 5.0 and later) and __oom_kill_process.
_OOM_SUMMARY = re.compile(
    r"oom-kill:constraint=(?P<constraint>\w+).*?(?:oom_memcg=(?P<limited>[^,]*),)?task_memcg=(?P<cgroup>[^,]*),"
    r"task=(?P<name>.*),pid=(?P<pid>\d+),uid=\d+"
)
_OOM_KILLED = re.compile(r"(?:Memory cgroup out|Out) of memory.*?: Killed process (?P<pid>\d+) \((?P<name>.*?)\)")
_XID = re.compile(r"NVRM: Xid \(PCI:(?P<device>[0-9A-Fa-f:.]+)\): (?P<number>\d+)(?:, (?P<text>.*))?")


class OomKill(msgspec.Struct, frozen=True):
    """The kernel killed a process for memory. `cgroup` is its own, `limited` the one that was full ("" = the host)."""

    pid: int
    name: str
    cgroup: str = ""
    limited: str = ""


class XidReported(msgspec.Struct, frozen=True):
    """The GPU driver reported an error of a device (PCI address). `text` is its explanation, capped."""

    device: str
    number: int
    text: str = ""


class LogLost(msgspec.Struct, frozen=True):
    """The kernel's log went faster than we read: what was overwritten is unknown."""


KernelFact: TypeAlias = OomKill | XidReported | LogLost


def open_kernel_log(path: str = KERNEL_LOG) -> int | None:
    """A descriptor at the log's present end; None where we may not read it (not root, or a container)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    os.lseek(descriptor, 0, os.SEEK_END)
    return descriptor


async def kernel_facts(descriptor: int) -> AsyncGenerator[KernelFact, None]:
    """Yield what concerns us as the kernel logs it, for ever. One OOM kill can come as two facts of the same pid.

    The descriptor stays the caller's to close.
    """
    while True:
        await anyio.wait_readable(descriptor)  # without limit: a healthy kernel says nothing for days
        try:
            record = os.read(descriptor, _RECORD_BYTES)
        except BlockingIOError:
            continue
        except OSError as problem:
            if problem.errno != errno.EPIPE:
                raise
            yield LogLost()
            continue
        if not record:
            return
        if (fact := parse(record)) is not None:
            yield fact


def parse(record: bytes) -> KernelFact | None:
    """One record of /dev/kmsg ("priority,sequence,microseconds,flags;text"). What a user wrote there is no fact."""
    head, _, body = record.partition(b";")
    priority = head.partition(b",")[0]
    if not priority.isdigit() or int(priority) >> 3:  # the facility: 0 is the kernel, 1 a user's program
        return None
    text = body.partition(b"\n")[0].decode("utf-8", "replace")
    if match := _OOM_SUMMARY.search(text):
        return OomKill(int(match["pid"]), match["name"], match["cgroup"], match["limited"] or "")
    if match := _OOM_KILLED.search(text):
        return OomKill(int(match["pid"]), match["name"])
    if match := _XID.search(text):
        return XidReported(match["device"], int(match["number"]), (match["text"] or "")[:200])
    return None


async def free_bytes(path: str) -> int | None:
    """What an unprivileged writer may still write there; None when it does not exist or does not answer in time."""
    try:
        return await _looks.run(_free_bytes, path, limit_s=SPACE_LIMIT_S, thing=path)
    except TimeoutError:  # a dead network file system
        return None


def _free_bytes(path: str) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
