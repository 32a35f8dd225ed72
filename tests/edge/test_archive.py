"""Archiving a log that grows: every line exactly once, whatever dies in between, and no offset ever moves."""

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.edge import archive
from supervisor.edge.archive import Kept, LogArchive, Segment, finish, live_path, log_bytes, segments

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
_REST = b" a line as servers write them under load, with more words than anybody reads" * 3 + b"\n"
both_kinds = pytest.mark.parametrize("suffix", ["gz", "zst"])


def line(number: int) -> bytes:
    return b"%012d a line as servers write them, #running-req: %d\n" % (number, number % 97)


def lines(first: int, count: int) -> bytes:
    return b"".join(map(line, range(first, first + count)))


def wide_lines(first: int, count: int) -> bytes:
    return b"".join([b"%012d" % number + _REST for number in range(first, first + count)])


def append(directory: Path, data: bytes, attempt: int = 1) -> int:
    with live_path(directory, attempt).open("ab") as out:
        out.write(data)
        return out.tell()


def whole(directory: Path, attempt: int = 1, begin: int = 0, end: int | None = None) -> bytes:
    return b"".join(log_bytes(directory, attempt, begin, end))


def blocks(path: Path) -> int:
    return path.stat().st_blocks * 512


def numbered(pieces: Iterable[bytes]) -> Iterator[int]:
    """The numbers of the lines in a stream; AssertionError at the first line that is not as it was written."""
    rest = b""
    for piece in pieces:
        *whole_lines, rest = (rest + piece).split(b"\n")
        for one in whole_lines:
            number = int(one[:12])
            assert one + b"\n" == line(number)
            yield number
    assert rest == b""


# --- one segment ----------------------------------------------------------------------------------------------------


@both_kinds
def test_what_was_read_moves_into_a_segment_and_its_space_comes_back(tmp_path: Path, suffix: str) -> None:
    size = append(tmp_path, lines(0, 50_000))
    before = blocks(live_path(tmp_path, 1))

    segment = LogArchive(tmp_path, 1, suffix).archive(size)

    assert segment == Segment(1, 0, 0, size, suffix)
    assert live_path(tmp_path, 1).stat().st_size == size, "offsets stay what they were"
    assert blocks(live_path(tmp_path, 1)) < before / 20
    assert blocks(tmp_path / segment.name) < size / 3
    assert whole(tmp_path) == lines(0, 50_000)


@pytest.mark.parametrize(("suffix", "program"), [("gz", "zcat"), ("zst", "zstdcat")])
def test_segments_are_files_that_ordinary_programs_read(tmp_path: Path, suffix: str, program: str) -> None:
    archived = LogArchive(tmp_path, 1, suffix).archive(append(tmp_path, lines(0, 1000)))
    assert archived is not None
    try:
        done = subprocess.run([program, tmp_path / archived.name], capture_output=True, timeout=20)
    except FileNotFoundError:
        pytest.skip(f"{program} is not installed")

    assert done.stdout == lines(0, 1000)


def test_a_segment_ends_with_a_line(tmp_path: Path) -> None:
    append(tmp_path, lines(0, 10))

    segment = LogArchive(tmp_path, 1).archive(len(line(0)) * 3 + 5)

    assert segment is not None
    assert segment.end == len(line(0)) * 3


def test_nothing_is_archived_before_a_line_has_ended(tmp_path: Path) -> None:
    append(tmp_path, b"an open line without its end")

    assert LogArchive(tmp_path, 1).archive(20) is None
    assert segments(tmp_path) == ()


def test_a_line_longer_than_anybody_reads_is_cut(tmp_path: Path) -> None:
    size = append(tmp_path, b"x" * (3 * MIB))

    segment = LogArchive(tmp_path, 1).archive(size)

    assert segment is not None
    assert segment.end == size
    assert whole(tmp_path) == b"x" * (3 * MIB)


def test_a_segment_is_no_longer_than_its_limit(tmp_path: Path) -> None:
    size = append(tmp_path, lines(0, 100_000))
    one = LogArchive(tmp_path, 1)

    while one.archive(size, limit_bytes=MIB):
        pass

    ranges = [(made.begin, made.end) for made in segments(tmp_path)]
    assert [begin for begin, _ in ranges[1:]] == [end for _, end in ranges[:-1]]
    assert all(end - begin <= MIB for begin, end in ranges)
    assert ranges[-1][1] == size


def test_the_writer_goes_on_where_it_was(tmp_path: Path) -> None:
    one = LogArchive(tmp_path, 1)
    with live_path(tmp_path, 1).open("ab", buffering=0) as writer:
        for turn in range(5):
            writer.write(lines(turn * 1000, 1000))
            one.archive(writer.tell())
        writer.write(lines(5000, 10))

    assert list(numbered(log_bytes(tmp_path, 1))) == list(range(5010))


