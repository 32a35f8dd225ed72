"""Reads a whole journal file, also one of a daemon that runs, of another machine, or on a read-only disk."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from urllib.parse import quote

from supervisor.edge.journal.store import SCHEMA_VERSION, Entry


class JournalUnreadableError(Exception):
    """The file cannot be read as a journal; the message says why."""


def read_all(path: str) -> Iterator[Entry]:
    """Every row, oldest first. Raises JournalUnreadableError, possibly only after some rows (a truncated file)."""
    # Without a write-ahead log beside it nobody writes the file, and it can be read where none may be made.
    live = os.path.exists(f"{path}-wal")
    uri = f"file:{quote(os.path.abspath(path))}?mode=ro{'' if live else '&immutable=1'}"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=5.0)) as connection:
            _check(connection)
            if not live:
                _check_whole(connection, os.path.getsize(path))
            for row in connection.execute(
                "SELECT kind, server, attempt, mono, wall, payload, id FROM entry ORDER BY id"
            ):
                yield Entry(*row)
    except sqlite3.Error as problem:
        raise JournalUnreadableError(str(problem)) from problem


def _check(connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "entry" not in tables:
        raise JournalUnreadableError("it is an SQLite database, but no journal: it has no table of entries")
    if version != SCHEMA_VERSION:
        age = "newer" if version > SCHEMA_VERSION else "older"
        raise JournalUnreadableError(f"its schema version {version} is {age} than {SCHEMA_VERSION}, which we know")


def _check_whole(connection: sqlite3.Connection, size: int) -> None:
    """SQLite itself meets the end of a truncated file only where it reads; an index lost there is not missed."""
    pages, page_bytes = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    if pages * page_bytes > size:
        raise JournalUnreadableError(f"it is truncated: {size} of {pages * page_bytes} bytes are left")
