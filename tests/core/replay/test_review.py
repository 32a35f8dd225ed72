"""A recorded night decided anew: the same rules say the same; other rules differ where they must, and nowhere else."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from msgspec.structs import replace

from supervisor import events as e
from supervisor.actions import Announce, PhaseRecord, StartRecord
from supervisor.core.replay.comparison import Mark, Row
from supervisor.core.replay.review import Section, Step, review, runs
from supervisor.core.settings import PhaseLimit, Settings
from tests.core.recording import BEGIN, CAPTURING, LOADING, SETTINGS, Night, making, stalled_night


def reviewed(steps: list[Step], settings: Settings = SETTINGS) -> list[Section]:
    return list(review(steps, making(settings)))


def weights(stall_s: float) -> Settings:
    return replace(SETTINGS, deadlines={**SETTINGS.deadlines, "weights": PhaseLimit(stall_s, 3600.0)})


def rows(sections: list[Section], *marks: Mark) -> list[Row]:
    return [row for section in sections for row in section.rows if row.mark in marks]


def differing(sections: list[Section]) -> list[Row]:
    return rows(sections, Mark.MOVED, Mark.THEN, Mark.NOW)


# --- the same rules --------------------------------------------------------------------------------------------------


def test_the_same_rules_decide_the_same() -> None:
    (section,) = reviewed(stalled_night().steps)
    assert {row.mark for row in section.rows} == {Mark.SAME}
    assert section.note == ""
    assert [row.what for row in section.rows if row.what.startswith("spawn")] == ["spawn attempt 1", "spawn attempt 2"]


def test_what_a_daemon_that_took_over_says_again_is_no_decision() -> None:
    """An upgrade or a daemon's death in the middle of an attempt, which goes on as it did."""
    steps = stalled_night().steps
    index, said = next(
        (index, action)
        for index, step in enumerate(steps)
        for action in step.then
        if isinstance(action, Announce) and (action.facet, action.after) == ("phase", "weights")
    )
    again = replace(said, before="")
    steps = [*steps[: index + 1], Step(steps[index].at, steps[index].wall, e.Ticked(), (again,)), *steps[index + 1 :]]

    assert differing(reviewed(steps)) == []


def test_reviewing_twice_gives_the_same_rows() -> None:
    steps = stalled_night().steps
    assert reviewed(steps, weights(30)) == reviewed(steps, weights(30))


@given(
    late_s=st.floats(0, 0.4),
    story=st.lists(
        st.tuples(
            st.floats(0.01, 80),
            st.sampled_from(["load", "capture", "ready", "exit", "restart", "stop", "start", "sick", "well", "rank"]),
        ),
        max_size=14,
    ),
)
@hypothesis_settings(max_examples=25, deadline=None)
def test_whatever_happened_the_same_rules_decide_the_same(late_s: float, story: list[tuple[float, str]]) -> None:
    night = Night(late_s=late_s)
    night.tell(e.StartRequested("autostart"))
    for pause_s, what in story:
        night.until(night.now + pause_s)
        happen(night, what)
    night.until(night.now + 150)
    assert differing(reviewed(night.steps)) == []
    assert [section.note for section in reviewed(night.steps)] == [""]


def happen(night: Night, what: str) -> None:
    view = night.server.snapshot()
    match what:
        case "load" if view.pid:
            night.log(LOADING)
        case "capture" if view.pid:
            night.log(CAPTURING)
        case "ready" if view.pid:
            night.ready()
        case "exit" if view.pid:
            night.tell(e.Exited(view.attempt, 1))
        case "rank" if view.pid:
            night.tell(e.RoleDied(view.attempt, 9, "scheduler", "TP1"))
        case "restart":
            night.tell(e.RestartRequested("root"))
        case "stop":
            night.tell(e.StopRequested("root"))
        case "start":
            night.tell(e.StartRequested("root"))
        case "sick":
            night.world.health = e.ProbeOutcome.TIMEOUT
        case "well":
            night.world.health = e.ProbeOutcome.OK


# --- other rules -----------------------------------------------------------------------------------------------------


def test_shorter_patience_ends_it_earlier_and_goes_on_with_the_next_recorded_attempt() -> None:
    first, second = reviewed(stalled_night().steps, weights(30))
    assert first.attempt == 1
    assert first.note == "ended now, not then"
    (stopping,) = [row for row in first.rows if row.what == "lifecycle stopping"]
    assert stopping.mark is Mark.MOVED
    assert stopping.later_s == pytest.approx(-70, abs=0.5)
    assert "30 s are allowed" in stopping.reason
    assert second.attempt == 2
    assert {row.mark for row in second.rows} == {Mark.SAME}


def test_where_an_earlier_end_would_have_led_is_shown_to_the_next_start() -> None:
    first, _ = reviewed(stalled_night().steps, weights(30))
    assert [row.what for row in first.rows if row.mark is Mark.NOW and row.what.startswith("spawn")] == [
        "spawn attempt 2"
    ]


def test_longer_patience_leaves_it_alone_and_says_until_when() -> None:
    first, second = reviewed(stalled_night().steps, weights(1000))
    assert first.note.startswith("ended then, not now: without progress weights has until 2026-11-")
    assert [row.what for row in first.rows if row.mark is Mark.THEN][:2] == ["lifecycle stopping", "keep the evidence"]
    assert not [row for row in first.rows if row.mark is Mark.NOW]
    assert {row.mark for row in second.rows} == {Mark.SAME}