def test_segments_are_as_readable_as_the_log(tmp_path: Path) -> None:
    size = append(tmp_path, lines(0, 100))
    live_path(tmp_path, 1).chmod(0o640)

    segment = LogArchive(tmp_path, 1).archive(size)

    assert segment is not None
    assert (tmp_path / segment.name).stat().st_mode & 0o777 == 0o640


def test_a_link_in_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    """The directory may be writable for the server's user; we are root."""
    secret = tmp_path / "secret"
    secret.write_bytes(lines(0, 100))
    live_path(tmp_path, 1).symlink_to(secret)

    with pytest.raises(OSError, match="symbolic links"):
        LogArchive(tmp_path, 1).archive(100)
    assert secret.read_bytes() == lines(0, 100)


# --- death in between -----------------------------------------------------------------------------------------------


def test_death_before_the_name_leaves_the_range_in_the_log(tmp_path: Path) -> None:
    append(tmp_path, lines(0, 1000))
    (tmp_path / (Segment(1, 0, 0, 5000).name + ".unfinished")).write_bytes(b"half of it")

    LogArchive(tmp_path, 1)

    assert [path.name for path in tmp_path.iterdir()] == ["000001.log"]
    assert whole(tmp_path) == lines(0, 1000)


def test_death_between_the_name_and_the_hole_doubles_nothing(tmp_path: Path) -> None:
    size = append(tmp_path, lines(0, 50_000))
    LogArchive(tmp_path, 1).copy_rest()  # what `archive` has done before it makes the hole
    append(tmp_path, lines(50_000, 100))
    assert blocks(live_path(tmp_path, 1)) > size

    again = LogArchive(tmp_path, 1)

    assert again.archived == size
    assert blocks(live_path(tmp_path, 1)) < size / 20, "the hole is made now"
    assert list(numbered(log_bytes(tmp_path, 1))) == list(range(50_100))


def test_death_between_the_last_segment_and_the_removal_of_the_log_doubles_nothing(tmp_path: Path) -> None:
    append(tmp_path, lines(0, 500))
    LogArchive(tmp_path, 1).copy_rest()

    assert finish(tmp_path, 1) is None

    assert not live_path(tmp_path, 1).exists()
    assert list(numbered(log_bytes(tmp_path, 1))) == list(range(500))


def test_a_later_daemon_goes_on_at_the_right_byte(tmp_path: Path) -> None:
    for turn in range(4):
        size = append(tmp_path, lines(turn * 700, 700))
        LogArchive(tmp_path, 1).archive(size - 1000)

    assert list(numbered(log_bytes(tmp_path, 1))) == list(range(2800))


_WRITER = """
import os, sys, time
from pathlib import Path
path, count, rate, step = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), 5000
from tests.edge.test_archive import wide_lines
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
began, written = time.monotonic(), 0
for first in range(0, count, step):
    data = wide_lines(first, min(step, count - first))
    while data:
        n = os.write(log, data)
        data, written = data[n:], written + n
    time.sleep(max(0.0, written / rate - (time.monotonic() - began)))
"""
_ARCHIVER = """
import os, sys
from supervisor.edge.archive import LogArchive, live_path
directory, limit = sys.argv[1], int(sys.argv[2])
archive = LogArchive(directory, 1)
print("archiving", flush=True)
while True:
    archive.archive(os.stat(live_path(directory, 1)).st_size, limit)
"""


