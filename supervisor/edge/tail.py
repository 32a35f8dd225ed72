"""Follows log files as they grow: bytes with their offsets, woken by inotify, in slices that keep the loop free.

The child writes the file itself, so what happens to it happens without us: it may not exist yet, grow by 50 MB/s, be
truncated (`copytruncate`), be renamed, or vanish. The child has it open as its stdout and never opens it by name again,
so neither do we: another file under the name, however full, is not the log.

An idle file costs nothing; its first byte wakes us at once. A busy one is read every 50 ms instead of at every write:
a watch is one-shot and only armed again when a pause brought nothing, which is ten times cheaper.

The log directory has to be local. Reads move to a thread after the first slow one, but names are looked up on the loop.
A file that is truncated and has grown beyond our place before we look again cannot be told from one that has grown.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import msgspec

from supervisor.threads import Threads

SLICE_BYTES = 256 * 1024  # so that no reader is at it for long: `make bench BENCH_ARGS=ingestion`
BATCH_S = 0.05
IDLE_LOOK_S = 30.0  # for a change that inotify does not tell: a network file system, written elsewhere
UNWATCHED_LOOK_S = 0.25  # the user's inotify watches are used up, or the directory is not there yet
SLOW_READ_S = 0.02
_slow = Threads("the disk of a log", 64)

_IN_MODIFY, _IN_ATTRIB, _IN_MOVED_TO, _IN_CREATE = 0x2, 0x4, 0x80, 0x100
_IN_MOVE_SELF, _IN_ONESHOT, _IN_Q_OVERFLOW, _IN_IGNORED = 0x800, 0x80000000, 0x4000, 0x8000
# Deleting a file that is held open shows as IN_ATTRIB (its link count), never as IN_DELETE_SELF.
_FILE_MASK = _IN_MODIFY | _IN_ATTRIB | _IN_MOVE_SELF | _IN_ONESHOT
_DIRECTORY_MASK = _IN_CREATE | _IN_MOVED_TO
_HEADER = struct.Struct("iIII")


class Chunk(msgspec.Struct, frozen=True):
    """Bytes of the log at `offset`. `truncated`: the file became shorter, and is read again from its beginning.

    `caught_up`: the file had no more at that moment.
    """

    offset: int
    data: bytes
    truncated: bool = False
    caught_up: bool = False


class Watcher:
    """One inotify descriptor for all files of the daemon. Made by `watcher()`.

    `problem`: why nothing can be watched; then `arm` refuses, and files are looked at again and again.
    """

    def __init__(self, descriptor: int, library: ctypes.CDLL, problem: str = "") -> None:
        self._descriptor = descriptor
        self._library = library
        self.problem = problem
        self._waiting: dict[int, set[anyio.Event]] = {}

    def arm(self, path: str, mask: int, event: anyio.Event) -> int | None:
        """Have the event set at the next change of the path. None when it cannot be watched (gone, or limits)."""
        if self.problem:
            return None
        number = self._library.inotify_add_watch(self._descriptor, os.fsencode(path), ctypes.c_uint32(mask))
        if number < 0:
            return None
        self._waiting.setdefault(number, set()).add(event)
        return int(number)

    def forget(self, number: int | None, event: anyio.Event) -> None:
        """Undo `arm` for this event; the last one to go takes the watch with it."""
        waiting = self._waiting.get(number, set()) if number is not None else set()
        waiting.discard(event)
        if number is not None and not waiting and self._waiting.pop(number, None) is not None:
            self._library.inotify_rm_watch(self._descriptor, number)

    async def run(self) -> None:
        """Hand out events until cancelled. Waits without limit: silence is what most logs do."""
        while True:
            await anyio.wait_readable(self._descriptor)
            self._dispatch(os.read(self._descriptor, 64 * 1024))

    def _dispatch(self, data: bytes) -> None:
        position = 0
        while position < len(data):
            number, mask, _, length = _HEADER.unpack_from(data, position)
            position += _HEADER.size + length
            if mask & _IN_Q_OVERFLOW:
                for waiting in self._waiting.values():
                    _set_all(waiting)
            # IN_IGNORED ends a watch: the number is dead, and a later watch gets another one.
            waiting = self._waiting.pop(number, set()) if mask & _IN_IGNORED else self._waiting.get(number, set())
            _set_all(waiting)


def _set_all(waiting: set[anyio.Event]) -> None:
    for event in waiting:
        event.set()


@asynccontextmanager
async def watcher() -> AsyncIterator[Watcher]:
    """A running Watcher; one that watches nothing when the user's inotify instances are used up."""
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        why = os.strerror(ctypes.get_errno())
        yield Watcher(descriptor, library, f"cannot make an inotify descriptor: {why}; logs are looked at instead")
        return
    try:
        async with anyio.create_task_group() as tasks:
            made = Watcher(descriptor, library)
            tasks.start_soon(made.run, name="inotify")
            yield made
            tasks.cancel_scope.cancel()
    finally:
        os.close(descriptor)


