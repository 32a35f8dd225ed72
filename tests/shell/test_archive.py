"""The archivist: what has been read is archived at its size or age, old attempts and too many bytes go."""

import itertools
import os
from pathlib import Path
from typing import NamedTuple

import pytest
import structlog.testing

from supervisor.config import LogConfig, ServerConfig
from supervisor.edge.archive import live_path, log_bytes, segments
from supervisor.shell import clock
from supervisor.shell.archive import Archivist, Shelf

MIB = 2**20
LINE = b"a line of a server's log, 50 bytes with its end..\n"


class Read(NamedTuple):
    """Stands for the feed of a living server."""

    attempt: int
    offset: int

    @property
    def feed(self) -> "Read":
        return self


class Site:
    """A log directory with one server, and how far its log has been read."""

    def __init__(self, log_dir: Path, **rules: object) -> None:
        self.directory = log_dir / "kimi"
        self.directory.mkdir()
        self.read: Read | None = None
        server = ServerConfig("kimi", log=LogConfig(**{"rotate_size_bytes": MIB, **rules}))  # type: ignore[arg-type]
        self.archivist = Archivist(log_dir, lambda: {"kimi": server}, lambda _: self.read, kept_live_bytes=100_000)

    def write(self, size: int, attempt: int = 1) -> int:
        with live_path(self.directory, attempt).open("ab") as out:
            out.write(LINE * (size // len(LINE)))
            return out.tell()

    async def look(self, read: int | None = None, attempt: int = 1) -> None:
        self.read = Read(attempt, read) if read is not None else None
        await self.archivist.look()

    def archived(self) -> list[tuple[int, int, int]]:
        return [(one.attempt, one.begin, one.end) for one in segments(self.directory)]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_what_has_been_read_is_archived_once_it_is_enough(site: Site) -> None:
    size = site.write(3 * MIB)

    await site.look(read=MIB // 2)
    assert site.archived() == []

    await site.look(read=size)
    assert [attempt for attempt, _, _ in site.archived()] == [1, 1]
    assert site.archivist.segments() == {"kimi": 2}
    assert b"".join(log_bytes(site.directory, 1)) == LINE * (size // len(LINE))


async def test_nothing_that_has_not_been_read_is_archived(site: Site) -> None:
    site.write(5 * MIB)

    await site.look(read=2 * MIB)

    assert site.archived()[-1][2] <= 2 * MIB


async def test_the_newest_bytes_stay_where_people_look(site: Site) -> None:
    size = site.write(5 * MIB)

    await site.look(read=size)

    with live_path(site.directory, 1).open("rb") as live:
        live.seek(size - 100_000)
        assert live.read() == b"".join(log_bytes(site.directory, 1, size - 100_000))


async def test_little_is_archived_when_it_is_old(tmp_path: Path) -> None:
    site = Site(tmp_path, rotate_age_s=0.0)

    await site.look(read=site.write(300_000))

    assert len(site.archived()) == 1


async def test_young_and_little_stays(tmp_path: Path) -> None:
    site = Site(tmp_path, rotate_age_s=3600.0)

    await site.look(read=site.write(300_000))

    assert site.archived() == []


async def test_attempts_before_the_last_two_are_archived_whole(site: Site) -> None:
    for attempt in (1, 2, 3, 4):
        site.write(20_000, attempt)

    await site.look(read=100, attempt=4)

    assert [attempt for attempt, _, _ in site.archived()] == [1, 2]
    assert sorted(path.name for path in site.directory.glob("00000?.log")) == ["000003.log", "000004.log"]


async def test_logs_of_a_server_that_rests_are_looked_after_once(site: Site) -> None:
    for attempt in (1, 2, 3):
        site.write(20_000, attempt)

    await site.look()

    assert [attempt for attempt, _, _ in site.archived()] == [1]
    shelf = Shelf("kimi", site.directory, 0)
    assert shelf.due(None, LogConfig(), clock.monotonic())
    shelf.tend(None, LogConfig(), clock.monotonic())
    assert not shelf.due(None, LogConfig(), clock.monotonic())


async def test_only_so_many_attempts_are_kept(tmp_path: Path) -> None:
    site = Site(tmp_path, keep=2)
    for attempt in range(1, 6):
        site.write(20_000, attempt)

    await site.look(read=100, attempt=5)

    assert {path.name[:6] for path in site.directory.iterdir()} == {"000004", "000005"}


async def test_the_total_is_held_and_said(tmp_path: Path) -> None:
    site = Site(tmp_path, size_bytes=1)
    for attempt in range(1, 5):
        site.write(20_000, attempt)

    with structlog.testing.capture_logs() as said:
        await site.look(read=100, attempt=4)

    assert [path.name for path in site.directory.iterdir()] == ["000004.log"]
    assert [line["event"] for line in said] == ["old logs removed"]


async def test_a_log_that_was_emptied_is_archived_from_its_beginning(site: Site) -> None:
    await site.look(read=site.write(3 * MIB))
    os.truncate(live_path(site.directory, 1), 0)

    size = site.write(3 * MIB)
    await site.look(read=MIB)  # the feed begins at 0 again; its offset is behind what was archived
    await site.look(read=size)

    assert [one.generation for one in segments(site.directory)][-1] == 1
    assert b"".join(log_bytes(site.directory, 1)) == LINE * (size // len(LINE))


async def test_a_daemon_that_comes_back_goes_on(tmp_path: Path) -> None:
    first = Site(tmp_path)
    await first.look(read=first.write(3 * MIB))
    second = Site.__new__(Site)
    second.directory = first.directory
    second.archivist = Archivist(
        tmp_path, lambda: {"kimi": ServerConfig("kimi", log=LogConfig(rotate_size_bytes=MIB))}, lambda _: second.read,
        kept_live_bytes=100_000,
    )  # fmt: skip

    size = second.write(3 * MIB)
    await second.look(read=size)

    ranges = second.archived()
    assert all(one[1] == before[2] for before, one in itertools.pairwise(ranges))
    assert b"".join(log_bytes(second.directory, 1)) == LINE * (size // len(LINE))


async def test_a_disk_that_takes_nothing_is_said_once_and_loses_nothing(site: Site) -> None:
    size = site.write(3 * MIB)
    live = live_path(site.directory, 1)
    aside = live.rename(site.directory.parent / "aside")
    live.symlink_to(aside)  # an error that root meets as well

    with structlog.testing.capture_logs() as said:
        await site.look(read=size)
        await site.look(read=size)

    assert [line["event"] for line in said] == ["log archive"]
    assert "cannot archive logs" in said[0]["problem"]
    assert aside.stat().st_size == size


async def test_room_is_made_when_the_disk_is_nearly_full(tmp_path: Path) -> None:
    """Everything that may go goes here: the whole disk is wanted."""
    place = tmp_path / "kimi"
    place.mkdir()
    for attempt in (1, 2, 3):
        live_path(place, attempt).write_bytes(LINE * 1000)
    archivist = Archivist(
        tmp_path, lambda: {"kimi": ServerConfig("kimi")}, lambda _: None, reserve_bytes=2**60, reserve_part=1.0
    )

    with structlog.testing.capture_logs() as said:
        await archivist.look()

    assert [path.name for path in place.iterdir()] == ["000003.log"]
    assert [(line["event"], line["files"]) for line in said] == [("logs removed to make room", 2)]


async def test_a_server_that_has_never_run_costs_nothing(tmp_path: Path) -> None:
    archivist = Archivist(tmp_path, lambda: {"new": ServerConfig("new")}, lambda _: None)

    with structlog.testing.capture_logs() as said:
        await archivist.look()

    assert said == []