def write_while_archivers_are_killed(
    directory: Path, count: int, *, bytes_per_s: float, segment_bytes: int, lives_s: Callable[[], float]
) -> int:
    """A process writes numbered lines; another archives them and is killed again and again. How often it was."""
    path = live_path(directory, 1)
    path.touch()
    kills = 0
    writing = [sys.executable, "-c", _WRITER, str(path), str(count), str(bytes_per_s)]
    with subprocess.Popen(writing, cwd=ROOT) as writer:
        while writer.poll() is None:
            command = [sys.executable, "-c", _ARCHIVER, str(directory), str(segment_bytes)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as archiver:
                assert archiver.stdout is not None
                assert archiver.stdout.readline() == b"archiving\n"
                threading.Event().wait(lives_s())  # the moment of its death, not a wait for anything
                archiver.send_signal(signal.SIGKILL)
                kills += 1
        assert writer.returncode == 0
    return kills


def assert_every_line_once(directory: Path, count: int) -> None:
    last = LogArchive(directory, 1)
    last.archive(live_path(directory, 1).stat().st_size)
    made = segments(directory)
    assert [one.begin for one in made] == [0, *(one.end for one in made[:-1])], "no gap, no overlap"
    assert same(log_bytes(directory, 1), (wide_lines(first, 5000) for first in range(0, count, 5000)))


def same(left: Iterable[bytes], right: Iterable[bytes]) -> bool:
    """Whether two streams of bytes are one, however they are cut."""
    rest, other = b"", iter(right)
    for piece in left:
        while len(rest) < len(piece):
            try:
                rest += next(other)
            except StopIteration:
                return False
        if rest[: len(piece)] != piece:
            return False
        rest = rest[len(piece) :]
    return rest == b"" and next(other, b"") == b""


def test_no_line_is_lost_or_doubled_while_archivers_are_killed(tmp_path: Path) -> None:
    chance = random.Random(7)
    kills = write_while_archivers_are_killed(
        tmp_path,
        100_000,
        bytes_per_s=12e6,
        segment_bytes=256 * 1024,
        lives_s=lambda: chance.uniform(0.0, 0.15),
    )

    assert_every_line_once(tmp_path, 100_000)
    assert kills >= 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_line_of_two_gigabytes_is_lost_or_doubled_at_50_megabytes_a_second(tmp_path: Path) -> None:
    chance, count = random.Random(8), 9_000_000
    began = time.monotonic()
    kills = write_while_archivers_are_killed(
        tmp_path, count, bytes_per_s=50e6, segment_bytes=16 * MIB, lives_s=lambda: chance.uniform(0.2, 4.0)
    )
    took_s = time.monotonic() - began

    assert_every_line_once(tmp_path, count)
    size = live_path(tmp_path, 1).stat().st_size
    on_disk = sum(blocks(path) for path in tmp_path.iterdir())
    print(f"{count} lines, {size} bytes in {took_s:.0f} s, {kills} kills, {on_disk} bytes on the disk")
    assert size > 2e9
    assert on_disk < size / 3
    assert size / took_s > 25e6, "as fast as it was meant to be, by and large"


# --- reading --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_range_reads_as_if_nothing_had_been_archived(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = tmp_path_factory.mktemp("log")
    text = b""
    for turn in range(data.draw(st.integers(1, 4))):
        grown = data.draw(st.binary(min_size=1, max_size=3000)) + b"\n" * data.draw(st.integers(0, 2))
        text += grown
        append(place, grown)
        suffix = "gz" if turn % 2 else "zst"
        LogArchive(place, 1, suffix).archive(data.draw(st.integers(0, len(text))))
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, len(text)))

    assert whole(place, 1, begin, end) == text[begin:end]
    assert whole(place, 1, begin) == text[begin:]


def test_reading_sees_no_hole_while_the_archive_grows(tmp_path: Path) -> None:
    size = append(tmp_path, lines(0, 60_000))
    one = LogArchive(tmp_path, 1)
    reading = log_bytes(tmp_path, 1)

    first = next(reading)
    one.archive(size)  # under the reader's feet

    assert first + b"".join(reading) == lines(0, 60_000)


def test_what_was_removed_is_said_in_its_place(tmp_path: Path) -> None:
    size = append(tmp_path, lines(0, 40_000))
    one = LogArchive(tmp_path, 1)
    while one.archive(size, limit_bytes=MIB):
        pass
    first, second = segments(tmp_path)[:2]
    (tmp_path / first.name).unlink()

    text = whole(tmp_path, 1, 0, second.end)

    assert text.startswith(b"[%d bytes of this log are missing: older logs are removed]\n" % first.end)
    assert text.endswith(lines(0, 40_000)[first.end : second.end])


@both_kinds
@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_a_damaged_segment_is_said_and_the_rest_is_read(tmp_path: Path, suffix: str, damage: str) -> None:
    size = append(tmp_path, lines(0, 1000))
    segment = LogArchive(tmp_path, 1, suffix).archive(size)
    assert segment is not None
    append(tmp_path, b"after it\n")
    file = tmp_path / segment.name
    file.write_bytes(file.read_bytes()[:-20] if damage == "cut" else b"no such format" * 10)

    text = whole(tmp_path)

    assert b"bytes of this log are missing: " in text
    assert text.endswith(b"after it\n")


def test_a_log_that_was_never_written_is_empty(tmp_path: Path) -> None:
    assert whole(tmp_path) == b""
    assert whole(tmp_path / "nowhere") == b""
    assert segments(tmp_path / "nowhere") == ()


# --- truncation -----------------------------------------------------------------------------------------------------


def test_a_log_that_was_emptied_begins_anew_beside_its_old_segments(tmp_path: Path) -> None:
    one = LogArchive(tmp_path, 1)
    one.archive(append(tmp_path, lines(0, 1000)))
    os.truncate(live_path(tmp_path, 1), 0)
    size = append(tmp_path, lines(5000, 10))

    one.begin_anew()
    assert whole(tmp_path) == lines(5000, 10)
    one.archive(size)

    assert [(made.generation, made.begin) for made in segments(tmp_path)] == [(0, 0), (1, 0)]
    assert whole(tmp_path) == lines(5000, 10)


