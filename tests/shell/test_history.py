"""Histories survive the daemon, damage and a full disk."""

from __future__ import annotations

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
