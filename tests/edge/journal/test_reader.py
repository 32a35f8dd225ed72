"""A journal file is read whole, or it is said in one line why not."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.edge.journal import SCHEMA_VERSION, Entry, Retention
from supervisor.edge.journal.reader import JournalUnreadableError, read_all
from supervisor.edge.journal.store import Store

ROWS = [Entry("event", "kimi", 1, float(number), 1.7e9 + number, b"{}", number) for number in range(1, 51)]


def written(path: Path) -> Store:
    store = Store(str(path), Retention(age_s=1e12))
    store.write(ROWS)
    return store


def test_all_rows_in_their_order(tmp_path: Path) -> None:
    written(tmp_path / "j").close()
    assert list(read_all(str(tmp_path / "j"))) == ROWS


def test_a_journal_that_is_being_written(tmp_path: Path) -> None:
    store = written(tmp_path / "j")
    assert (tmp_path / "j-wal").exists()
    assert list(read_all(str(tmp_path / "j"))) == ROWS
    store.close()


def test_a_copy_without_its_folder_being_writable_leaves_no_files_behind(tmp_path: Path) -> None:
    written(tmp_path / "j").close()
    list(read_all(str(tmp_path / "j")))
    assert os.listdir(tmp_path) == ["j"]


def test_a_name_with_odd_characters(tmp_path: Path) -> None:
    path = tmp_path / "a ?#%.db"
    written(path).close()
    assert list(read_all(str(path))) == ROWS


@pytest.mark.parametrize(("version", "word"), [(SCHEMA_VERSION + 1, "newer"), (SCHEMA_VERSION - 1, "older")])
def test_another_schema_is_refused_in_words(tmp_path: Path, version: int, word: str) -> None:
    written(tmp_path / "j").close()
    with closing(sqlite3.connect(tmp_path / "j")) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(JournalUnreadableError, match=f"{version} is {word} than {SCHEMA_VERSION}"):
        list(read_all(str(tmp_path / "j")))


def test_a_database_of_somebody_else(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "j")) as connection:
        connection.execute("CREATE TABLE other (id INTEGER)")
    with pytest.raises(JournalUnreadableError, match="no table of entries"):
        list(read_all(str(tmp_path / "j")))


@pytest.mark.parametrize("share", [0.2, 0.6, 0.9])
def test_a_truncated_file(tmp_path: Path, share: float) -> None:
    written(tmp_path / "j").close()
    data = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(JournalUnreadableError):
        list(read_all(str(tmp_path / "j")))


def test_no_database_at_all(tmp_path: Path) -> None:
    (tmp_path / "j").write_text("hello\n" * 100)
    with pytest.raises(JournalUnreadableError, match="not a database"):
        list(read_all(str(tmp_path / "j")))
