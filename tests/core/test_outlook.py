"""When a start will be ready, and how it usually goes, by the lengths of earlier ones."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from supervisor.core.outlook import laggards, overdue, progress, ready_at, usual
from supervisor.snapshot import DeadlineView, FacetView, ProgressView, RankView, ServerSnapshot, StartupView
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
    late = changed(start=start(phase="warmup", since=NOW - 30, ranks=()))

    at = ready_at(late, NOW)
    assert at is not None
    assert at >= NOW
    assert not overdue(late, NOW)


@pytest.mark.parametrize(("phase", "usual_s"), [("warmup", 6.0), ("draft-graph", 30.0)])
def test_of_a_phase_that_lasts_far_longer_than_usual_nothing_is_foretold(phase: str, usual_s: float) -> None:
    """Or the start would be expected in the same two minutes for the rest of the night."""
    for late_s, known in ((usual_s, True), (usual_s + 59, True), (usual_s + 61, False), (8 * 3600.0, False)):
        late = changed(start=start(phase=phase, since=NOW - late_s, ranks=()))
        assert (ready_at(late, NOW) is not None, overdue(late, NOW)) == (known, not known), late_s


def test_a_phase_of_an_hour_is_late_after_two() -> None:
    known = (DeadlineView("weights", 60.0, None, None, "learned", median_s=3600.0),)
    for minutes, late in ((119, False), (121, True)):
        one = changed(deadlines=known, start=start(phase="weights", since=NOW - minutes * 60, ranks=()))
        assert overdue(one, NOW) is late


def test_a_bar_that_goes_on_tells_of_the_end_however_late() -> None:
    late = changed(start=start(since=NOW - 8 * 3600.0))
    assert ready_at(late, NOW) is not None
    assert not overdue(late, NOW)


def test_who_is_not_starting_or_was_never_is_not_overdue() -> None:
    unlearned = tuple(DeadlineView(phase, 60.0, None, 900.0, "profile") for phase in fleet.PHASES)
    assert not overdue(changed(deadlines=unlearned, start=start(since=0.0, ranks=())), NOW)
    assert not overdue(fleet.running(), NOW)
    assert not overdue(changed(start=None), NOW)


def test_beside_a_bar_that_stands_still_nothing_is_foretold() -> None:
    ranks = tuple(
        msgspec.structs.replace(rank, last_progress=NOW - 300) if rank.rank == "TP5" else rank for rank in start().ranks
    )
    still = changed(start=start(ranks=ranks))
    assert ready_at(still, NOW) is None
    assert overdue(still, NOW)


@pytest.mark.parametrize("verdict", ["dead", "stalled"])
def test_of_a_start_that_is_lost_nothing_is_foretold(verdict: str) -> None:
    lost = changed(verdict=FacetView(verdict, NOW, "scheduler TP1 is gone"))
    assert ready_at(lost, NOW) is None
    assert overdue(lost, NOW)


def test_who_is_not_starting_has_no_outlook() -> None:
    assert ready_at(fleet.running(), NOW) is None
    assert ready_at(fleet.fatal(), NOW) is None


def test_the_slowest_ranks_bar_is_the_progress() -> None:
    assert progress(start()) == pytest.approx(46 / 62)
    assert progress(start(ranks=())) is None


@pytest.mark.parametrize("ranks", [("TP5",), ("TP1", "TP5"), tuple(f"TP{rank}" for rank in range(7)), ()])
def test_laggards_are_all_that_lag(ranks: tuple[str, ...]) -> None:
    assert laggards(start(lagging=ranks)) == set(ranks)


def test_of_the_bars_of_a_phase_the_shortest_counts_and_no_other_phases() -> None:
    def rank(name: str, phase: str, done: int | None) -> RankView:
        return RankView(name, "x", phase, NOW, None if done is None else ProgressView(done, 10))

    ranks = (
        rank("TP0", "weights", 7),
        rank("TP1", "weights", 4),
        rank("TP2", "launch", 1),
        rank("TP3", "weights", None),
    )
    assert progress(start(phase="weights", ranks=ranks)) == 0.4
    assert progress(start(phase="warmup", ranks=ranks)) is None


def test_a_phase_that_no_start_had_before_delays_nothing_that_is_known() -> None:
    """A compiler that runs for the first time: how long, nobody can tell; what follows takes as long as ever."""
    odd = changed(start=start(phase="jit", since=NOW - 50, ranks=(), timeline=()))
    assert ready_at(odd, NOW) == pytest.approx(NOW + sum(fleet.PHASES.values()))
