"""Reads files for who asks, in threads that nobody else waits for: a disk that hangs costs answers alone."""

from __future__ import annotations

import errno
import math
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.lowlevel
import anyio.to_thread

LIMIT_S = 10.0
THREADS = 8  # at once
HANGING = 16  # threads that were given up and have not come back: with so many nobody needs another one to find out

Arguments = TypeVarTuple("Arguments")
Found = TypeVar("Found")


class Readers:
    """The threads, and how many of them are in a call."""

    def __init__(self) -> None:
        self.limiter = anyio.CapacityLimiter(THREADS)
        self.busy = 0
        self._lock = threading.Lock()

    def read(self, work: Callable[[], Found]) -> Found:
        """In a thread."""
        with self._lock:
            self.busy += 1
        try:
            return work()
        finally:
            with self._lock:
                self.busy -= 1


_readers: anyio.lowlevel.RunVar[Readers] = anyio.lowlevel.RunVar("threads that read for who asks")


async def in_thread(work: Callable[[*Arguments], Found], *arguments: *Arguments, limit_s: float = LIMIT_S) -> Found:
    """What the work answers. TimeoutError (an OSError) when the disk does not, within `limit_s`.

    Given up, by then or because who asked has left, it may go on for as long as the disk takes; nobody looks at it.
    """
    readers = _readers.get(None)
    if readers is None:
        _readers.set(readers := Readers())
    with anyio.move_on_after(limit_s if readers.busy < HANGING else 0):
        read, limiter = partial(readers.read, partial(work, *arguments)), readers.limiter
        return await anyio.to_thread.run_sync(read, abandon_on_cancel=True, limiter=limiter)
    raise TimeoutError(errno.ETIMEDOUT, f"the disk has not answered within {min(limit_s, LIMIT_S):g} s")


async def piece(work: Callable[[*Arguments], Found], *arguments: *Arguments) -> Found:
    """A piece of an answer that has begun: it comes when the disk has it, or who asked leaves."""
    return await in_thread(work, *arguments, limit_s=math.inf)
