"""Keeps each server's logs within their limits: archives what has been read, removes what is too much."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import anyio
import structlog

from supervisor.config import LogConfig, ServerConfig
from supervisor.edge.archive import (
    Kept,
    LogArchive,
    Removed,
    can_punch,
    finish,
    free_oldest,
    live_attempts,
    newest_attempt,
    prune,
)
from supervisor.shell import clock
from supervisor.threads import Threads
from supervisor.units import format_bytes

PERIOD_S = 5.0
# The newest bytes stay in the live file, for people with `tail` and for a daemon that comes back.
KEPT_LIVE_BYTES = 4 * 2**20
PLAIN_ATTEMPTS = 2  # the present one and the one before it, which somebody may be reading
RESERVE_BYTES = 2**30
RESERVE_PART = 0.02

log = structlog.get_logger()


class Reader(Protocol):
    """How far one attempt's log has been read."""

    attempt: int
    offset: int


class Hands(Protocol):
    """What a server's loop works with; there is a reader while there is a log to be read."""

    @property
    def feed(self) -> Reader | None:
        """Who reads the present attempt's log."""
        ...


class Archivist:
    """One for the daemon. Everything that touches a disk runs in one thread, whose hanging holds up nobody else."""

    def __init__(
        self,
        log_dir: Path,
        servers: Callable[[], Mapping[str, ServerConfig]],
        hands: Callable[[str], Hands | None],
        *,
        kept_live_bytes: int = KEPT_LIVE_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
        reserve_part: float = RESERVE_PART,
    ) -> None:
        self._log_dir = log_dir
        self._servers = servers
        self._hands = hands
        self._kept_live_bytes = kept_live_bytes
        self._reserve_bytes = reserve_bytes
        self._reserve_part = reserve_part
        self._threads = Threads("the disk of the logs")
        self._shelves: dict[str, Shelf] = {}

    def segments(self) -> dict[str, int]:
        """How many pieces of each server's log were archived since the daemon began."""
        return {name: shelf.segments for name, shelf in self._shelves.items()}

    async def run(self, period_s: float = PERIOD_S) -> None:
        """Look after all logs until cancelled."""
        while True:
            await self.look()
            await anyio.sleep(period_s)

    async def look(self) -> None:
        """One look at each server."""
        servers = self._servers()
        self._shelves = {name: shelf for name, shelf in self._shelves.items() if name in servers}
        for name, config in servers.items():
            shelf = self._shelves.setdefault(name, Shelf(name, self._log_dir / name, self._kept_live_bytes))
            hands = self._hands(name)
            reader = hands.feed if hands is not None else None
            if shelf.due(reader, config.log, clock.monotonic()):
                read = reader.offset if reader is not None else None
                await self._threads.run(lambda: shelf.tend(read, config.log, clock.monotonic()))  # noqa: B023 - awaited
        await self._threads.run(self._make_room)

    def _make_room(self) -> None:
        """Before the disk is full: then servers could not write their logs any more."""
        try:
            status = os.statvfs(self._log_dir)
        except OSError:
            return  # the servers' starts meet the same error and say so
        wanted = min(self._reserve_bytes, int(status.f_blocks * status.f_frsize * self._reserve_part))
        free = status.f_bavail * status.f_frsize
        if free >= wanted:
            return
        places = [(shelf.directory, shelf.attempt) for shelf in self._shelves.values() if shelf.attempt]
        _tell("logs removed to make room", free_oldest(places, wanted - free), free=format_bytes(free))


class Shelf:
    """One server's logs. `due` is cheap and asked on the loop; `tend` is for a thread."""

    def __init__(self, server: str, directory: Path, kept_live_bytes: int) -> None:
        self.server = server
        self.directory = directory
        self.attempt = 0
        self.segments = 0
        self._kept_live_bytes = kept_live_bytes
        self._archive: LogArchive | None = None
        self._punches: bool | None = None
        self._archived_at = clock.monotonic()
        self._problem = ""

    def due(self, reader: Reader | None, rules: LogConfig, now: float) -> bool:
        """Whether there is something to do."""
        if reader is None or reader.attempt != self.attempt or self._archive is None:
            return self.attempt == 0 or reader is not None
        return reader.offset < self._archive.archived or self._ready(reader.offset, rules, now)

    def _ready(self, read: int, rules: LogConfig, now: float) -> bool:
        archived = self._archive.archived if self._archive is not None else 0
        ready = read - self._kept_live_bytes - archived
        aged = now - self._archived_at >= rules.rotate_age_s
        return self._punches is not False and (ready >= rules.rotate_size_bytes or (ready > 0 and aged))

    def tend(self, read: int | None, rules: LogConfig, now: float) -> None:
        """Archive what is ready, and hold the limits. A disk that does not take it changes nothing; it is said."""
        try:
            self._turn_to_newest()
            if read is not None and self._archive is not None:
                self._take_in(self._archive, read, rules, now)
            if self.attempt:
                _tell("old logs removed", prune(self.directory, self.attempt, Kept(rules.keep, rules.size_bytes)))
            self._problem = ""
        except OSError as problem:
            self._say_once(f"cannot archive logs in {self.directory}: {problem.strerror}; they stay as they are")

    def _turn_to_newest(self) -> None:
        newest = newest_attempt(self.directory)
        if newest == self.attempt or not newest:
            return
        for attempt in live_attempts(self.directory):
            if attempt <= newest - PLAIN_ATTEMPTS:
                finish(self.directory, attempt)
        self._archive, self.attempt = LogArchive(self.directory, newest), newest

    def _take_in(self, archive: LogArchive, read: int, rules: LogConfig, now: float) -> None:
        if read < archive.archived:
            archive.begin_anew()
        while self._ready(read, rules, now) and self._can_punch():
            until = min(read - self._kept_live_bytes, archive.archived + rules.rotate_size_bytes)
            if archive.archive(until, rules.rotate_size_bytes) is None:
                return
            self.segments += 1
            self._archived_at = now

    def _can_punch(self) -> bool:
        if self._punches is None:
            self._punches = can_punch(self.directory)
            if not self._punches:
                what = "its file system cannot give back the beginning of a file"
                self._say_once(
                    f"cannot archive the live log in {self.directory}: {what}; it grows until the next start"
                )
        return self._punches

    def _say_once(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            log.warning("log archive", server=self.server, problem=problem)


def _tell(event: str, removed: Removed, **facts: str) -> None:
    if removed.files:
        log.info(event, files=removed.files, freed=format_bytes(removed.bytes), **facts)
