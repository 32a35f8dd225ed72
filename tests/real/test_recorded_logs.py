"""The reader of logs against what a real SGLang printed: its phases, its end, and the price of its longest line."""

import time

import pytest

from supervisor.core.log.grammar import LogReader
from supervisor.events import LineMatched
from supervisor.lines import LineCutter
from supervisor.profile import load_profile
from tests.real.record import SCENARIOS, TARGET

# The first line of a start is 19 kB of arguments. A pattern that is quadratic in it took 26 s and deafened the daemon.
READ_LIMIT_CPU_S = 2.0


def read(name: str) -> list[LineMatched]:
    reader = LogReader(load_profile("sglang"), attempt=1)
    return reader.read(LineCutter().feed((TARGET / f"{name}.log").read_bytes())) + reader.finish()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_start_is_read_in_a_moment(name: str) -> None:
    read(name)  # builds the tables, which are kept
    begin = time.process_time()

    read(name)

    assert time.process_time() - begin < READ_LIMIT_CPU_S


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_phases_of_a_start_come_in_their_order(name: str) -> None:
    rules = [match.rule for match in read(name)]

    milestones = ["server-args", "dist-begin", "weights-begin", "weights-end", "pool-end", "uvicorn-up", "ready"]
    assert sorted(milestones, key=rules.index) == milestones


def test_both_ranks_are_told_apart() -> None:
    assert {match.rank for match in read("healthy-start-tp2") if match.rule == "weights-begin"} == {"TP0", "TP1"}


def test_a_killed_scheduler_is_named() -> None:
    assert "scheduler-dead" in [match.rule for match in read("killed-scheduler-tp1")]
