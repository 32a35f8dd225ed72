"""Reads files for who asks, in threads that nobody else waits for: a disk that hangs costs answers alone."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.lowlevel
import anyio.to_thread

LIMIT_S = 10.0
THREADS = 8

_threads: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("threads that read for who asks")

Arguments = TypeVarTuple("Arguments")
Found = TypeVar("Found")


async def in_thread(work: Callable[[*Arguments], Found], *arguments: *Arguments, limit_s: float = LIMIT_S) -> Found:
    """What the work answers. TimeoutError (an OSError) when the disk does not, within `limit_s`.

    Given up, by then or because who asked has left, it may go on for as long as the disk takes; nobody looks at it.
    """
    limiter = _threads.get(None)
    if limiter is None:
        _threads.set(limiter := anyio.CapacityLimiter(THREADS))
    with anyio.move_on_after(limit_s):
        return await anyio.to_thread.run_sync(work, *arguments, abandon_on_cancel=True, limiter=limiter)
    raise TimeoutError(errno.ETIMEDOUT, f"the disk has not answered within {limit_s:g} s")


async def piece(work: Callable[[*Arguments], Found], *arguments: *Arguments) -> Found:
    """A piece of an answer that has begun: it comes when the disk has it, or who asked leaves."""
    return await in_thread(work, *arguments, limit_s=math.inf)
