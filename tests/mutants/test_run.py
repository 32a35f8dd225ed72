"""Which mistakes a run tries: those of its seed, and none that an earlier run has tried."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.mutants.mutate import mutants
from tests.mutants.run import drawn, make

EVERY = [f"mistake {number}" for number in range(50)]


def test_the_same_seed_draws_the_same_and_another_one_others() -> None:
    assert drawn(EVERY, 10, 0, "1 door") == drawn(EVERY, 10, 0, "1 door")
    assert drawn(EVERY, 10, 0, "1 door") != drawn(EVERY, 10, 0, "2 door")
    assert len(set(drawn(EVERY, 10, 0, "1 door"))) == 10


@pytest.mark.parametrize("skip", [0, 12, 30, 50, 80])
def test_what_an_earlier_run_has_tried_is_left_out(skip: int) -> None:
    earlier = drawn(EVERY, skip, 0, "1 door") if skip else []
    others = drawn(EVERY, 0, skip, "1 door")
    assert sorted([*earlier, *others]) == sorted(EVERY)
    assert drawn(EVERY, 5, skip, "1 door") == drawn(EVERY, 5, skip, "1 door")
    assert set(drawn(EVERY, 5, skip, "1 door")) <= set(others)


SOURCE = """
import functools

def least():
    return 1

@functools.cache
def twice():
    return least() + least()
"""


def test_what_was_computed_before_a_mistake_is_computed_again() -> None:
    module = ModuleType("door")
    exec(SOURCE, vars(module))  # noqa: S102 - our own text
    assert module.twice() == 2
    (mistake,) = (one for one in mutants(SOURCE, "door") if one.what == "1 plus one")
    make(module, mistake)
    assert module.twice() == 4
