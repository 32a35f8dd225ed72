"""What a log repeats is told first of all, then now and then with a count, and once more when the log falls silent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.log.repeats import BURST, UNTOLD, Repeats
from supervisor.events import LineMatched
from supervisor.profile import load_profile

PROFILE = load_profile("sglang")


def match(line: int, rule: str = "traceback") -> LineMatched:
    return LineMatched(1, line, rule, "TP0", text=f"line {line}", fields={"frames": "f"})


def repeats() -> Repeats:
    return Repeats(PROFILE)


def test_the_first_ones_are_told_as_they_are() -> None:
    lines = [match(line) for line in range(BURST)]
    assert repeats().told(lines, 100.0) == lines


def test_then_one_a_second_is_told_with_how_many_were_not() -> None:
    book = repeats()
    book.told([match(line) for line in range(BURST)], 100.0)
    assert book.told([match(line) for line in range(100, 150)], 100.5) == []
    (one,) = book.told([match(200), match(201)], 101.0)
    assert (one.line, one.fields) == (200, {"frames": "f", UNTOLD: "50"})
    assert (book.rest()[0].line, book.rest()) == (201, [])


def test_what_was_held_back_is_told_when_its_second_is_over_while_others_go_on_talking() -> None:
    book = repeats()
    book.told([match(line) for line in range(BURST + 2)], 100.0)
    assert book.told([match(50, "capture-bar")], 100.9) == [match(50, "capture-bar")]
    told = book.told([match(60, "capture-bar")], 101.1)
    assert [(one.line, one.fields.get(UNTOLD)) for one in told] == [(BURST + 1, "1"), (60, None)]


def test_of_what_is_read_by_sample_the_newest_of_each_rank_is_told_once_a_second() -> None:
    book = repeats()
    batches = [LineMatched(1, line, "decode", rank) for line in range(10) for rank in ("TP0", "DP1 TP0")]
    assert [(one.line, one.rank) for one in book.told(batches, 100.0)] == [(0, "TP0"), (0, "DP1 TP0")]
    assert [one.line for one in book.told(batches, 100.5)] == []
    assert [(one.line, one.fields) for one in book.told([], 101.0)] == [(9, {}), (9, {})]


def test_any_number_of_ranks_that_a_log_makes_up_is_told_and_not_remembered() -> None:
    lines = [LineMatched(1, line, "decode", f"TP{line}") for line in range(3000)]
    assert repeats().told(lines, 100.0) == lines


def test_the_newest_is_told_when_the_log_pauses_in_the_order_of_the_log() -> None:
    book = repeats()
    for rule in ("traceback", "another"):
        book.told([match(line, rule) for line in range(BURST)], 100.0)
    book.told([match(70), match(80, "another"), match(90)], 100.1)
    assert [(one.line, one.fields.get(UNTOLD)) for one in book.rest()] == [(80, None), (90, "1")]
    assert book.rest() == []


def test_a_pause_gives_back_as_many_as_it_has_seconds() -> None:
    book = repeats()
    book.told([match(line) for line in range(BURST)], 100.0)
    assert len(book.told([match(line) for line in range(50)], 110.0)) == 10
    assert len(book.told([match(line) for line in range(50)], 1e6)) == BURST


def test_each_match_of_a_rule_is_told_for_it_may_be_a_step_of_the_start() -> None:
    lines = [match(line, "capture-bar") for line in range(10 * BURST)]
    assert repeats().told(lines, 100.0) == lines


def test_signatures_do_not_take_each_others_turn() -> None:
    book = repeats()
    book.told([match(line) for line in range(3 * BURST)], 100.0)
    assert book.told([match(500, "another")], 100.0) == [match(500, "another")]


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 40)), max_size=30))
def test_every_match_is_told_or_counted(chunks: list[tuple[float, int]]) -> None:
    book, now, line, told = repeats(), 100.0, 0, []
    for pause_s, count in chunks:
        now += pause_s
        told += book.told([match(line + number) for number in range(count)], now)
        line += count
    told += book.rest()
    assert len(told) + sum(int(one.fields.get(UNTOLD, "0")) for one in told) == line
    assert not line or told[-1].line == line - 1, "what was said last is never left out"
