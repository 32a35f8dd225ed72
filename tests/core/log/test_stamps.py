"""The times that logs print: with a date, without its year, or with the clock alone."""

from __future__ import annotations

import pytest

from supervisor.core.log.stamps import like, seconds, text

FULL, WITHOUT_YEAR, CLOCK = "2026-03-01 10:00:05", "03-01 10:00:05", "10:00:05"


@pytest.mark.parametrize("stamp", [FULL, WITHOUT_YEAR, CLOCK, "0004-02-29 23:59:59", "12-31 00:00:00"])
def test_a_stamp_read_and_written_is_itself(stamp: str) -> None:
    assert text(seconds(stamp), stamp) == stamp


def test_seconds_differ_by_what_lies_between() -> None:
    assert seconds("2026-03-01 00:00:01") - seconds("2026-02-28 23:59:59") == 2.0
    assert seconds("03-01 00:00:00") - seconds("02-28 00:00:00") == 2 * 86400, "without a year it may be a leap year"
    assert seconds("10:00:05,250") - seconds("10:00:04.5") == 0.75
    assert seconds("[2026-03-01T10:00:05 TP0]") == seconds(FULL)


@pytest.mark.parametrize("broken", ["", "nothing", "2026-03-01", "1 o'clock"])
def test_without_a_time_there_are_no_seconds(broken: str) -> None:
    assert seconds(broken) == 0.0


def test_a_day_that_no_month_has_is_no_day() -> None:
    assert seconds("2026-02-31 10:00:05") == seconds(CLOCK)


def test_a_moment_without_a_day_is_written_without_one_whatever_the_log_has() -> None:
    assert text(seconds(CLOCK), FULL) == CLOCK
    assert text(seconds(FULL), CLOCK) == CLOCK
    assert text(86400.0, FULL) == "0001-01-01 00:00:00"
    assert text(86399.0, FULL) == "23:59:59"


@pytest.mark.parametrize(
    ("moment", "stamp", "as_the_log"),
    [
        (FULL, "2026-04-01 00:00:00", FULL),
        (FULL, "04-01 00:00:00", WITHOUT_YEAR),
        (FULL, "00:00:00", CLOCK),
        (WITHOUT_YEAR, "2026-04-01 00:00:00", WITHOUT_YEAR),
        (WITHOUT_YEAR, "00:00:00", CLOCK),
        (CLOCK, "2026-04-01 00:00:00", CLOCK),
        (CLOCK, "00:00:00", CLOCK),
    ],
)
def test_a_moment_is_compared_with_as_much_of_a_date_as_the_log_has(moment: str, stamp: str, as_the_log: str) -> None:
    assert like(moment, stamp).strip() == as_the_log
    assert seconds(like(moment, stamp)) == seconds(as_the_log)
