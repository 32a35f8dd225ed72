"""The timeline of a start as a small chart: who was where when, in a terminal's width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.chart import chart
from supervisor.snapshot import SpanView, StartupView

STAMP = "[2026-11-30 02:00:00]"
NOON = 43200.0  # of a day: a moment as the log's stamps have it


def drawn(*spans: SpanView, ended: float = NOON + 100, width: int = 54) -> list[str]:
    view = StartupView("weights", "weights", NOON, (), "", NOON, timeline=spans)
    return chart(view, ended, STAMP, width).splitlines()


def span(phase: str, begin: float, end: float | None, rank: str = "TP0") -> SpanView:
    return SpanView(rank, phase, NOON + begin, None if end is None else NOON + end)


def cells(row: str) -> str:
    return row[12:]


def test_a_start_that_took_no_time_has_no_chart() -> None:
    assert drawn() == []
    assert drawn(span("launch", 0, 0), ended=NOON) == []
    assert drawn(SpanView("TP0", "", NOON, NOON + 9)) == []


def test_each_phase_has_the_part_of_the_row_that_it_took() -> None:
    axis, row, legend = drawn(span("launch", 0, 50), span("weights", 50, 75), span("memory-pool", 75, None))
    assert cells(row) == "L" * 20 + "W" * 10 + "M" * 10, "forty columns of 54"
    assert row.startswith("  TP0 ")
    assert axis.endswith("12:01:40")
    assert "12:00:00 " in axis
    assert legend == "  L launch 50 s · W weights 25 s · M memory-pool 25 s"


def test_between_two_phases_others_are_waited_for() -> None:
    _, row, _ = drawn(span("launch", 0, 25), span("weights", 75, 100))
    assert cells(row) == "L" * 10 + "·" * 20 + "W" * 10


def test_who_came_later_begins_later() -> None:
    _, first, second, _ = drawn(span("launch", 0, 100), span("launch", 50, 100, "TP1"))
    assert (cells(first), cells(second)) == ("L" * 40, " " * 20 + "L" * 20)


def test_the_shortest_phase_is_seen() -> None:
    _, row, legend = drawn(span("launch", 0, 10), span("jit", 10, 10), span("weights", 100, 100))
    assert cells(row) == "L" * 4 + "J" + "·" * 34 + "W"
    assert "J jit 0 s" in legend


def test_the_legend_tells_the_longest_time_that_a_rank_was_in_a_phase() -> None:
    """A phase that is entered twice is added up, of one rank alone."""
    spans = (span("jit", 0, 10), span("launch", 10, 40), span("jit", 40, 50), span("jit", 0, 15, "TP1"))
    assert drawn(*spans)[-1] == "  J jit 20 s · L launch 30 s"


def test_the_launcher_has_a_row_only_where_nobody_else_has() -> None:
    assert drawn(span("launch", 0, 100, ""))[1].startswith("  launcher ")
    rows = drawn(span("launch", 0, 100, ""), span("launch", 0, 100))
    assert [row[2:6] for row in rows[1:-1]] == ["TP0 "]


@pytest.mark.parametrize(("ranks", "more"), [(16, []), (17, ["  … and 1 more"])])
def test_more_ranks_than_rows_are_counted(ranks: int, more: list[str]) -> None:
    rows = drawn(*(span("launch", 0, 100, f"TP{rank}") for rank in range(ranks)))
    assert [row[2:6].strip() for row in rows[1:17]] == [f"TP{rank}" for rank in range(16)]
    assert rows[17:-1] == more


def test_a_long_legend_goes_on_in_the_next_line() -> None:
    rows = drawn(*(span(f"{letter}-a-long-phase", at, at + 1) for at, letter in enumerate("abcdef")))
    assert len(rows) > 4
    assert all(len(row) <= 54 for row in rows)
    assert sum(row.count("long-phase") for row in rows) == 6


def letters(*phases: str) -> dict[str, str]:
    rows = drawn(*(span(phase, at, at + 1) for at, phase in enumerate(phases)), width=200)
    entries = [entry.strip() for row in rows[2:] for entry in row.split(" · ")]
    return {entry.split()[1]: entry[0] for entry in entries}


def test_a_letter_belongs_to_one_phase() -> None:
    assert letters("warmup", "weights", "pd-warmup") == {"warmup": "W", "weights": "E", "pd-warmup": "P"}
    assert letters("zero", "zone") == {"zero": "Z", "zone": "O"}
    many = letters(*(f"phase-{number}" for number in range(36)))
    assert len(set(many.values())) == 36
    assert letters(*(f"phase-{number}" for number in range(38)))["phase-37"] == "#"


@given(st.lists(st.tuples(st.text("abz-", min_size=1), st.floats(0, 99), st.floats(0, 99)), min_size=1, max_size=8))
def test_nothing_leaves_the_width(spans: list[tuple[str, float, float]]) -> None:
    rows = drawn(*(span(phase, begin, begin + length) for phase, begin, length in spans), ended=NOON + 200)
    assert len(rows[0]) <= 54
    assert len(cells(rows[1])) <= 40
