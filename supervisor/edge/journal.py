"""Keeps every event and action in a SQLite file, written by one thread, without ever holding up the loop.

`append` puts a row into a bounded queue and returns. What the queue or the disk has no room for is counted in `lost`
and a row of kind "lost" says so as soon as writing works again. A corrupt file is moved aside and a new one begun; an
unwritable one is tried again; meanwhile the newest rows are served from memory.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread
import msgspec

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entry (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    server TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    mono REAL NOT NULL,
    wall REAL NOT NULL,
    payload BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS entry_server ON entry (server, id);
CREATE INDEX IF NOT EXISTS entry_wall ON entry (wall);
"""


class Entry(msgspec.Struct, frozen=True):
    """One row. `id` grows by every row and is never used twice; 0 = not numbered yet."""

    kind: str
    server: str
    attempt: int
    mono: float
    wall: float
    payload: bytes
    id: int = 0


class Retention(msgspec.Struct, frozen=True):
    """What is kept: rows younger than `age_s`, and of these the newest that fit into `size_bytes` of file."""

    size_bytes: int = 256 * 1024 * 1024
    age_s: float = 30 * 86400.0


class JournalState(msgspec.Struct, frozen=True):
    """How the journal is doing: `problem` is "" while rows reach the disk."""

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
    ) -> None:
        self._store = _Store(path, retention)
        self._queue: queue.Queue[Entry | None] = queue.Queue(queue_rows)
        self._recent: deque[Entry] = deque(maxlen=memory_rows)
        self._retry_s = retry_s
        self._batch_s = batch_s
        self._lock = threading.Lock()  # guards the three below, which loop and thread both touch
        self._written = 0
        self._lost = 0
        self._unreported = 0
        self._problem = ""
        self._closing = threading.Event()
        self._settled = threading.Condition()
        self._done = 0
        self._taken = 0
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, limit_s: float = 5.0) -> None:
        """Write what is queued and end the thread; what is not on disk after `limit_s` is given up."""
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(limit_s)

    def append(self, kind: str, server: str, attempt: int, mono: float, wall: float, payload: bytes) -> bool:
        """Queue a row. False: the queue is full and the row is lost (and counted). Never blocks."""
        try:
            self._queue.put_nowait(Entry(kind, server, attempt, mono, wall, payload))
        except queue.Full:
            self._lose(1)
            return False
        self._taken += 1
        return True

    def state(self) -> JournalState:
        with self._lock:
            return JournalState(
                self._store.path, self._written, self._lost, self._queue.qsize(), self._problem, self._store.moved_aside
            )

    async def flushed(self, limit_s: float = 5.0) -> bool:
        """Wait until every row appended so far is on disk (or lost). False when `limit_s` is over."""
        return await anyio.to_thread.run_sync(self._wait_settled, self._taken, limit_s, abandon_on_cancel=True)

    def _wait_settled(self, wanted: int, limit_s: float) -> bool:
        with self._settled:
            return self._settled.wait_for(lambda: self._done >= wanted, limit_s)

    async def events(self, since_id: int = 0, server: str = "", limit: int = 1000) -> list[Entry]:
        """Rows with an id above `since_id`, oldest first, of one server or ("") of all; read in a thread."""
        return await anyio.to_thread.run_sync(self._read, since_id, server, limit, abandon_on_cancel=True)

    async def newest(self, server: str = "", limit: int = 100) -> list[Entry]:
        """The last rows, oldest first; for `tail`-like readers, who continue with `events` after the last id."""
        return await anyio.to_thread.run_sync(self._read, None, server, limit, abandon_on_cancel=True)

    def _read(self, since_id: int | None, server: str, limit: int) -> list[Entry]:
        try:
            return self._store.read(since_id, server, limit)
        except (sqlite3.Error, OSError):
            with self._lock:
                rows = [row for row in self._recent if row.id > (since_id or 0) and server in ("", row.server)]
            return rows[:limit] if since_id is not None else rows[-limit:]

    # --- the writer thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not (self._closing.is_set() and self._queue.empty()):
            batch = self._take()
            if batch:
                self._put(batch)
        self._store.close()

    def _take(self) -> list[Entry]:
        """Everything queued within `batch_s` of the first row: one transaction, one sync."""
        first = self._queue.get()
        rows = [] if first is None else [first]
        if not self._closing.wait(self._batch_s if rows else 0):
            pass
        with contextlib.suppress(queue.Empty):
            while len(rows) < 2000:
                if (row := self._queue.get_nowait()) is not None:
                    rows.append(row)
        return rows

    def _put(self, rows: list[Entry]) -> None:
        """Write the batch; try again while the disk refuses. Rows that come meanwhile fill the queue, then get lost."""
        while True:
            try:
                numbered = self._store.write(self._with_report(rows))
            except (sqlite3.Error, OSError) as problem:
                self._refused(rows, problem)
                if self._closing.wait(self._retry_s):
                    return self._give_up(rows)
                continue
            return self._accepted(rows, numbered)

    def _with_report(self, rows: list[Entry]) -> list[Entry]:
        with self._lock:
            lost = self._unreported
        if not lost:
            return rows
        payload = msgspec.json.encode({"lost": lost})
        return [*rows, Entry("lost", "", 0, time.monotonic(), time.time(), payload)]

    def _accepted(self, rows: list[Entry], numbered: list[Entry]) -> None:
        with self._lock:
            self._problem = ""
            self._written += len(rows)
            if len(numbered) > len(rows):
                self._unreported = 0
            self._recent.extend(numbered)
        self._settle(len(rows))

    def _refused(self, rows: list[Entry], problem: Exception) -> None:
        with self._lock:
            self._problem = (
                f"cannot write {self._store.path}: {problem}; {len(rows)} rows wait, next try in {self._retry_s:g} s"
            )

    def _give_up(self, rows: list[Entry]) -> None:
        self._lose(len(rows))
        self._settle(len(rows))

    def _lose(self, count: int) -> None:
        with self._lock:
            self._lost += count
            self._unreported += count

    def _settle(self, count: int) -> None:
        with self._settled:
            self._done += count
            self._settled.notify_all()


