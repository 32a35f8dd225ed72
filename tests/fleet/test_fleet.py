"""Random histories of whole hosts: whatever happens, and whenever the daemon dies, the invariants hold.

A history that fails is shortened and printed; `python -m tests.fleet.soak --seed SEED --count 1` plays it again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from tests.fleet.moves import Kind, moves
from tests.fleet.play import search

LENGTH = 10
LONGER = 20
# So many histories have to come to life when all is well again, and give the same actions when they are replayed.
ONE_OF = 20
ONE_OF_SLOW = 5


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What the shell logs of each history is a good part of its price."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


def histories(first: int, count: int, length: int = LENGTH, thorough: int = ONE_OF) -> None:
    for seed in range(first, first + count):
        failure = search(seed, length, thorough=seed % thorough == 0)
        assert failure is None, str(failure)


@pytest.mark.parametrize("first", [0, 250, 500, 750])
def test_a_thousand_histories(first: int) -> None:
    histories(first, 250)


def test_long_histories() -> None:
    histories(50_000, 10, length=300)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 11_000, 1_000))
def test_ten_thousand_histories(first: int) -> None:
    histories(first, 1_000, LONGER, ONE_OF_SLOW)


def test_a_seed_is_a_history_and_every_kind_of_move_occurs() -> None:
    assert moves(7, LENGTH) == moves(7, LENGTH) != moves(8, LENGTH)
    assert {move.kind for seed in range(60) for move in moves(seed, LONGER)} == set(Kind)
