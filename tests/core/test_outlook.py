"""When a start will be ready, and how it usually goes, by the lengths of earlier ones."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from supervisor.core.outlook import laggards, progress, ready_at, usual
from supervisor.snapshot import DeadlineView, FacetView, ServerSnapshot, StartupView
from tests.metrics import fleet

NOW = fleet.NOW


def changed(**fields: object) -> ServerSnapshot:
    return msgspec.structs.replace(fleet.starting(), **fields)


def start(**fields: object) -> StartupView:
    made = fleet.starting().start
    assert made is not None
    return msgspec.structs.replace(made, **fields)


def test_the_usual_start_is_drawn_end_to_end() -> None:
    phases = usual(fleet.starting())

    assert [phase.phase for phase in phases][:4] == ["launch", "dist-init", "weights", "memory-pool"]
    assert phases[0].begin_s == 0
    assert all(one.end_s == other.begin_s for one, other in pairwise(phases))
    assert phases[-1].end_s == sum(fleet.PHASES.values())


def test_a_first_start_has_nothing_usual() -> None:
    unlearned = tuple(DeadlineView(phase, 60.0, None, 900.0, "profile") for phase in fleet.PHASES)

    assert usual(changed(deadlines=unlearned)) == ()
    assert ready_at(changed(deadlines=unlearned), NOW) is None


def test_ready_after_the_bar_and_what_usually_follows() -> None:
    """The slow rank's bar says 80 s; draft weights, draft graph and warm-up have not begun on any rank."""
    assert ready_at(fleet.starting(), NOW) == pytest.approx(NOW + 80 + 20 + 30 + 6)


def test_without_a_bar_what_is_left_of_the_usual_length_counts() -> None:
    alone = changed(start=start(phase="launch", since=NOW - 5, ranks=(), timeline=()))

    assert ready_at(alone, NOW) == pytest.approx(NOW + sum(fleet.PHASES.values()) - 5)


def test_a_late_start_is_expected_any_moment_never_in_the_past() -> None:
    late = changed(start=start(phase="warmup", since=NOW - 500, ranks=()))

    at = ready_at(late, NOW)
    assert at is not None
    assert at >= NOW


def test_beside_a_bar_that_stands_still_nothing_is_foretold() -> None:
    ranks = tuple(
        msgspec.structs.replace(rank, last_progress=NOW - 300) if rank.rank == "TP5" else rank for rank in start().ranks
    )
    assert ready_at(changed(start=start(ranks=ranks)), NOW) is None


@pytest.mark.parametrize("verdict", ["dead", "stalled"])
def test_of_a_start_that_is_lost_nothing_is_foretold(verdict: str) -> None:
    assert ready_at(changed(verdict=FacetView(verdict, NOW, "scheduler TP1 is gone")), NOW) is None


def test_who_is_not_starting_has_no_outlook() -> None:
    assert ready_at(fleet.running(), NOW) is None
    assert ready_at(fleet.fatal(), NOW) is None


def test_the_slowest_ranks_bar_is_the_progress() -> None:
    assert progress(start()) == pytest.approx(46 / 62)
    assert progress(start(ranks=())) is None


@pytest.mark.parametrize("ranks", [("TP5",), ("TP1", "TP5"), tuple(f"TP{rank}" for rank in range(7)), ()])
def test_laggards_are_all_that_lag(ranks: tuple[str, ...]) -> None:
    assert laggards(start(lagging=ranks)) == set(ranks)
