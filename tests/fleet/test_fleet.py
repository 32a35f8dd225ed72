"""Random histories of whole hosts: whatever happens, and whenever the daemon dies, the invariants hold.

A history that fails is shortened and printed; `python -m tests.fleet.soak --seed SEED --count 1` plays it again.
"""

from __future__ import annotations

import pytest

from tests.fleet.moves import Kind, moves
from tests.fleet.play import search

LENGTH = 20
PLAYED_AGAIN = 5  # every fifth history also has to give the same actions when it is replayed


def histories(first: int, count: int, length: int = LENGTH) -> None:
    for seed in range(first, first + count):
        failure = search(seed, length, replay=seed % PLAYED_AGAIN == 0)
        assert failure is None, str(failure)


@pytest.mark.parametrize("first", [0, 250, 500, 750])
def test_a_thousand_histories(first: int) -> None:
    histories(first, 250)


def test_long_histories() -> None:
    histories(50_000, 20, length=300)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 11_000, 1_000))
def test_ten_thousand_histories(first: int) -> None:
    histories(first, 1_000)


def test_a_seed_is_a_history_and_every_kind_of_move_occurs() -> None:
    assert moves(7, LENGTH) == moves(7, LENGTH) != moves(8, LENGTH)
    assert {move.kind for seed in range(60) for move in moves(seed, LENGTH)} == set(Kind)
