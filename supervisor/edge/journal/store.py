"""The SQLite file of the journal: opens, writes in transactions, trims, reads, and moves a corrupt file aside."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from urllib.parse import quote

import msgspec

SCHEMA_VERSION = 1
TRIM_EVERY_WRITES = 100
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entry (
    id INTEGER PRIMARY KEY,
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


class Store:
    """The SQLite file. `write` is called by the writer thread alone, `read` by any."""

    def __init__(self, path: str, retention: Retention) -> None:
        self.path = path
        self.moved_aside = ""
        self._retention = retention
        self._writer: sqlite3.Connection | None = None
        self._writes = 0

    def last_id(self) -> int:
        """The id to go on from. Of a file that cannot be read (now) nobody knows: the clock is ahead of any count."""
        try:
            rows = self.read(None, "", 1)
        except FileNotFoundError:
            return 0
        except (sqlite3.Error, OSError):
            return int(time.time() * 1000)
        return rows[-1].id if rows else 0

    def write(self, rows: list[Entry]) -> None:
        """One transaction: an error leaves nothing half-written, and the file closed: the next try opens it anew."""
        try:
            connection = self._open()
            with connection:
                connection.executemany(
                    # A commit may have succeeded although it was reported to fail: written again, a row stays one.
                    "INSERT OR REPLACE INTO entry (kind, server, attempt, mono, wall, payload, id)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [(row.kind, row.server, row.attempt, row.mono, row.wall, row.payload, row.id) for row in rows],
                )
                if self._writes % TRIM_EVERY_WRITES == 0:
                    self._trim(connection)
        except sqlite3.Error:
            self.close()
            raise
        self._writes += 1

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
        """Old rows first, then as many of the oldest as bring the rest to nine tenths; freed pages are used again."""
        connection.execute("DELETE FROM entry WHERE wall < ?", (time.time() - self._retention.age_s,))
        page_bytes, pages, free = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
        )
        used, limit = (pages - free) * page_bytes, self._retention.size_bytes
        if used > limit:
            rows = connection.execute("SELECT COUNT(*) FROM entry").fetchone()[0]
            surplus = int(rows * (1 - 0.9 * limit / used))
            connection.execute(
                "DELETE FROM entry WHERE id < (SELECT id FROM entry ORDER BY id LIMIT 1 OFFSET ?)", (surplus,)
            )

    def read(self, since_id: int | None, server: str, limit: int) -> list[Entry]:
        """Rows after an id, or (None) the last ones, oldest first. FileNotFoundError, sqlite3.Error."""
        if not os.path.exists(self.path):
            raise FileNotFoundError(self.path)
        with contextlib.closing(
            sqlite3.connect(f"file:{quote(self.path)}?mode=ro", uri=True, timeout=1.0)
        ) as connection:
            order = "ASC" if since_id is not None else "DESC"
            found = connection.execute(
                "SELECT kind, server, attempt, mono, wall, payload, id FROM entry"  # noqa: S608 - two constant words
                f" WHERE id > ? AND (? = '' OR server = ?) ORDER BY id {order} LIMIT ?",
                (since_id or 0, server, server, limit),
            ).fetchall()
        rows = [Entry(*row) for row in found]
        return rows if since_id is not None else rows[::-1]

    def move_aside(self) -> bool:
        """Keep the corrupt file for a human, under a name that says what it is. False when it cannot be moved."""
        aside = f"{self.path}.corrupt-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        try:
            os.rename(self.path, aside)
            for ending in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(self.path + ending, aside + ending)
        except OSError:
            return False
        self.moved_aside = aside
        return True

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(sqlite3.Error):  # what could not be written has been raised by `write`
                self._writer.close()
            self._writer = None


def _prepare(connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise sqlite3.NotSupportedError(f"its schema version {version} is newer than {SCHEMA_VERSION}, which we know")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last rows, never the file
    connection.execute("PRAGMA journal_size_limit = 16777216")
    connection.executescript(_SCHEMA)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def is_corrupt(problem: sqlite3.Error) -> bool:
    """NotSupportedError, which we raise ourselves, has no code."""
    code = getattr(problem, "sqlite_errorcode", 0) & 0xFF  # the primary code of an extended one
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
