"""Turns the growth of one attempt's log file into events of its server."""

from __future__ import annotations

import math
import os
import stat
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing

import anyio
import anyio.lowlevel
import msgspec

from supervisor.config import mask_text
from supervisor.core.log.live import LiveReader
from supervisor.core.log.repeats import Repeats
from supervisor.edge.tail import SLICE_BYTES, Watcher, follow
from supervisor.events import AnyEvent, LineMatched, LogGrew, LogUnreadable
from supervisor.profile import Profile
from supervisor.shell import clock

Post = Callable[[AnyEvent], Awaitable[None]]

_GREW_EVERY_S = 1.0
_PAUSE_S = 1.0  # at least
DRAIN_LIMIT_S = 5.0


class LogFeed:
    """Reads one attempt's log from `offset` on. `run` until cancelled, then `drain` for the last words."""

    def __init__(
        self,
        path: str,
        attempt: int,
        profile: Profile,
        post: Post,
        offset: int = 0,
        drain_limit_s: float = DRAIN_LIMIT_S,
    ) -> None:
        self.path = path
        self.offset = offset
        self.attempt = attempt
        self._post = post
        self._drain_limit_s = drain_limit_s
        self._reader = LiveReader(profile, attempt, offset)
        self._repeats = Repeats(profile)
        self._steps: Iterator[list[LineMatched]] = iter(())  # what is still to be read of the present chunk …
        self._untold: deque[LineMatched] = deque()  # … and to be posted; a cancelled task leaves it to `drain`
        self._file: tuple[int, int] | None = None  # device and inode, once something was read
        self._read_at = 0.0
        self._bytes = 0
        self._lines = 0
        self._grew_at = 0.0
        self._told_bytes = 0
        self._scope = anyio.CancelScope()
        self._pause_scope = anyio.CancelScope()
        self._news = anyio.Event()
        self._idle = anyio.Event()
        self._idle.set()

    async def run(self, watch: Watcher) -> None:
        """Follow the file. An unreadable log makes us blind, which is said and is no failure of the server."""
        self._idle = anyio.Event()
        try:
            with self._scope:
                async with aclosing(follow(self.path, self.offset, watch)) as chunks:
                    async for chunk in chunks:
                        self._file = self._file or _identity(self.path)
                        if chunk.truncated:
                            self._reader.restart(chunk.offset)
                        await self._take(chunk.data, chunk.offset + len(chunk.data), caught_up=chunk.caught_up)
        except OSError as problem:
            await self._post(LogUnreadable(self.attempt, f"cannot read {self.path}: {problem.strerror}"))
        finally:
            self._idle.set()

    async def pauses(self) -> None:
        """Tell an open traceback when nothing more comes: the engine may hang right after its last words."""
        with self._pause_scope:
            while True:
                await self._news.wait()  # as long as the log is silent, which costs nothing
                self._news = anyio.Event()
                # All feeds wake up at whole seconds, and for what came shortly after one another once.
                await anyio.sleep(max(0.0, math.ceil(self._read_at + _PAUSE_S) - clock.monotonic()))
                if not self._news.is_set():
                    await self._finish()
                    await self._tell_last_growth()

    async def _finish(self) -> None:
        told = self._repeats.told(self._reader.finish(), clock.monotonic())
        for event in (*told, *self._repeats.rest()):
            await self._post(masked(event))

    async def drain(self) -> None:
        """Read to the present end of the file: nobody writes it any more. Bounded in time."""
        self._scope.cancel()
        self._pause_scope.cancel()
        await self._idle.wait()  # bounded: the task only has to leave its own scope
        with anyio.move_on_after(self._drain_limit_s, shield=True):
            await self._tell()
            await self._rest()
            await self._tell_last_growth()
        await self._finish()

    async def _rest(self) -> None:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return  # gone already, and LogUnreadable has been said where it mattered
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or self._file not in (None, (found.st_dev, found.st_ino)):
                return  # something else has the name now: its words are not the log's
            while data := os.pread(descriptor, SLICE_BYTES, self.offset):
                await self._take(data, self.offset + len(data), caught_up=len(data) < SLICE_BYTES)
                await anyio.lowlevel.checkpoint()
        finally:
            os.close(descriptor)

    async def _take(self, data: bytes, end: int, *, caught_up: bool) -> None:
        self.offset = end
        self._read_at = clock.monotonic()
        self._news.set()
        self._bytes += len(data)
        lines = self._reader.lines
        self._steps = self._reader.feed(data, caught_up=caught_up)
        await self._tell()
        self._lines += self._reader.lines - lines
        if (now := clock.monotonic()) - self._grew_at >= _GREW_EVERY_S:
            await self._tell_growth(now)

    async def _tell_last_growth(self) -> None:
        if self._bytes != self._told_bytes:
            await self._tell_growth(clock.monotonic())

    async def _tell_growth(self, now: float) -> None:
        self._grew_at, self._told_bytes = now, self._bytes
        await self._post(LogGrew(self.attempt, self._bytes, self._lines))

    async def _tell(self) -> None:
        """Post what the present chunk says, breathing between two steps: hostile text makes each take milliseconds."""
        while True:
            while self._untold:
                await self._post(self._untold[0])
                self._untold.popleft()
            step = next(self._steps, None)
            if step is None:
                return
            self._untold.extend(map(masked, self._repeats.told(step, clock.monotonic())))
            await anyio.lowlevel.checkpoint()


def masked(event: LineMatched) -> LineMatched:
    """The event without secrets: what it says is kept in the journal and shown to every reader, also on TCP."""
    text = mask_text(event.text)
    fields = {name: mask_text(value) for name, value in event.fields.items()}
    if text == event.text and fields == event.fields:
        return event
    return msgspec.structs.replace(event, text=text, fields=fields)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