def test_a_different_wait_before_the_restart_is_a_difference_and_no_more() -> None:
    patient = replace(SETTINGS, restart=replace(SETTINGS.restart, backoff_s=60.0))
    first, second = reviewed(stalled_night().steps, patient)
    assert first.note == "started then, backoff now"
    assert second.attempt == 2
    assert {row.mark for row in second.rows} == {Mark.SAME}


def test_a_budget_that_is_spent_sooner_is_told() -> None:
    strict = replace(SETTINGS, restart=replace(SETTINGS.restart, budget=0))
    first, second = reviewed(stalled_night().steps, strict)
    assert first.note == "started then, fatal now"
    assert "lifecycle fatal" in [row.what for row in first.rows if row.mark is Mark.NOW]
    assert second.attempt == 2


def test_words_alone_make_no_difference() -> None:
    steps = [
        replace(step, then=tuple(replace(x, reason="in other words") if hasattr(x, "reason") else x for x in step.then))
        for step in stalled_night().steps
    ]
    assert differing(reviewed(steps)) == []


# --- learned deadlines -----------------------------------------------------------------------------------------------


def test_what_the_record_learned_counts_for_its_later_attempts() -> None:
    night = Night()
    for _ in range(4):
        night.tell(e.StartRequested("root"))
        night.until(night.now + 2)
        night.log(LOADING)
        night.until(night.now + 3)
        night.ready()
        night.tell(e.StopRequested("root"))
        night.until(night.now + 5)
        night.world.health = e.ProbeOutcome.REFUSED
    night.tell(e.StartRequested("root"))
    night.until(night.now + 2)
    night.log(LOADING)
    night.until(night.now + 120)
    sections = reviewed(night.steps)
    assert differing(sections) == []
    assert any("in 4 starts" in row.reason for row in rows(sections, Mark.SAME))


def test_starts_from_before_the_record_are_not_known() -> None:
    records = [StartRecord("k", 9.0, (PhaseRecord("weights", 3.0, 3.0),))] * 4
    night = Night(earlier=records)
    night.tell(e.StartRequested("root"))
    night.until(night.now + 2)
    night.log(LOADING)
    night.until(night.now + 60)
    (first, *_) = reviewed(night.steps)
    assert first.note.startswith("ended then, not now")


# --- records as they are ---------------------------------------------------------------------------------------------


def test_a_record_that_begins_in_the_middle_of_an_attempt_is_followed_from_the_next_one() -> None:
    steps = [step for step in stalled_night().steps if step.at > BEGIN + 50]
    first, second = reviewed(steps)
    assert first.note == "the record begins in the middle of it; left out"
    assert (first.attempt, second.attempt) == (1, 2)
    assert differing([second]) == []


def test_a_record_without_any_other_attempt_ends_there() -> None:
    steps = [step for step in stalled_night().steps if step.at > BEGIN + 140]
    (only,) = reviewed(steps)
    assert only.attempt == 2
    assert only.rows == ()


def test_the_next_daemon_begins_anew() -> None:
    first = Night()
    first.tell(e.StartRequested("autostart"))
    first.until(BEGIN + 10)
    second = Night(begin=BEGIN + 20, last=1)
    second.tell(e.StartRequested("autostart"))
    second.until(BEGIN + 40)
    steps = first.steps + second.steps
    assert [len(run) for run in runs(steps)] == [len(first.steps), len(second.steps)]
    assert differing(reviewed(steps)) == []
    assert [section.attempt for section in reviewed(steps)] == [1, 2]


def test_the_next_daemon_begins_anew_also_after_a_stop() -> None:
    first = stalled_night()
    second = Night(begin=first.now + 20, last=2)
    second.tell(e.StartRequested("autostart"))
    second.until(second.now + 20)
    steps = first.steps + second.steps
    assert [len(run) for run in runs(steps)] == [len(first.steps), len(second.steps)]
    assert differing(reviewed(steps)) == []


def test_a_reboot_sets_the_clock_back() -> None:
    first = Night(begin=5000.0)
    first.tell(e.StartRequested("autostart"))
    first.tell(e.StopRequested("root"))
    first.until(5020.0)
    second = Night(begin=10.0, last=1)
    second.tell(e.StartRequested("root"))
    second.until(20.0)
    assert [len(run) for run in runs(first.steps + second.steps)] == [len(first.steps), len(second.steps)]


def test_a_daemon_that_was_suspended_is_not_blamed_for_its_silence() -> None:
    """For ten minutes nobody ticked; when it woke, the lines were read before anything was called late."""
    night = Night()
    night.tell(e.StartRequested("autostart"))
    night.until(BEGIN + 5)
    night.log(LOADING)
    night.until(BEGIN + 20)
    night.now += 600.0
    night.tell(e.Ticked())
    night.log(CAPTURING)
    night.until(night.now + 30)
    assert differing(reviewed(night.steps)) == []


def test_a_record_with_holes_is_followed_as_far_as_it_goes() -> None:
    steps = [step for step in stalled_night().steps if not isinstance(step.event, e.Spawned)]
    sections = reviewed(steps)
    assert sections[0].note
    assert sections[-1].attempt == 2


def test_a_server_that_never_started_has_no_attempt() -> None:
    night = Night()
    night.tell(e.StopRequested("root"))
    (only,) = reviewed(night.steps)
    assert only.attempt == 0
    assert differing([only]) == []