def test_a_later_daemon_notices_that_the_log_was_emptied(tmp_path: Path) -> None:
    LogArchive(tmp_path, 1).archive(append(tmp_path, lines(0, 1000)))
    os.truncate(live_path(tmp_path, 1), 0)
    append(tmp_path, lines(7000, 3))

    again = LogArchive(tmp_path, 1)

    assert (again.generation, again.archived) == (1, 0)


def test_a_log_emptied_while_it_is_copied_costs_no_segment(tmp_path: Path) -> None:
    append(tmp_path, b"x" * (2 * MIB))
    one = LogArchive(tmp_path, 1)
    os.truncate(live_path(tmp_path, 1), 100)

    with pytest.raises(OSError, match="truncated while"):
        one.archive(2 * MIB)  # what the tail had read, before it learns of the truncation
    assert segments(tmp_path) == ()
    assert [path.name for path in tmp_path.iterdir()] == ["000001.log"]


# --- what is kept ---------------------------------------------------------------------------------------------------


def five_attempts(directory: Path) -> None:
    for attempt in range(1, 6):
        append(directory, lines(attempt * 1000, 20_000), attempt)
        if attempt < 5:
            finish(directory, attempt)


def attempts(directory: Path) -> list[int]:
    return sorted({int(path.name[:6]) for path in directory.iterdir()})


def test_only_the_newest_attempts_stay(tmp_path: Path) -> None:
    five_attempts(tmp_path)

    removed = archive.prune(tmp_path, 5, Kept(attempts=2, size_bytes=10**12))

    assert attempts(tmp_path) == [4, 5]
    assert removed.files == 3


def test_the_oldest_go_until_the_rest_fits(tmp_path: Path) -> None:
    five_attempts(tmp_path)
    newest = [live_path(tmp_path, 5), *(tmp_path / segments(tmp_path, attempt)[0].name for attempt in (3, 4))]

    archive.prune(tmp_path, 5, Kept(attempts=10, size_bytes=sum(map(blocks, newest)) + 4096))

    assert attempts(tmp_path) == [3, 4, 5]


def test_the_present_log_stays_whatever_the_limit_says(tmp_path: Path) -> None:
    five_attempts(tmp_path)
    size = live_path(tmp_path, 5).stat().st_size
    LogArchive(tmp_path, 5).archive(size, limit_bytes=size // 2)

    archive.prune(tmp_path, 5, Kept(attempts=1, size_bytes=0))

    assert [path.name for path in sorted(tmp_path.iterdir())] == [segments(tmp_path)[0].name, "000005.log"]
    assert LogArchive(tmp_path, 5).archived == segments(tmp_path)[0].end, "so that nothing is archived twice"


def test_room_is_made_from_the_oldest_logs_of_all_servers(tmp_path: Path) -> None:
    for name, age_s in (("young", 10), ("old", 1000)):
        place = tmp_path / name
        place.mkdir()
        five_attempts(place)
        for path in place.iterdir():
            then = time.time() - age_s + int(path.name[:6])
            os.utime(path, (then, then))
    wanted = blocks(tmp_path / "old" / segments(tmp_path / "old", 1)[0].name) + 1

    removed = archive.free_oldest([(tmp_path / "young", 5), (tmp_path / "old", 5)], wanted)

    assert removed.bytes >= wanted
    assert attempts(tmp_path / "young") == [1, 2, 3, 4, 5]
    assert attempts(tmp_path / "old") == [3, 4, 5]


# --- the file system ------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot mount: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(path: Path) -> None:
    """Until nothing more goes in."""
    with path.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while out.write(bytes(65536)):
            pass
    assert os.statvfs(path).f_bavail == 0


def test_a_full_disk_changes_nothing_and_loses_nothing(small_disk: Path) -> None:
    count = 100_000
    size = append(small_disk, lines(0, count))
    filler = small_disk / "filler"
    fill(filler)
    one = LogArchive(small_disk, 1)

    with pytest.raises(OSError, match="No space") as refused:
        one.archive(size)

    assert refused.value.errno == errno.ENOSPC
    assert one.archived == 0
    assert segments(small_disk) == ()
    filler.unlink()
    assert one.archive(size) is not None
    assert list(numbered(log_bytes(small_disk, 1))) == list(range(count))


def test_holes_are_asked_for_before_they_are_relied_on(tmp_path: Path) -> None:
    assert archive.can_punch(tmp_path) is True
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_an_error_not_an_answer(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        archive.can_punch(tmp_path / "none")
