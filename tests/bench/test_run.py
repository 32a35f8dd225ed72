"""The benches' table and page: the ratio first, budgets judged, and names that cannot break the page."""

import pytest

from bench.harness import BENCHES, Better, Measurement, bench
from bench.run import figure, report, row, table

FASTER = Measurement("a status", "ms", 50, "peer", 100.0, budget=100)
SLOWER = Measurement("a read", "MB/s", 10, "peer | two", 40.0, Better.HIGHER, budget=40)
ALONE = Measurement("a page", "KB", 3, "-", None)


@pytest.fixture
def named():
    @bench("only-here")
    def only_here():
        yield FASTER

    yield "only-here"
    del BENCHES["only-here"]


def test_a_ratio_above_one_is_good_whatever_the_unit():
    assert FASTER.ratio == 2
    assert SLOWER.ratio == 0.25
    assert ALONE.ratio is None


@pytest.mark.parametrize(
    ("better", "ours", "met"),
    [
        (Better.LOWER, 99.0, True), (Better.LOWER, 100.0, True), (Better.LOWER, 101.0, False),
        (Better.HIGHER, 99.0, False), (Better.HIGHER, 100.0, True), (Better.HIGHER, 101.0, True),
    ],
)  # fmt: skip
def test_a_budget_is_kept_up_to_its_edge(better, ours, met):
    assert Measurement("x", "ms", ours, "-", None, better, budget=100).met is met


def test_without_a_budget_nothing_is_judged():
    assert ALONE.met is None
    assert row(ALONE)[-1] == ""


def test_a_row_says_whether_the_budget_is_kept():
    assert row(FASTER) == ("2.00", "a status", "50.0", "peer", "100", "ms", "100 kept")
    assert row(SLOWER)[-1] == "40 MISSED"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0469, "0.047"), (0.123, "0.12"), (1.5, "1.50"), (30.07, "30.1"), (1018.4, "1018")]
)
def test_a_figure_shows_the_digits_that_count(value, text):
    assert figure(value) == text


def test_the_table_begins_with_the_ratio():
    lines = table([FASTER, ALONE]).splitlines()
    assert lines[0].startswith("ratio")
    assert lines[1].startswith("2.00")
    assert lines[2].startswith("-")


def test_the_page_has_every_bench_with_its_purpose(named):
    page = report({named: [FASTER, SLOWER]})
    assert f"## {named}\n\nThe benches' table and page" in page
    assert "| 2.00 | a status | 50.0 | peer | 100 | ms | 100 kept |" in page


def test_a_bar_in_a_name_does_not_break_the_page(named):
    assert "| peer \\| two |" in report({named: [SLOWER]})