class _Store:
    """The SQLite file. `write` is called by the writer thread alone, `read` by any."""

    def __init__(self, path: str, retention: Retention) -> None:
        self.path = path
        self.moved_aside = ""
        self._retention = retention
        self._writer: sqlite3.Connection | None = None
        self._writes = 0

    def write(self, rows: list[Entry]) -> list[Entry]:
        """One transaction; returns the rows with their ids. Any error leaves nothing half-written."""
        try:
            connection = self._open()
            numbered = []
            with connection:
                for row in rows:
                    values = (row.kind, row.server, row.attempt, row.mono, row.wall, row.payload)
                    cursor = connection.execute(
                        "INSERT INTO entry (kind, server, attempt, mono, wall, payload) VALUES (?, ?, ?, ?, ?, ?)",
                        values,
                    )
                    numbered.append(msgspec.structs.replace(row, id=cursor.lastrowid or 0))
                if self._writes % 100 == 0:
                    self._trim(connection)
            self._writes += 1
        except sqlite3.Error as problem:
            self.close()
            if _is_corrupt(problem):
                self._move_aside()
            raise
        return numbered

    def _open(self) -> sqlite3.Connection:
        if self._writer is None:
            connection = sqlite3.connect(self.path, timeout=5.0)
            try:
                _prepare(connection)
            except sqlite3.Error:
                connection.close()
                raise
            self._writer = connection
        return self._writer

    def _trim(self, connection: sqlite3.Connection) -> None:
        """Old rows first, then a tenth of the rest while the file is too large; freed pages are used again."""
        connection.execute("DELETE FROM entry WHERE wall < ?", (time.time() - self._retention.age_s,))
        page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        free = connection.execute("PRAGMA freelist_count").fetchone()[0]
        if (pages - free) * page_bytes > self._retention.size_bytes:
            low, high = connection.execute("SELECT COALESCE(MIN(id), 0), COALESCE(MAX(id), 0) FROM entry").fetchone()
            connection.execute("DELETE FROM entry WHERE id < ?", (low + max(1, (high - low) // 10),))

    def read(self, since_id: int | None, server: str, limit: int) -> list[Entry]:
        if self._writer is None and not os.path.exists(self.path):
            raise FileNotFoundError(self.path)
        with contextlib.closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=1.0)) as connection:
            order = "ASC" if since_id is not None else "DESC"
            found = connection.execute(
                "SELECT kind, server, attempt, mono, wall, payload, id FROM entry"  # noqa: S608 - two constant words
                f" WHERE id > ? AND (? = '' OR server = ?) ORDER BY id {order} LIMIT ?",
                (since_id or 0, server, server, limit),
            ).fetchall()
        rows = [Entry(*row) for row in found]
        return rows if since_id is not None else rows[::-1]

    def _move_aside(self) -> None:
        """Keep the corrupt file for a human, under a name that says what it is."""
        aside = f"{self.path}.corrupt-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        for ending in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.path + ending, aside + ending)
        self.moved_aside = aside

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(sqlite3.Error):
                self._writer.close()
            self._writer = None


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last rows, never the file
    connection.execute("PRAGMA journal_size_limit = 16777216")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise sqlite3.NotSupportedError(f"its schema version {version} is newer than {SCHEMA_VERSION}, which we know")
    connection.executescript(_SCHEMA)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _is_corrupt(problem: sqlite3.Error) -> bool:
    code = problem.sqlite_errorcode if hasattr(problem, "sqlite_errorcode") else None
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
