"""What is seen of a living server and when it must end: its last words, a dead rank, a canary, its readiness."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import State
from supervisor.core.settings import ServingSettings
from tests.core.test_server import healthy
from tests.core.world import SETTINGS, World

SIGQUIT = "[2026-11-29 10:10:00] SIGQUIT received. signum=None, frame=None. It usually means one child failed."
TRACE = "[2026-11-29 10:10:02 TP0] Scheduler hit an exception: Traceback (most recent call last):"
CANARIES = replace(SETTINGS, serving=ServingSettings(canary_interval_s=60.0))


def test_readiness_says_how_long_the_start_has_taken() -> None:
    world = World()
    world.until(100)
    healthy(world)
    begun, ready = world.facts_now.started, world.facts_now.ready_since
    assert begun is not None
    assert ready is not None
    assert world.facts_now.lifecycle.reason == f"healthy {ready - begun:.1f} s after the start"
    assert 4 < ready - begun < 6


def test_the_first_of_the_last_words_stand_and_later_ones_win_no_time() -> None:
    world = healthy()
    said = world.now
    world.log(SIGQUIT)
    reason = world.facts_now.verdict.reason
    assert "SIGQUIT" in reason
    world.until(said + SETTINGS.fatal_grace_s - 1)
    world.log(TRACE)
    world.tell(e.RoleDied(1, 4711, "scheduler", "TP1"))
    assert world.facts_now.verdict.reason == reason
    world.until(said + SETTINGS.fatal_grace_s + 1)
    assert world.when(a.KeepEvidence) == [said + SETTINGS.fatal_grace_s]


def test_last_words_end_before_the_head_of_a_traceback_which_says_nothing() -> None:
    world = healthy()
    world.log(TRACE)
    assert world.facts_now.verdict.reason == "Scheduler hit an exception"


def test_last_words_of_a_server_that_was_asked_to_end_are_no_failure() -> None:
    world = healthy()
    world.ignores_term = True
    world.stop()
    world.log(SIGQUIT)
    world.until(world.now + SETTINGS.fatal_grace_s + 5)
    assert (world.state, world.facts_now.verdict.value) == (State.DRAINING, "draining")
    assert not world.done(a.KeepEvidence)
    assert world.settle() is State.STOPPED


@pytest.mark.parametrize(("code", "how"), [(-9, " (signal 9)"), (1, " (status 1)"), (0, " (status 0)"), (None, "")])
def test_a_dead_rank_is_told_with_the_way_it_ended(code: int | None, how: str) -> None:
    world = healthy()
    world.tell(e.RoleDied(1, 4711, "scheduler", "TP1", code=code))
    assert world.facts_now.verdict.reason == f"scheduler TP1 (pid 4711) is gone{how}"


def test_a_rank_that_dies_with_its_leader_is_left_to_the_leaders_end() -> None:
    world = healthy()
    world.tell(e.RoleDied(1, 4711, "scheduler", "TP1", with_leader=True))
    assert world.facts_now.verdict.value == "idle"


def test_the_next_canary_comes_an_interval_after_the_answer_to_the_last() -> None:
    world = healthy(World(CANARIES))
    world.until(world.now + 61)
    (first,) = world.when(a.AskCanary)
    world.until(first + 25)
    world.tell(e.CanaryAnswered(1, True))
    world.until(first + 200)
    assert world.when(a.AskCanary)[1] == pytest.approx(first + 25 + 60)


def test_a_canary_without_sense_is_asked_again_while_the_server_is_degraded() -> None:
    world = healthy(World(CANARIES))
    world.until(world.now + 61)
    for _ in range(3):
        asked = len(world.done(a.AskCanary))
        world.tell(e.CanaryAnswered(1, False, detail="the answer is all '!'"))
        world.until(world.now + 61)
        assert len(world.done(a.AskCanary)) == asked + 1
    assert world.facts_now.verdict.value == "degraded"


def test_a_server_that_is_asked_to_end_gets_no_canary() -> None:
    world = healthy(World(CANARIES))
    world.ignores_term = True
    world.tell(e.StopRequested("anna", 600.0))
    world.tell(e.CanaryAnswered(1, True))
    world.until(world.now + 300)
    assert world.state is State.DRAINING
    assert not world.done(a.AskCanary)