async def follow(path: str, offset: int, watch: Watcher, *, batch_s: float = BATCH_S) -> AsyncGenerator[Chunk, None]:
    """Yield the file's bytes from `offset` on, for ever. OSError other than "no such file" ends it: we are blind then.

    An offset beyond the end counts as a truncation. Close it (`aclosing`) when you stop early.
    """
    reader = _Reader(path, offset)
    pause = _Pause(path, watch, batch_s)
    try:
        while True:
            chunk = await reader.read()
            if chunk is not None:
                pause.busy()
                yield chunk
                await anyio.lowlevel.checkpoint()  # a flood must not keep the other servers from the loop
            elif not reader.advance():
                await pause.until_changed(reader)
    finally:
        pause.close()
        reader.close()


class _Reader:
    """The open file and our place in it."""

    def __init__(self, path: str, offset: int) -> None:
        self.path = path
        self.offset = offset
        self.file: int | None = None
        self._truncated = False
        self._threaded = False

    async def read(self) -> Chunk | None:
        """The next slice; None at the end of the file, or when there is none."""
        if self.file is None and not self._open():
            return None
        assert self.file is not None  # noqa: S101 - opened above
        data = await self._slice(self.file)
        if not data:
            return None
        chunk = Chunk(self.offset, data, self._truncated, caught_up=len(data) < SLICE_BYTES)
        self.offset += len(data)
        self._truncated = False
        return chunk

    async def _slice(self, file: int) -> bytes:
        """On the loop as long as it is quick, which what was just written always is: it is in the page cache.

        A file system that was slow once (a sick disk, NFS) is read in a thread from then on.
        """
        if self._threaded:
            # Abandoned, it may read what has this descriptor by then; nobody looks at the result.
            return await _slow.run(os.pread, file, SLICE_BYTES, self.offset)
        began = time.perf_counter()
        data = os.pread(file, SLICE_BYTES, self.offset)
        self._threaded = time.perf_counter() - began > SLOW_READ_S
        return data

    def _open(self) -> bool:
        try:
            self.file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        return True

    def advance(self) -> bool:
        """At the end of the open file: did its size change so that there is something to read?"""
        if self.file is None:
            return False
        size = os.fstat(self.file).st_size
        if size < self.offset:
            self.offset, self._truncated = 0, True
        return size > self.offset

    def grown(self) -> bool:
        """Whether there is something to read, asked again after the watch was armed."""
        return os.path.exists(self.path) if self.file is None else self.advance()

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None


class _Pause:
    """Waits between two readings: shortly while the file is busy, on inotify once it is quiet."""

    def __init__(self, path: str, watch: Watcher, batch_s: float) -> None:
        self._path = path
        self._watch = watch
        self._batch_s = batch_s
        self._busy = False
        self._event = anyio.Event()
        self._armed: int | None = None

    def busy(self) -> None:
        self._busy = True

    async def until_changed(self, reader: _Reader) -> None:
        if self._busy:
            self._busy = False
            await anyio.sleep(self._batch_s)
            return
        look_s = IDLE_LOOK_S if self._arm(reader.file) else UNWATCHED_LOOK_S
        try:
            # `grown` first: what came between the last reading and the arming raises no event.
            while not reader.grown() and not self._event.is_set():
                with anyio.move_on_after(look_s):
                    await self._event.wait()
        finally:
            self.close()

    def _arm(self, file: int | None) -> bool:
        """False when nothing will tell of the file's next byte."""
        self._event = anyio.Event()
        if file is None:
            self._armed = self._watch.arm(os.path.dirname(self._path) or ".", _DIRECTORY_MASK, self._event)
        else:  # by descriptor: the name may be gone, or another file's, while the child still writes to the one we hold
            self._armed = self._watch.arm(f"/proc/self/fd/{file}", _FILE_MASK, self._event)
        return self._armed is not None

    def close(self) -> None:
        self._watch.forget(self._armed, self._event)
        self._armed = None
