"""Reads files for who asks, in threads that nobody else waits for: a disk that hangs costs answers alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio.lowlevel

from supervisor.threads import Threads

LIMIT_S = 10.0
AT_MOST = 16  # threads, those included that were given up and have not come back: then nobody needs another one

Arguments = TypeVarTuple("Arguments")
Found = TypeVar("Found")

_readers: anyio.lowlevel.RunVar[Threads] = anyio.lowlevel.RunVar("threads that read for who asks")


async def in_thread(work: Callable[[*Arguments], Found], *arguments: *Arguments, limit_s: float = LIMIT_S) -> Found:
    """What the work answers. TimeoutError (an OSError) when the disk does not, within `limit_s`.

    Given up, by then or because who asked has left, it may go on for as long as the disk takes; nobody looks at it.
    """
    readers = _readers.get(None)
    if readers is None:
        _readers.set(readers := Threads("the disk", AT_MOST))
    return await readers.run(work, *arguments, limit_s=limit_s)


async def piece(work: Callable[[*Arguments], Found], *arguments: *Arguments) -> Found:
    """A piece of an answer that has begun: it comes when the disk has it, or who asked leaves."""
    return await in_thread(work, *arguments, limit_s=math.inf)
