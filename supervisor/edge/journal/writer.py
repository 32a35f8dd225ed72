"""Keeps every event and action in a SQLite file, written by one thread, without ever holding up the loop.

`append` numbers a row, queues it and returns. What the bounded queue has no room for is counted in `lost`, and a row of
kind "lost" says so as soon as writing works again. A corrupt file is moved aside and a new one begun; one that cannot
be written is tried again and again. Readers see the newest rows from memory, whether they are on disk yet or not.
"""

from __future__ import annotations

import contextlib
import math
import queue
import sqlite3
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

import msgspec

from supervisor.edge.journal.store import Entry, Retention, Store, is_corrupt
from supervisor.threads import Threads

BATCH_ROWS = 2000


class JournalState(msgspec.Struct, frozen=True):
    """How the journal is doing: `problem` is "" while rows reach the disk, or may in a moment."""

    path: str
    written: int
    lost: int
    waiting: int
    problem: str
    moved_aside: str = ""


class Journal:
    """Use as a context manager; leaving it writes what is queued, for a bounded time."""

    def __init__(
        self,
        path: str,
        *,
        retention: Retention = Retention(),  # noqa: B008 - frozen
        queue_rows: int = 20_000,
        memory_rows: int = 5_000,
        retry_s: float = 5.0,
        batch_s: float = 0.05,
        hangs_s: float = 5.0,
    ) -> None:
        self._store = Store(path, retention)
        self._queue: queue.Queue[Entry | None] = queue.Queue(queue_rows)
        self._retry_s = retry_s
        self._batch_s = batch_s
        self._hangs_s = hangs_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._readers = Threads("the disk of the journal", 8)
        self._taken = 0  # rows that went into the queue: the loop's alone
        # What loop and writer share, and the lock around all of it.
        self._lock = threading.Condition()
        self._recent: deque[Entry] = deque(maxlen=memory_rows)
        self._last_id = 0
        self._settled = 0  # rows that left the queue for the disk, or for nowhere
        self._written = 0
        self._lost = 0
        self._unreported = 0
        self._problem = ""
        self._writing_since = math.inf  # a batch is on its way to the disk

    def __enter__(self) -> Self:
        self._last_id = self._store.last_id()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, limit_s: float = 5.0) -> None:
        """Write what is queued and end the thread; what is not on disk after `limit_s` is given up."""
        self._closing.set()
        with contextlib.suppress(queue.Full):  # then the writer is awake
            self._queue.put_nowait(None)
        self._thread.join(limit_s)

    def append(self, kind: str, server: str, attempt: int, mono: float, wall: float, payload: bytes) -> int:
        """Number the row and queue it for the disk; never blocks. Answers its id, also when the queue was full."""
        with self._lock:
            row = self._number(Entry(kind, server, attempt, mono, wall, payload))
        try:
            self._queue.put_nowait(row)
        except queue.Full:
            self._lose(1)
        else:
            self._taken += 1
        return row.id

    def _number(self, row: Entry) -> Entry:
        self._last_id += 1
        numbered = msgspec.structs.replace(row, id=self._last_id)
        self._recent.append(numbered)
        return numbered

    def state(self) -> JournalState:
        with self._lock:
            return JournalState(
                path=self._store.path,
                written=self._written,
                lost=self._lost,
                waiting=self._taken - self._settled,
                problem=self._problem or self._hangs(),
                moved_aside=self._store.moved_aside,
            )

    def _hangs(self) -> str:
        hung_s = time.monotonic() - self._writing_since
        if hung_s < self._hangs_s:
            return ""
        return f"cannot write {self._store.path}: the disk has not answered for {hung_s:.0f} s"

    async def flushed(self, limit_s: float = 5.0) -> bool:
        """Wait until every row appended so far is on disk (or lost). False when `limit_s` is over."""
        return await self._readers.run(self._wait_settled, self._taken, limit_s)

    def _wait_settled(self, wanted: int, limit_s: float) -> bool:
        with self._lock:
            return self._lock.wait_for(lambda: self._settled >= wanted, limit_s)

    async def events(self, since_id: int = 0, server: str = "", limit: int = 1000) -> list[Entry]:
        """Rows with an id above `since_id`, oldest first, of one server or ("") of all; read in a thread.

        TimeoutError while as many readers as there may be hang.
        """
        return await self._readers.run(self._after, since_id, server, limit)

    async def newest(self, server: str = "", limit: int = 100) -> list[Entry]:
        """The last rows, oldest first; for `tail`-like readers, who continue with `events` after the last id."""
        return await self._readers.run(self._newest, server, limit)

    def _after(self, since_id: int, server: str, limit: int) -> list[Entry]:
        rows = self._stored(since_id, server, limit)
        return (rows + self._remembered(rows[-1].id if rows else since_id, server))[:limit]

    def _newest(self, server: str, limit: int) -> list[Entry]:
        rows = self._stored(None, server, limit)
        return (rows + self._remembered(rows[-1].id if rows else 0, server))[-limit:]

    def _stored(self, since_id: int | None, server: str, limit: int) -> list[Entry]:
        try:
            return self._store.read(since_id, server, limit)
        except (sqlite3.Error, OSError):  # said in `state` by the writer, who meets the same
            return []

    def _remembered(self, since_id: int, server: str) -> list[Entry]:
        with self._lock:
            return [row for row in self._recent if row.id > since_id and server in ("", row.server)]

    # --- the writer thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not (self._closing.is_set() and self._queue.empty()):
            if rows := self._take():
                self._put(rows)
        self._store.close()

    def _take(self) -> list[Entry]:
        """Everything queued within `batch_s` of the first row: one transaction, one sync."""
        first = self._queue.get()  # without limit: `close` puts a None
        rows = [] if first is None else [first]
        self._closing.wait(self._batch_s if rows else 0)
        with contextlib.suppress(queue.Empty):
            while len(rows) < BATCH_ROWS:
                if (row := self._queue.get_nowait()) is not None:
                    rows.append(row)
        return rows

    def _put(self, rows: list[Entry]) -> None:
        """Write the batch; try again while the disk refuses. Rows that come meanwhile fill the queue, then get lost."""
        while True:
            self._writing_since = time.monotonic()
            try:
                self._store.write(rows)
            except sqlite3.Error as problem:
                self._writing_since = math.inf
                if self._refused(rows, problem):
                    return
            else:
                self._accepted(rows)
                self._report_loss()
                return

    def _report_loss(self) -> None:
        with self._lock:
            count, self._unreported = self._unreported, 0
            if not count:
                return
            payload = msgspec.json.encode({"lost": count})
            row = self._number(Entry("lost", "", 0, time.monotonic(), time.time(), payload))
        try:
            self._store.write([row])
        except sqlite3.Error:  # said again with the next batch that can be written
            with self._lock, contextlib.suppress(ValueError):
                self._unreported += count
                self._recent.remove(row)

    def _accepted(self, rows: list[Entry]) -> None:
        with self._lock:
            self._problem, self._writing_since = "", math.inf
            self._written += len(rows)
            self._settled += len(rows)
            self._lock.notify_all()

    def _refused(self, rows: list[Entry], problem: sqlite3.Error) -> bool:
        """Say so and wait for the next try; True when it is time to leave, with the rows lost."""
        with self._lock:
            self._problem = f"cannot write {self._store.path}: {problem}; tried again every {self._retry_s:g} s"
        moved = is_corrupt(problem) and self._store.move_aside()
        if moved or not self._closing.wait(self._retry_s):
            return False
        self._lose(len(rows))
        with self._lock:
            self._settled += len(rows)
            self._lock.notify_all()
        return True

    def _lose(self, count: int) -> None:
        with self._lock:
            self._lost += count
            self._unreported += count
