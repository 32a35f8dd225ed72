"""How long each step of an end took, from its first one on."""

from __future__ import annotations

from supervisor.core.stopclock import StopClock
from supervisor.snapshot import StopView


def test_the_first_step_starts_the_clock_and_each_is_timed_from_there() -> None:
    stop = StopClock()
    stop.begins("evidence", 100.0)
    stop.begins("term", 103.0)
    stop.exited(104.0)
    stop.killing(105.0)
    stop.emptied(3, 106.0)
    stop.memory_back(108.0)
    assert stop.view == StopView("kill", exit_s=4.0, kill_s=5.0, empty_s=6.0, free_s=8.0, killed=3)
    assert (stop.stage, stop.began) == ("kill", 100.0)


def test_an_end_that_nobody_asked_for_begins_with_the_exit() -> None:
    stop = StopClock()
    stop.exited(50.0)
    stop.emptied(0, 50.5)
    assert stop.view == StopView("", exit_s=0.0, empty_s=0.5)


def test_a_kill_that_is_tried_again_and_memory_that_is_looked_at_again_count_from_the_first_time() -> None:
    stop = StopClock()
    stop.killing(10.0)
    stop.killing(40.0)
    stop.emptied(1, 41.0)
    stop.memory_back(45.0)
    stop.memory_back(99.0)
    assert stop.view == StopView("kill", kill_s=0.0, empty_s=31.0, free_s=35.0, killed=1)


def test_an_end_whose_exit_nobody_saw_begins_with_the_empty_tree() -> None:
    stop = StopClock()
    stop.emptied(2, 50.0)
    stop.memory_back(53.0)
    assert stop.view == StopView("", empty_s=0.0, free_s=3.0, killed=2)


def test_memory_is_not_back_before_the_last_process_is_gone() -> None:
    stop = StopClock()
    stop.begins("term", 10.0)
    stop.memory_back(11.0)
    assert stop.view == StopView("term")


def test_another_daemon_goes_on_with_it() -> None:
    stop = StopClock()
    stop.begins("term", 10.0)
    again = StopClock(stop.view, stop.began)
    again.exited(25.0)
    assert again.view == StopView("term", exit_s=15.0)
