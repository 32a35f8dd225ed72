"""Random histories of whole hosts: whatever happens, and whenever the daemon dies, the invariants hold.

A history that fails is shortened and printed; `python -m tests.fleet.soak --seed SEED --count 1` plays it again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from tests.fleet.moves import Kind, Move, moves
from tests.fleet.play import play, search

LENGTH = 10
LONGER = 20
# So many histories have to come to life when all is well again, and give the same actions when they are replayed.
ONE_OF = 20
ONE_OF_SLOW = 10


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


# Histories that have broken an invariant, as short as they could be made. They mean what they meant as long as a seed
# makes the same host; each error has a test of its own beside its module as well.
FOUND = {
    "a member of a pair that requires a fatal server was asked to start without an end": (
        37,
        (Move(Kind.DEATH, 5, 70), Move(Kind.TIME, 3, 24)),
    ),
    "a new daemon gave a slot away before it had taken up who was starting": (
        600,
        (Move(Kind.UNSPAWNABLE, 10, 23), Move(Kind.DEATH, 6, 799), Move(Kind.TIME, 10, 968)),
    ),
    "a mate was never told of a failure between two daemons": (
        1383,
        (Move(Kind.TIME, 0, 9), Move(Kind.DEATH, 0, 0), Move(Kind.TIME, 0, 6)),
    ),
    "a stopped server waited for the moment of its next canary": (
        518,
        (Move(Kind.TIME, 10, 839), Move(Kind.AWAY, 6, 871), Move(Kind.EXIT, 10, 213), Move(Kind.PAUSE, 4, 851)),
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_what_has_been_found(what: str) -> None:
    seed, history = FOUND[what]
    failure = play(seed, list(history))
    assert failure is None, str(failure)


@pytest.mark.parametrize("first", [0, 250, 500, 750])
def test_a_thousand_histories(first: int) -> None:
    histories(first, 250)


def test_long_histories() -> None:
    histories(50_000, 10, length=300)


@pytest.mark.slow
@pytest.mark.timeout(600)  # half a minute on a machine that has nothing else to do
@pytest.mark.parametrize("first", range(1_000, 11_000, 1_000))
def test_ten_thousand_histories(first: int) -> None:
    histories(first, 1_000, LONGER, ONE_OF_SLOW)


def test_a_seed_is_a_history_and_every_kind_of_move_occurs() -> None:
    assert moves(7, LENGTH) == moves(7, LENGTH) != moves(8, LENGTH)
    assert {move.kind for seed in range(60) for move in moves(seed, LONGER)} == set(Kind)
