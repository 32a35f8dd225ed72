"""What earlier starts teach: robust, shy, slowly forgotten, and explained."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from supervisor.actions import PhaseRecord, StartRecord
from supervisor.config import DetectorMode
from supervisor.core.budgets import Budgets
from supervisor.core.history import FEW, KEPT, History, PhaseClock
from supervisor.core.settings import DetectorSettings, PhaseLimit, Settings

LIMITS = {"weights": PhaseLimit(600, 3600, 300, 30), "target-graph": PhaseLimit(300, 1800, 150, 20)}


def start(silence_s: float, seconds: float = 60.0, *, key: str = "k", capacity: int | None = None) -> StartRecord:
    return StartRecord(key, seconds * 2, (PhaseRecord("weights", seconds, silence_s),), capacity)


def budgets(*records: StartRecord, learned: DetectorMode = DetectorMode.AUTO) -> Budgets:
    settings = Settings(name="x", deadlines=LIMITS, history_key="k", detectors=DetectorSettings(learned=learned))
    return Budgets(settings, History(records))


def test_without_history_the_configured_limits_act() -> None:
    assert budgets().limit("weights") == LIMITS["weights"]
    assert "no earlier start" in budgets().views()[0].text


def test_no_deadline_is_told_as_none() -> None:
    limits = {"healthy": PhaseLimit(math.inf, math.inf), "jit": PhaseLimit(math.inf, 60.0)}
    settings = Settings(name="x", deadlines=limits, history_key="k")
    assert [view.text for view in Budgets(settings, History([])).views()] == [
        "healthy: no earlier start, no deadline",
        "jit: no earlier start, deadline 60 s in all",
    ]


def test_a_few_starts_are_only_observed() -> None:
    it = budgets(start(20), start(24))
    assert it.limit("weights").stall_s == 600
    assert it.observed_stall_s("weights") == 48


def test_enough_starts_shorten_the_patience_with_silence() -> None:
    it = budgets(start(20), start(24), start(22))
    limit = it.limit("weights")
    assert limit.source == "learned"
    assert 44 <= limit.stall_s <= 90
    assert limit.limit_s == 3600
    assert it.observed_stall_s("weights") is None


def test_learning_never_goes_below_the_floor_nor_above_what_is_configured() -> None:
    assert budgets(*[start(0.1)] * 5).limit("weights").stall_s == 30
    assert budgets(*[start(500.0)] * 5).limit("weights").stall_s == 600


def test_one_wild_start_does_not_spoil_the_lesson() -> None:
    tame = budgets(*[start(10)] * 7).limit("weights").stall_s
    assert budgets(*[start(10)] * 7, start(550)).limit("weights").stall_s == tame


def test_starts_of_another_command_teach_nothing() -> None:
    assert budgets(*[start(10, key="other")] * 9).limit("weights").source == "profile"


def test_old_starts_are_forgotten() -> None:
    it = budgets(*[start(100)] * KEPT, *[start(24)] * KEPT)
    assert it.limit("weights").stall_s == 48


def test_observe_mode_never_acts_and_enforce_acts_at_once() -> None:
    assert budgets(*[start(10)] * 9, learned=DetectorMode.OBSERVE).limit("weights").source == "profile"
    assert budgets(start(10), learned=DetectorMode.ENFORCE).limit("weights").source == "learned"


def test_it_explains_itself() -> None:
    text = budgets(*[start(10, 31)] * 4).views()[0].text
    assert text.startswith("weights: 4 starts, median 31 s, longest silence 10 s, deadline ")
    assert "(learned)" in text


def test_the_usual_capacity_is_that_of_good_starts() -> None:
    history = History([start(1, 50, capacity=900), start(1, 60, capacity=1000), start(1, 70)])
    assert history.usual_capacity("k") == 1000
    assert history.usual_capacity("other") is None


def test_a_phase_clock_measures_phases_and_their_longest_silence() -> None:
    clock = PhaseClock("", 0.0)
    clock.progress("weights", 5.0)
    clock.progress("weights", 7.0)
    clock.progress("weights", 20.0)
    clock.progress("target-graph", 22.0)
    records = {record.phase: record for record in clock.records(30.0)}
    assert records["weights"] == PhaseRecord("weights", 17.0, 13.0)
    assert records["target-graph"] == PhaseRecord("target-graph", 8.0, 8.0)


def test_a_phase_that_comes_twice_counts_both_times() -> None:
    clock = PhaseClock("weights", 0.0)
    for phase, at in (("memory-pool", 10.0), ("weights", 12.0), ("memory-pool", 15.0)):
        clock.progress(phase, at)
    records = {record.phase: record.seconds for record in clock.records(16.0)}
    assert records == {"weights": 13.0, "memory-pool": 3.0}


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=40), st.sampled_from(list(DetectorMode)))
def test_whatever_was_seen_the_deadline_lies_between_floor_and_configuration(silences, mode) -> None:
    it = budgets(*[start(silence) for silence in silences], learned=mode)
    limit = it.limit("weights")
    assert 30 <= limit.stall_s <= 600
    assert limit.idle_s <= limit.stall_s or math.isinf(limit.idle_s) or limit.idle_s <= 300
    if len(silences) < FEW and mode is not DetectorMode.ENFORCE:
        assert limit.source == "profile"


@pytest.mark.parametrize("phase", list(LIMITS))
def test_a_deadline_never_ends_a_start_that_goes_as_the_learned_ones_did(phase: str) -> None:
    records = [StartRecord("k", 100, (PhaseRecord(phase, 50, s),)) for s in (8, 9, 10, 11, 12)]
    assert budgets(*records).limit(phase).stall_s > 2 * 12


# --- the pace of a start ---------------------------------------------------------------------------------------------

USUAL = {"launch": 10.0, "weights": 60.0, "memory-pool": 0.2, "target-graph": 20.0}


def paced(*passed: tuple[str, float]) -> float:
    """The pace of a start that has gone into these phases at these times, and moved in the last one a moment later."""
    clock = PhaseClock("launch", 0.0)
    for phase, at in passed:
        clock.progress(phase, at)
    return clock.pace(USUAL.get)


def test_a_start_as_fast_as_usual_has_the_pace_of_one() -> None:
    assert paced(("weights", 10.0), ("memory-pool", 70.0), ("target-graph", 70.2)) == 1.0


def test_until_a_phase_has_ended_the_host_may_be_busy_for_all_we_know() -> None:
    assert paced() == 3.0


def test_a_busy_host_slows_everything_and_so_the_next_phase() -> None:
    assert paced(("weights", 30.0), ("memory-pool", 210.0), ("target-graph", 210.6)) == 3.0


def test_a_cold_cache_slows_one_phase_and_not_those_after_it() -> None:
    cold = (("weights", 10.0), ("weights", 400.0))
    assert paced(*cold) == 390.0 / 60.0
    assert paced(*cold, ("memory-pool", 480.0), ("target-graph", 480.2), ("warmup", 500.2)) == 1.0


def test_a_stall_itself_does_not_count_as_slowness() -> None:
    clock = PhaseClock("launch", 0.0)
    clock.progress("weights", 10.0)
    assert clock.pace(USUAL.get) == 1.0  # whenever it is asked: only progress moves it


def test_a_slow_start_gets_more_patience_with_silence_unless_it_is_idle() -> None:
    it = budgets(*[start(20)] * 5)
    assert it.limit("weights").stall_s == 40
    assert it.limit("weights", pace=4.0).stall_s == 160
    assert it.limit("weights", pace=4.0).idle_s == 40
    assert it.limit("weights", pace=100.0).stall_s == 600


def test_a_deadline_that_is_switched_off_is_not_switched_on_by_learning() -> None:
    limits = {"healthy": PhaseLimit(math.inf, math.inf, math.inf, 0.0)}
    records = [StartRecord("k", 100, (PhaseRecord("healthy", 0.1, 0.1),))] * 5
    for mode in DetectorMode:
        settings = Settings(name="x", deadlines=limits, history_key="k", detectors=DetectorSettings(learned=mode))
        it = Budgets(settings, History(records))
        assert math.isinf(it.limit("healthy").stall_s)
        assert it.observed_stall_s("healthy") is None


def test_an_idle_deadline_that_is_switched_off_stays_off() -> None:
    limits = {"weights": PhaseLimit(600, 3600, math.inf, 30)}
    settings = Settings(name="x", deadlines=limits, history_key="k")
    limit = Budgets(settings, History([start(20)] * 5)).limit("weights")
    assert (limit.stall_s, limit.idle_s, limit.source) == (40, math.inf, "learned")


def test_what_is_usual_is_told_by_how_often_it_was_seen() -> None:
    assert budgets().usual("weights") == ""
    assert budgets(start(12)).usual("weights") == "never silent for more than 12 s once before"
    assert budgets(start(12), start(20)).usual("weights") == "never silent for more than 20 s in 2 starts"


def test_a_deadlines_view_tells_limits_lesson_and_mode() -> None:
    (view, _) = budgets().views()
    assert (view.phase, view.stall_s, view.idle_s, view.limit_s, view.source) == ("weights", 600, 300, 3600, "profile")
    assert (view.samples, view.median_s, view.longest_silence_s, view.mode) == (0, None, None, "enforce")
    (view, _) = budgets(start(20, 31)).views()
    assert (view.samples, view.median_s, view.longest_silence_s, view.mode) == (1, 31, 20, "observe")
    assert view.text.startswith("weights: 1 start, median 31 s")
    (view, _) = budgets(*[start(20, 31)] * 3).views()
    assert (view.samples, view.mode, view.source, view.stall_s) == (3, "enforce", "learned", 40)


def test_a_new_lesson_is_in_the_views_that_were_told_before() -> None:
    history = History([])
    told = Budgets(Settings(name="x", deadlines=LIMITS, history_key="k"), history)
    before = told.views()
    history.add(start(20, 31))
    told.learn_anew()
    assert (before[0].samples, told.views()[0].samples) == (0, 1)


def test_deadlines_that_there_are_not_are_told_as_none() -> None:
    limits = {"healthy": PhaseLimit(math.inf, math.inf), "jit": PhaseLimit(300.0, math.inf, 100.0)}
    views = Budgets(Settings(name="x", deadlines=limits, history_key="k"), History([])).views()
    assert [(view.stall_s, view.idle_s, view.limit_s) for view in views] == [(None, None, None), (300.0, 100.0, None)]
