"""A reader that has seen enough ends what is printed, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from supervisor.output import columns, for_a_reader

PRINTS = """
import sys
from supervisor.output import for_a_reader
with for_a_reader():
    sys.stdout.write({text})
    {fails}
sys.exit(3)
"""


def printed_to(stdout: int, text: str = "'a page'", fails: str = "") -> subprocess.CompletedProcess[bytes]:
    code = PRINTS.format(text=text, fails=fails)
    return subprocess.run([sys.executable, "-c", code], stdout=stdout, stderr=subprocess.PIPE, check=False)


@pytest.fixture
def nobody() -> Iterator[int]:
    """A pipe whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.parametrize("text", ["'a page'", "'x' * 1_000_000"])
def test_nobody_who_reads_is_no_failure(nobody: int, text: str) -> None:
    """Whether it is noticed at once or when the buffer is written, and again at the interpreter's end."""
    done = printed_to(nobody, text)
    assert (done.returncode, done.stderr) == (3, b"")


def test_somebody_reads_all_of_it() -> None:
    done = printed_to(subprocess.PIPE)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"a page", b"")


def test_what_else_goes_wrong_is_the_commands_affair() -> None:
    with pytest.raises(OSError, match="full"), for_a_reader():
        raise OSError("the disk is full")


@pytest.mark.parametrize(("asked", "wide"), [("80", 80), ("300", 120), ("", 100), ("0", 100), ("wide", 100)])
def test_lines_are_as_wide_as_the_reader_sees_and_no_wider_than_can_be_read(
    monkeypatch: pytest.MonkeyPatch, asked: str, wide: int
) -> None:
    monkeypatch.setenv("COLUMNS", asked)
    assert columns() == wide
