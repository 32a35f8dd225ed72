"""Watches what the host does to servers: kernel OOM kills, GPU errors in the kernel's log, space running out."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TypeAlias

import anyio
import anyio.to_thread
import msgspec

KERNEL_LOG = "/dev/kmsg"
_RECORD_BYTES = 8192  # the kernel's own limit; a shorter buffer makes read fail with EINVAL
SPACE_LIMIT_S = 3.0
_looks = anyio.CapacityLimiter(2)  # those that hang must not use up the threads that others wait for

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


class Space(msgspec.Struct, frozen=True):
    """The file system that holds `path`, as an unprivileged writer sees it."""

    path: str
    free_bytes: int
    total_bytes: int
    free_files: int
    kind: str = ""  # as the kernel names it: ext4, overlay, nfs4, fuse.sshfs

    @property
    def free_ratio(self) -> float:
        """Between 0 and 1; 1 where the file system does not say how large it is."""
        return self.free_bytes / self.total_bytes if self.total_bytes else 1.0


async def space(path: str) -> Space | None:
    """What is free there; None when it does not exist or does not answer (a dead network file system)."""
    with anyio.move_on_after(SPACE_LIMIT_S):
        return await anyio.to_thread.run_sync(_space, path, abandon_on_cancel=True, limiter=_looks)
    return None


def _space(path: str) -> Space | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return Space(
        path,
        found.f_bavail * found.f_frsize,
        found.f_blocks * found.f_frsize,
        found.f_favail,
        _kind(os.stat(path).st_dev),
    )


def _kind(device: int) -> str:
    """By device number; "" for what has none of its own in the table (a subvolume of btrfs)."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if line.split()[2] == wanted:
            return line.partition(" - ")[2].split()[0]
    return ""
