"""Passing over what says nothing new: the lines that matter, with their true numbers, however the log is cut."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor.core.log.skim import Skimmer
from supervisor.lines import LineCutter
from supervisor.profile import load_profile

PROFILE = load_profile("sglang")
LOAD = "[2026-03-01 10:00:00 TP0] Load weight begin. avail mem=78.00 GB"
CALM = "[2026-03-01 10:00:05 TP0] Decode batch, #running-req: 1, #token: {}, token usage: 0.00, gen throughput (token/s): 8.00, #queue-req: 0"
PLAIN = "[2026-03-01 10:00:06 TP0] nothing of any interest, number {}"
MARKED = "[2026-03-01 10:00:07 TP0] nothing of any interest, but: CUDA out of memory. Tried to allocate 2.00 GiB"
LAST = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def skim(text: str, size: int = 1 << 20) -> tuple[list[tuple[int, str]], int]:
    """What is to be read, as (number, text), and how many lines there were."""
    data, skimmer = text.encode(), Skimmer(PROFILE)
    runs = [line for at in range(0, len(data), size) for run in skimmer.feed(data[at : at + size]) for line in run]
    lines = [(line.number, line.text) for line in (*runs, *skimmer.finish())]
    return lines, skimmer.lines


def every(text: str) -> list[tuple[int, str]]:
    return [(line.number, line.text) for line in LineCutter().feed(text.encode())]


def joined(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


SERVED = [CALM.format(number) for number in range(200)]
STORY = joined(LOAD, *SERVED, LAST, *(PLAIN.format(number) for number in range(50)), MARKED, SERVED[0], LOAD)
TOLD = {1: LOAD, 202: LAST, 253: MARKED, 255: LOAD}


def test_of_calm_lines_the_last_before_something_else_is_told() -> None:
    lines, count = skim(STORY)
    assert count == 255
    assert lines == [(1, LOAD), (201, SERVED[-1]), (202, LAST), (253, MARKED), (254, SERVED[0]), (255, LOAD)]


@pytest.mark.parametrize("size", [1, 7, 150, 151, 1000, 5000])
def test_however_it_is_cut_what_matters_is_read_once_with_its_own_number(size: int) -> None:
    lines, count = skim(STORY, size)
    assert count == 255
    truth = every(STORY)
    assert all(line in truth for line in lines), "numbers are true"
    numbers = [number for number, _ in lines]
    assert numbers == sorted(set(numbers))
    assert {number: text for number, text in lines if number in TOLD} == TOLD


def test_a_log_that_only_says_that_it_serves_leaves_one_line() -> None:
    assert skim(joined(*SERVED)) == ([(200, SERVED[-1])], 200)
    assert skim(joined(*(PLAIN.format(number) for number in range(9)))) == ([], 9)


def test_what_follows_the_last_line_end_is_read_at_the_end() -> None:
    lines, _ = skim(joined(LOAD) + MARKED)
    assert lines == [(1, LOAD), (2, MARKED)]
    assert skim("") == ([], 0)


def test_a_bar_within_a_record_is_read() -> None:
    bar = PLAIN.format(1) + "\r" + "Loading: 50%| 1/2"
    lines, count = skim(joined(bar, LOAD))
    assert [text for _, text in lines][-1] == LOAD
    assert len(lines) >= 2
    assert count == every(joined(bar, LOAD))[-1][0]


@pytest.mark.parametrize("size", [1 << 12, 1 << 16, 1 << 20])
def test_a_line_without_an_end_is_handed_on_and_is_one_line_all_the_same(size: int) -> None:
    text = joined("x" * 600_000, LOAD, *SERVED[:3], LAST)
    lines, count = skim(text, size)
    assert count == 6
    assert {number: text for number, text in lines if number in (2, 6)} == {2: LOAD, 6: LAST}


def test_an_engine_whose_calm_lines_nobody_knows_is_read_whole() -> None:
    profile = replace(PROFILE, grammar=replace(PROFILE.grammar, calm=""))
    skimmer = Skimmer(profile)
    lines = [line for run in skimmer.feed(STORY.encode()) for line in run]
    assert [(line.number, line.text) for line in lines] == every(STORY)
