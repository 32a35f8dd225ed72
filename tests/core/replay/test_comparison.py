"""Two lists of decisions side by side: alike, moved, or on one side only."""

from __future__ import annotations

from supervisor import actions as a
from supervisor.core.replay.comparison import Mark, Moment, compare, what
from supervisor.core.replay.rehearsal import Decision

SPAWN = Decision(1.0, a.Spawn(1))
STOPPING = Decision(50.0, a.Announce("lifecycle", "starting", "stopping", "stalled", 1))
KILL = Decision(60.0, a.KillTree(1))


def marks(then: list[Decision], now: list[Decision]) -> list[tuple[str, str]]:
    return [(row.mark.value, row.what) for row in compare(then, now, 1000.0)]


def test_what_is_alike_has_one_row() -> None:
    assert marks([SPAWN, KILL], [SPAWN, KILL]) == [("same", "spawn attempt 1"), ("same", "kill the tree")]


def test_the_daemons_own_lateness_is_no_difference() -> None:
    assert marks([SPAWN], [Decision(1.3, a.Spawn(1))]) == [("same", "spawn attempt 1")]


def test_another_moment_is_told_with_how_much_later() -> None:
    (row,) = compare([KILL], [Decision(70.0, a.KillTree(1))], 1000.0)
    assert (row.mark, row.later_s) == (Mark.MOVED, 10.0)
    assert row.moment == Moment(60.0, 1060.0)


def test_what_only_one_side_has_stands_in_the_order_of_time() -> None:
    assert marks([SPAWN, STOPPING], [SPAWN, KILL]) == [
        ("same", "spawn attempt 1"),
        ("then", "lifecycle stopping"),
        ("now", "kill the tree"),
    ]


def test_another_reason_is_no_difference_and_todays_is_shown() -> None:
    now = Decision(50.0, a.Announce("lifecycle", "running", "stopping", "another word", 1))
    (row,) = compare([STOPPING], [now], 0.0)
    assert (row.mark, row.reason) == (Mark.SAME, "another word")


def test_questions_and_minor_facets_are_not_compared() -> None:
    then = [Decision(1.0, a.Probe(1, 28.0)), Decision(1.0, a.Announce("readiness", "unknown", "success", "", 1))]
    assert compare(then, [Decision(1.0, a.CheckDevices(1))], 0.0) == ()


def test_the_signal_belongs_to_the_decision() -> None:
    assert [mark for mark, _ in marks([Decision(1.0, a.SignalTree(1, 15))], [Decision(1.0, a.SignalTree(1, 9))])] == [
        "then",
        "now",
    ]


def test_thousands_of_alike_decisions_cost_little() -> None:
    many = [Decision(float(at), a.Announce("verdict", "", "busy" if at % 2 else "idle", "", 1)) for at in range(20_000)]
    rows = compare(many, [*many, KILL], 0.0)
    assert len(rows) == 20_001
    assert all(row.daily for row in rows if row.mark is Mark.SAME)


def test_every_shown_decision_has_words() -> None:
    assert what(a.KeepEvidence(1, "why", 10.0)) == "keep the evidence"
    assert what(a.Announce("phase", "weights", "", "", 1)) == "phase -"
    assert what(a.Remember(1, a.StartRecord("k", 5.0, ()))) == "remember this start"


def test_moments_are_told_in_utc() -> None:
    assert Moment(0.0, 1_795_973_006.0).date == "2026-11-29 17:23:26"
    assert Moment(0.0, 1_795_973_006.0).clock == "17:23:26"
