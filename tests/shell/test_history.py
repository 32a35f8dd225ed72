"""Histories survive the daemon, damage and a full disk."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.actions import PhaseRecord, StartRecord
from supervisor.shell.history import KEPT, HistoryStore

RECORD = StartRecord("k", 60.0, (PhaseRecord("weights", 30.0, 4.0),), 2928046)


def test_what_was_added_is_read_by_the_next_daemon(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "history")
    store.add("kimi", RECORD)
    store.write("kimi")
    assert HistoryStore(tmp_path / "history").read("kimi") == (RECORD,)
    assert HistoryStore(tmp_path / "history").read("other") == ()


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path)
    for total in range(KEPT + 3):
        store.add("kimi", StartRecord("k", float(total), ()))
        store.write("kimi")
    totals = [record.total_s for record in store.read("kimi")]
    assert (totals[0], totals[-1], len(totals)) == (3.0, KEPT + 2.0, KEPT)


def test_a_damaged_file_is_moved_aside_and_learning_starts_anew(tmp_path: Path) -> None:
    (tmp_path / "kimi.json").write_text("[{]")
    store = HistoryStore(tmp_path)
    assert store.read("kimi") == ()
    assert (tmp_path / "kimi.broken").read_text() == "[{]"
    store.add("kimi", RECORD)
    store.write("kimi")
    assert store.read("kimi") == (RECORD,)


@pytest.fixture
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = os.dup(0)
    os.close(used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_cannot_be_read_for_a_while_is_neither_moved_nor_written_over(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store, path = HistoryStore(tmp_path), tmp_path / "kimi.json"
    store.add("kimi", RECORD)
    store.write("kimi")
    before = path.stat()
    request.getfixturevalue("no_descriptor_left")
    assert store.read("kimi") == ()
    store.add("kimi", RECORD)
    with pytest.raises(OSError, match="left where it is"):
        store.write("kimi")
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_what_a_disk_refuses_is_written_with_the_next_one(tmp_path: Path) -> None:
    place = tmp_path / "history"
    place.write_text("a file is no directory")
    store = HistoryStore(place)
    store.add("kimi", RECORD)
    with pytest.raises(OSError, match="File exists"):
        store.write("kimi")
    assert store.read("kimi") == ()
    place.unlink()
    store.add("kimi", RECORD)
    store.write("kimi")
    assert store.read("kimi") == (RECORD, RECORD)
    store.write("kimi")
    assert store.read("kimi") == (RECORD, RECORD), "nothing is written twice"
