"""Named moments: one of each kind, the earliest first, taken out one at a time."""

from __future__ import annotations

from supervisor.core.timers import Timer, Timers


def test_the_earliest_moment_is_the_deadline() -> None:
    timers = Timers()
    assert timers.earliest() is None
    timers.set(Timer.PROBE, 5.0)
    timers.set(Timer.PHASE, 3.0)
    assert timers.earliest() == 3.0
    timers.set(Timer.PHASE, 9.0)
    assert timers.earliest() == 5.0


def test_due_moments_are_taken_out_in_order_one_at_a_time() -> None:
    timers = Timers()
    for timer, at in ((Timer.PROBE, 2.0), (Timer.PHASE, 1.0), (Timer.GRACE, 9.0)):
        timers.set(timer, at)
    assert timers.pop_due(0.5) is None
    assert timers.pop_due(5.0) is Timer.PHASE
    timers.cancel(Timer.PROBE)
    assert timers.pop_due(5.0) is None
    assert timers.at(Timer.GRACE) == 9.0


def test_what_is_cancelled_twice_or_never_set_does_not_matter() -> None:
    timers = Timers()
    timers.set(Timer.KILL, 1.0)
    timers.cancel(Timer.KILL, Timer.KILL, Timer.CHECK)
    assert timers.earliest() is None
    timers.set(Timer.KILL, 1.0)
    timers.clear()
    assert timers.pop_due(10.0) is None
