"""What the rows are judged by finds what it is there to find: a matrix whose reckoning is blind proves nothing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.edge.journal import Entry, Retention
from supervisor.edge.journal.store import Store
from tests.faults import volume
from tests.faults.matrix import MATRIX, ROWS
from tests.faults.report import Outcome, page, words
from tests.faults.row import Seen
from tests.faults.scene import whole
from tests.faults.volume import Volume
from tests.faults.world import DAY_S, World, build


def journal(path: Path, *ids: int, lost: int = 0) -> Path:
    store = Store(str(path), Retention())
    rows = [Entry("event", "kimi", 1, 0.0, time.time(), b"{}", number) for number in ids]
    if lost:
        rows.append(Entry("lost", "", 0, 0.0, time.time(), b'{"lost": %d}' % lost, ids[-1] + 1))
    store.write(rows)
    store.close()
    return path


def test_a_gap_in_the_journal_is_found_unless_it_is_counted_as_lost(tmp_path: Path) -> None:
    assert whole(journal(tmp_path / "a.db", 1, 2, 3)) == 3
    with pytest.raises(AssertionError, match="2 rows are missing, 0 are said to be"):
        whole(journal(tmp_path / "b.db", 1, 2, 5))
    assert whole(journal(tmp_path / "c.db", 1, 2, 5, lost=2)) == 4


def test_a_journal_that_is_none_is_found(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(AssertionError, match="cannot be read"):
        whole(tmp_path / "journal.db")


# --- the injected world ----------------------------------------------------------------------------------------------

WRITER = """
import sys
for number in range(3):
    try:
        with open(f"{sys.argv[1]}/{number}", "wb") as file:
            file.write(b"x")
        print("written")
    except OSError as problem:
        print(problem.strerror)
"""


@pytest.fixture
def world(tmp_path: Path, nvml_library: Path) -> World:
    return World(tmp_path, build(nvml_library.parent), tmp_path / "disk")


def told(world: World, code: str, *arguments: str) -> list[str]:
    """What a program prints that lives in this world."""
    environment = {**os.environ, **world.environment}
    command = [sys.executable, "-S", "-E", "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_wall_clock_jumps_and_the_monotonic_one_does_not(world: World) -> None:
    world.jump_clock(-1)
    wall, monotonic = map(float, told(world, "import time; print(time.time()); print(time.monotonic())"))
    assert time.time() - wall == pytest.approx(DAY_S, abs=60)
    assert time.monotonic() - monotonic < 60


def test_one_call_on_the_disk_fails_and_no_other(world: World, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    world.fail_disk_call(4)  # each file is opened and written
    assert told(world, WRITER, str(disk)) == ["written", os.strerror(errno.ENOSPC), "written"]
    assert world.disk_failed
    assert told(world, WRITER, str(tmp_path)) == ["written"] * 3, "another directory is another disk"


def test_a_whole_disk_fails_until_it_is_mended(world: World, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    world.fail_disk(errno.EROFS)
    assert told(world, WRITER, str(disk)) == [os.strerror(errno.EROFS)] * 3
    world.fail_disk(0)
    assert told(world, WRITER, str(disk)) == ["written"] * 3


def test_processes_are_refused(world: World) -> None:
    world.refuse_processes(errno.EAGAIN)
    code = (
        "import os\ntry:\n os.posix_spawn('/bin/true', ['true'], {})\nexcept OSError as problem:\n print(problem.errno)"
    )
    assert told(world, code) == [str(errno.EAGAIN)]


def test_a_disk_of_its_own_is_full_and_then_is_not(tmp_path: Path) -> None:
    if lacking := volume.missing():
        pytest.skip(lacking)
    with Volume(tmp_path / "disk", "1m", os.environ) as disk:
        assert disk.fill() > 900_000
        assert not (tmp_path / "disk").exists() or not list((tmp_path / "disk").iterdir()), "seen only from inside"
        writing = [*disk.prefix, "sh", "-c", f"echo xxxxxxxx > {tmp_path}/disk/file"]
        assert subprocess.run(writing, capture_output=True).returncode != 0
        disk.empty()
        assert subprocess.run(writing, capture_output=True).returncode == 0


# --- the report ------------------------------------------------------------------------------------------------------


def test_the_page_tells_held_broken_and_untried_rows_apart() -> None:
    held = Outcome(ROWS[0], 2.4, Seen("all | well", 0.25, 0.004, None, 12))
    broken, untried = Outcome(ROWS[1], 1.0, broken="AssertionError: a\nb"), Outcome(ROWS[2], 0.0, lacking="needs root")
    text = page({"Deaths": [held, broken, untried]}, 3.4)
    assert "This run: 1 of 3 rows held, 3 s in all" in text
    assert "| all \\| well | 4, 250 ms | – | 2 s |" in text
    assert "**did not hold**: AssertionError: a b" in text
    assert words(untried) == "not tried: needs root"


def test_every_row_has_a_name_of_its_own_and_says_what_must_hold() -> None:
    assert len({row.fault for row in ROWS}) == len(ROWS)
    assert all(row.must for row in ROWS)
    assert sum(row.quick for row in ROWS) <= 3, "the fast suite stays fast"
    assert len(MATRIX) == 8
