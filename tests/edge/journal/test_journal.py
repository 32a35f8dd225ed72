"""Rows survive in order; a broken disk costs rows, which is said, and never the loop's time."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.edge.journal import SCHEMA_VERSION, Entry, Journal, Retention
from tests.edge.conftest import until

WALL = 1_700_000_000.0
LONG_AGO_IS_FINE = Retention(age_s=1e12)


def journal(path: Path, **options: object) -> Journal:
    defaults: dict[str, object] = {"retention": LONG_AGO_IS_FINE, "retry_s": 0.02, "batch_s": 0.001}
    return Journal(str(path), **{**defaults, **options})  # type: ignore[arg-type]


def add(book: Journal, count: int = 1, server: str = "kimi", payload: bytes = b"{}") -> list[int]:
    return [book.append("event", server, 1, float(number), WALL + number, payload) for number in range(count)]


def on_disk(path: Path) -> list[tuple[int, str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT id, kind, server FROM entry ORDER BY id").fetchall()


async def test_what_was_appended_is_read(tmp_path: Path) -> None:
    with journal(tmp_path / "j") as book:
        first = book.append("event", "kimi", 3, 1.5, WALL, b'{"type":"Ticked"}')
        assert await book.events() == [Entry("event", "kimi", 3, 1.5, WALL, b'{"type":"Ticked"}', first)]
        assert await book.flushed()
    assert on_disk(tmp_path / "j") == [(first, "event", "kimi")]


async def test_leaving_writes_what_is_queued(tmp_path: Path) -> None:
    with journal(tmp_path / "j", batch_s=5.0) as book:
        add(book, 500)
    assert len(on_disk(tmp_path / "j")) == 500


async def test_ids_go_on_after_a_restart(tmp_path: Path) -> None:
    ids: list[int] = []
    for _ in range(3):
        with journal(tmp_path / "j") as book:
            ids += add(book, 5)
    assert ids == sorted(set(ids))
    assert [row[0] for row in on_disk(tmp_path / "j")] == ids


async def test_a_follower_misses_nothing_and_sees_nothing_twice(tmp_path: Path) -> None:
    """Whether the rows it asks for are on disk, still queued, or some of each."""
    seen: list[int] = []
    with journal(tmp_path / "j", batch_s=0.01) as book:
        appended: list[int] = []
        for _ in range(50):
            appended += add(book, 7)
            seen += [row.id for row in await book.events(seen[-1] if seen else 0, limit=5)]
        while rows := await book.events(seen[-1], limit=1000):
            seen += [row.id for row in rows]
    assert seen == appended


async def test_one_servers_rows(tmp_path: Path) -> None:
    with journal(tmp_path / "j") as book:
        for server in ("kimi", "qwen", "kimi"):
            add(book, 1, server)
        await book.flushed()
        add(book, 1, "qwen")
        assert [row.server for row in await book.events(server="qwen")] == ["qwen", "qwen"]
        assert [row.server for row in await book.newest("kimi", limit=1)] == ["kimi"]
        assert await book.events(server="glm") == []


async def test_the_newest_rows(tmp_path: Path) -> None:
    with journal(tmp_path / "j") as book:
        ids = add(book, 20)
        await book.flushed()
        ids += add(book, 3)
        assert [row.id for row in await book.newest(limit=5)] == ids[-5:]
        assert [row.id for row in await book.newest(limit=100)] == ids


async def test_payloads_of_any_bytes(tmp_path: Path) -> None:
    payload = bytes(range(256)) * 4
    with journal(tmp_path / "j") as book:
        add(book, payload=payload)
        await book.flushed()
        assert (await book.events())[0].payload == payload


# --- retention -----------------------------------------------------------------------------------------------------


async def test_old_rows_go(tmp_path: Path) -> None:
    with journal(tmp_path / "j") as book:
        add(book, 10)
    with journal(tmp_path / "j", retention=Retention(age_s=3600.0)) as book:
        book.append("event", "kimi", 1, 0.0, time.time(), b"{}")
        await book.flushed()
    assert len(on_disk(tmp_path / "j")) == 1


async def test_the_file_stays_below_its_size(tmp_path: Path) -> None:
    """2 MB go in, 200 kB are kept: the newest ones. The file is a little larger than what it keeps."""
    limit = Retention(size_bytes=200_000, age_s=1e12)
    with journal(tmp_path / "j", retention=limit, batch_s=0) as book:
        for _ in range(2000):
            last = add(book, payload=b"x" * 1000)[-1]
            await book.flushed()
        kept = [row.id for row in await book.events(limit=5000)]
    assert kept[-1] == last
    assert kept == list(range(kept[0], last + 1))
    assert (tmp_path / "j").stat().st_size < 600_000


# --- trouble -------------------------------------------------------------------------------------------------------


async def test_a_full_queue_loses_rows_counts_them_and_says_so(tmp_path: Path) -> None:
    place = tmp_path / "later"
    with journal(place / "j", queue_rows=10) as book:
        began = time.monotonic()
        add(book, 1000)
        assert time.monotonic() - began < 1.0  # a blocking queue would wait for ever
        assert book.state().lost >= 900
        place.mkdir()
        await until(lambda: not book.state().waiting)
        lost = book.state().lost
        rows = await book.events(limit=5000)
    reports = [json.loads(row.payload) for row in rows if row.kind == "lost"]
    assert sum(report["lost"] for report in reports) == lost
    assert len(on_disk(place / "j")) == 1000 - lost + len(reports)


async def test_an_unwritable_place_is_tried_again_and_serves_from_memory(tmp_path: Path) -> None:
    place = tmp_path / "later"
    with journal(place / "j") as book:
        ids = add(book, 5)
        await until(lambda: book.state().problem)
        assert "cannot write" in book.state().problem
        assert "unable to open database file" in book.state().problem
        assert [row.id for row in await book.events()] == ids
        assert [row.id for row in await book.newest(limit=2)] == ids[-2:]
        place.mkdir()
        assert await book.flushed()
        assert book.state().problem == ""
        assert book.state().lost == 0
    assert [row[0] for row in on_disk(place / "j")] == ids


async def test_closing_while_the_disk_refuses_is_bounded_and_counted(tmp_path: Path) -> None:
    with journal(tmp_path / "nowhere" / "j", retry_s=60.0) as book:
        add(book, 5)
        await until(lambda: book.state().problem)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert book.state().lost == 5


async def test_a_disk_that_hangs_is_told(tmp_path: Path) -> None:
    """Another process that keeps the file locked stands for it: SQLite waits for that inside of its call."""
    path = tmp_path / "journal.db"
    with journal(path, hangs_s=0.1) as book:
        add(book)
        assert await book.flushed()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            add(book)
            await until(lambda: "the disk has not answered for" in book.state().problem)
            other.execute("ROLLBACK")
        assert await book.flushed(20)
        assert (book.state().problem, book.state().lost) == ("", 0)


@pytest.mark.parametrize("damage", [b"this is no database at all" * 100, b""], ids=["text", "empty"])
async def test_a_file_that_is_no_database(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "j").write_bytes(damage)
    with journal(tmp_path / "j") as book:
        ids = add(book, 5)
        assert await book.flushed()
        state = book.state()
    assert len(on_disk(tmp_path / "j")) == 5
    assert state.lost == 0
    if damage:
        assert Path(state.moved_aside).read_bytes() == damage
        assert ids[0] > 1_000_000  # nobody knows what the old file had counted to


async def test_a_file_that_is_damaged_in_the_middle(tmp_path: Path) -> None:
    with journal(tmp_path / "j") as book:
        add(book, 2000, payload=b"x" * 200)
    size = (tmp_path / "j").stat().st_size
    with (tmp_path / "j").open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 8192))
    with journal(tmp_path / "j") as book:
        add(book, 5)
        assert await book.flushed()
        assert book.state().moved_aside
        assert len(await book.events(limit=10)) == 5


async def test_a_journal_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "j")) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        connection.execute("CREATE TABLE precious (x)")
    before = (tmp_path / "j").read_bytes()
    with journal(tmp_path / "j") as book:
        ids = add(book, 3)
        await until(lambda: book.state().problem)
        assert f"schema version {SCHEMA_VERSION + 1} is newer" in book.state().problem
        assert [row.id for row in await book.events()] == ids
    assert (tmp_path / "j").read_bytes() == before


async def test_a_locked_file_delays_and_loses_nothing(tmp_path: Path) -> None:
    with journal(tmp_path / "j") as book:
        add(book, 1)
        await book.flushed()
        with closing(sqlite3.connect(tmp_path / "j", isolation_level=None)) as somebody:
            somebody.execute("BEGIN IMMEDIATE")
            ids = add(book, 3)
            assert not await book.flushed(limit_s=0.1)
            assert [row.id for row in await book.events(since_id=ids[0] - 1)] == ids
            somebody.execute("COMMIT")
        assert await book.flushed(limit_s=20)
        assert book.state().lost == 0


FULL = """
import anyio, resource, sys, time
from supervisor.edge.journal import Journal
async def main():
    with Journal(sys.argv[1], retry_s=0.02, batch_s=0.001) as book:
        book.append("event", "kimi", 1, 0.0, time.time(), b"first")
        assert await book.flushed()
        resource.setrlimit(resource.RLIMIT_FSIZE, (16384, resource.RLIM_INFINITY))
        for number in range(300):
            book.append("event", "kimi", 1, 0.0, time.time(), b"x" * 1000)
        with anyio.fail_after(20):
            while not book.state().problem:
                await anyio.sleep(0.005)
        assert len(await book.events()) == 301
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert await book.flushed(20)
        state = book.state()
        assert (state.problem, state.lost, state.written) == ("", 0, 301), state
