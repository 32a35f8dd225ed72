"""The daemon's log file: whole lines, in order, bounded, and never waited for."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from supervisor.shell.logfile import QUEUED_MAX, LogFile


def test_lines_are_there_once_it_is_closed(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "log"))
    for number in range(100):
        log.write(f"{number}\n")
    log.close()

    assert (tmp_path / "log").read_text().split() == [str(number) for number in range(100)]
    assert (tmp_path / "log").stat().st_mode & 0o777 & ~0o640 == 0


def test_at_its_size_it_moves_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    for number in range(6):  # each a daemon of its own, so that each line is one writing
        log = LogFile(str(tmp_path / "log"), size_bytes=1, kept=2)
        log.write(f"{number}\n")
        log.close()

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"log.1": "5\n", "log.2": "4\n"}


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "log"))
    log.write("one\n")
    while not (tmp_path / "log").exists():
        threading.Event().wait(0.01)
    (tmp_path / "log").rename(tmp_path / "log.old")
    log.write("two\n")
    log.close()

    assert (tmp_path / "log").read_text().endswith("two\n")


def test_a_disk_that_takes_nothing_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = LogFile(str(tmp_path / "none" / "log"))
    log.write("one\n")
    log.write("two\n")
    log.close()

    assert capsys.readouterr().err.count("cannot write the log file") == 1


def test_what_a_disk_has_refused_is_written_when_it_takes_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = LogFile(str(tmp_path / "later" / "log"))
    log.write("one\n")
    while "cannot write" not in capsys.readouterr().err:
        threading.Event().wait(0.01)
    log.write("two\n")
    (tmp_path / "later").mkdir()
    log.close(10)
    assert (tmp_path / "later" / "log").read_text() == "one\ntwo\n"


def test_what_is_lost_at_the_end_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = LogFile(str(tmp_path / "none" / "log"))
    for number in range(3):
        log.write(f"{number}\n")
    log.close(10)
    assert capsys.readouterr().err.endswith("ends without its last 3 lines\n")


FILLS_UP = """
import os, resource, signal, sys
from supervisor.shell.logfile import LogFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # EFBIG in the midst of a writing, as ENOSPC is on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (100, -1))
log = LogFile(sys.argv[1])
log.write("whole\\n")
log.write("x" * 150 + "\\n")
while b"cannot write" not in os.read(int(sys.argv[2]), 4096): pass
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
log.close(10)
"""


def test_no_half_line_is_left_of_a_disk_that_was_full(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    done = subprocess.run(
        [sys.executable, "-c", FILLS_UP, str(tmp_path / "log"), str(reading)],
        stderr=writing,
        pass_fds=[reading],
        timeout=60,
    )
    os.close(reading)
    os.close(writing)
    assert done.returncode == 0
    assert (tmp_path / "log").read_text() == "whole\n" + "x" * 150 + "\n"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("untouched")
    (tmp_path / "log").symlink_to(tmp_path / "secret")
    log = LogFile(str(tmp_path / "log"))
    log.write("x\n")
    log.close()

    assert (tmp_path / "secret").read_text() == "untouched"


def test_a_disk_that_hangs_costs_lines_and_no_time(tmp_path: Path) -> None:
    """A FIFO whose reader does not read stands for it: its writer gets EAGAIN, and what waits stays bounded."""
    os.mkfifo(tmp_path / "log")
    reading = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    log = LogFile(str(tmp_path / "log"))
    began = time.monotonic()
    for _ in range(QUEUED_MAX * 2):
        log.write("x" * 80 + "\n")
    log.close(0.5)
    assert time.monotonic() - began < 5
    os.close(reading)
