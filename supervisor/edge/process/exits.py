"""Learns of a process's end, and its status, through a pidfd: no threads, no SIGCHLD, no reuse of pids.

The status of a child comes from waitid. That of somebody else's child (a server adopted from an earlier daemon) comes
from the ioctl PIDFD_GET_INFO with PIDFD_INFO_EXIT, which Linux has from 6.15 on, and only once its real parent has
reaped it; on older kernels only what a recorder has written tells (`record.py`).
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import select
import signal
import struct
import time

import anyio
import msgspec

# include/uapi/linux/pidfd.h: struct pidfd_info, 64 bytes in its first version; _IOWR(0xFF, 11, struct pidfd_info).
_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_INFO_EXIT = 1 << 3
_EXIT_CODE_OFFSET = 60
REAP_LIMIT_S = 2.0  # init reaps at once; a parent that never does costs us the status, not more


class Status(msgspec.Struct, frozen=True):
    """How a process ended: `code` >= 0 its status, < 0 the negated signal, None when nobody could tell."""

    code: int | None


async def status(pidfd: int) -> Status:
    """How the process of a readable pidfd ended; reaps our own child, waits shortly for a stranger's parent to."""
    if (told := reap(pidfd)) is not None:
        return told
    return await _status_of_stranger(pidfd)


def reap(pidfd: int) -> Status | None:
    """Take the status of an ended child. None: it runs, or is no child of ours, or was reaped before."""
    try:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None
    if result is None:
        return None
    return Status(result.si_status if result.si_code == os.CLD_EXITED else -result.si_status)


async def _status_of_stranger(pidfd: int) -> Status:
    until = time.monotonic() + REAP_LIMIT_S
    poller = select.epoll()
    try:
        poller.register(pidfd, select.EPOLLHUP)  # comes when the parent has reaped it; POLLIN came when it ended
        while True:
            told = told_by_kernel(pidfd)
            if told.code is not None or time.monotonic() > until or not _supported(pidfd):
                return told
            with anyio.move_on_after(0.05):
                await anyio.wait_readable(poller.fileno())
    finally:
        poller.close()


def told_by_kernel(pidfd: int) -> Status:
    """What the kernel says of a process that somebody has reaped; None for the code when it says nothing."""
    answer = _get_info(pidfd)
    if answer is None or not struct.unpack_from("Q", answer)[0] & _INFO_EXIT:
        return Status(None)
    return Status(os.waitstatus_to_exitcode(struct.unpack_from("i", answer, _EXIT_CODE_OFFSET)[0]))


def _supported(pidfd: int) -> bool:
    return _get_info(pidfd) is not None


def _get_info(pidfd: int) -> bytes | None:
    """The kernel's struct pidfd_info; None when the kernel knows no such ioctl. All zero: it has nothing to say yet."""
    info = array.array("B", struct.pack("Q", _INFO_EXIT) + bytes(56))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError as problem:
        return bytes(64) if problem.errno == errno.ESRCH else None
    return info.tobytes()


def send_signal(pidfd: int, number: int) -> bool:
    """Signal the very process of the pidfd. False when it has ended."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True
