"""The daemon's log goes where somebody reads it, and costs nothing but lines where nobody does."""

import os
from pathlib import Path

import pytest

from supervisor.shell.outlet import Outlet


@pytest.fixture
def pipe() -> tuple[int, int]:
    return os.pipe()


def test_lines_are_written_whole(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        outlet = Outlet(file.fileno())
        outlet.write("one ")
        outlet.write("line")
        assert (tmp_path / "log").read_text() == ""
        outlet.write("\n")
        outlet.flush()
    assert (tmp_path / "log").read_text() == "one line\n"


def test_text_that_no_encoding_has_is_escaped(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        Outlet(file.fileno()).write("a\udcffb\n")
    assert (tmp_path / "log").read_text() == "a\\udcffb\n"


def test_a_reader_that_has_gone_costs_lines_alone(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.close(reading)
    outlet = Outlet(writing)
    for number in range(3):
        outlet.write(f"{number}\n")
    assert outlet.lost == 3
    os.close(writing)


def test_a_reader_that_does_not_read_costs_lines_and_learns_how_many(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    outlet = Outlet(writing)
    written = 0
    while not outlet.lost:  # ends when the pipe is full; a blocking write would hang here
        outlet.write("x" * 999 + "\n")
        written += 1
    outlet.write("lost too\n")
    assert outlet.lost == 2
    taken = os.read(reading, 2**20).decode()
    assert taken.count("\n") == written - 1
    outlet.write("again\n")
    assert os.read(reading, 4096).decode() == "(2 lines of this log were lost: nobody took them)\nagain\n"
    assert outlet.lost == 0
    os.close(reading)
    os.close(writing)


def test_a_full_disk_costs_lines_alone() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        outlet = Outlet(full.fileno())
        outlet.write("a line\n")
        assert outlet.lost == 1
