"""Whoever looks every so often looks at the moments that all of his period share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.pace import until_shared

PERIODS = st.floats(0.1, 600.0)
NOWS = st.floats(0.0, 1e7)


def test_the_next_shared_moment_is_waited_for_unless_it_comes_too_soon() -> None:
    assert until_shared(10.0, 53.0) == 7.0
    assert until_shared(10.0, 56.0) == 14.0, "sooner than half a period is too soon"
    assert until_shared(10.0, 60.0) == 10.0


@given(PERIODS, NOWS)
def test_nobody_waits_shorter_than_half_a_period_or_longer_than_one_and_a_half(period_s: float, now: float) -> None:
    assert period_s / 2 <= until_shared(period_s, now) <= period_s * 1.5


@given(PERIODS, NOWS, st.floats(0.0, 1.0))
def test_two_who_look_at_one_pace_meet(period_s: float, now: float, later: float) -> None:
    first, second = (moment + until_shared(period_s, moment) for moment in (now, now + later * period_s))
    apart = abs(second - first) % period_s
    assert min(apart, period_s - apart) < 1e-6