anyio.run(main)
"""


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    """A limit on the file's size, in a process of its own: SQLite meets the same failing write as on a full disk."""
    answer = subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "j")], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert len(on_disk(tmp_path / "j")) == 301


KILLED = """
import anyio, os, signal, sys, time
from supervisor.edge.journal import Journal
async def main():
    with Journal(sys.argv[1], batch_s=0.001) as book:
        for number in range(100):
            book.append("event", "kimi", 1, 0.0, time.time(), b"{}")
        await book.flushed()
        for number in range(5000):
            book.append("event", "kimi", 1, 0.0, time.time(), b"{}")
        os.kill(os.getpid(), signal.SIGKILL)
anyio.run(main)
"""


async def test_a_killed_daemon_leaves_a_whole_journal(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "j")]).returncode == -9
    with journal(tmp_path / "j") as book:
        rows = await book.events(limit=10_000)
        assert len(rows) >= 100
        assert [row.id for row in rows] == list(range(1, len(rows) + 1))
        assert add(book) == [len(rows) + 1]
        assert await book.flushed()
        assert book.state().moved_aside == ""


async def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    with journal(tmp_path / "a?b#c%41 d") as book:
        add(book, 2)
        await book.flushed()
        assert len(await book.events()) == 2


async def test_appending_is_cheap(tmp_path: Path) -> None:
    """20 servers with 1000 matched lines a second each would still be a tenth of a core for the loop."""
    with journal(tmp_path / "j", batch_s=0.05) as book:
        began = time.thread_time()
        add(book, 5000)
        assert time.thread_time() - began < 0.5  # 5-10 µs a row on a quiet machine
        assert await book.flushed(20)
