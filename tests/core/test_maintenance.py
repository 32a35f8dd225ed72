"""While people work on a server nothing is killed or started by itself; what would have been is counted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import State
from supervisor.core.settings import PhaseLimit, RestartSettings, Settings
from tests.core.test_server import healthy
from tests.core.world import SETTINGS, World

QUICK = replace(SETTINGS, restart=RestartSettings(backoff_s=5.0, jitter=0.0))
IMPATIENT = replace(QUICK, deadlines={"launch": PhaseLimit(60.0, 600.0)})


def running(settings: Settings = QUICK) -> World:
    return healthy(World(settings))


def pause(world: World) -> None:
    world.tell(e.PauseRequested("anna"))


def resume(world: World) -> None:
    world.tell(e.ResumeRequested("anna"))


def test_a_paused_server_that_ends_is_started_by_resume() -> None:
    world = running()
    pause(world)
    world.until(20)
    world.tell(e.Exited(1, 1))
    world.until(600)
    assert world.state is State.STOPPED
    assert world.facts_now.goal == "up"
    reason = world.facts_now.lifecycle.reason
    assert reason.startswith("paused, so not started again: exited with status 1")
    assert "restart" not in reason
    assert [one.decision for one in world.facts_now.incidents] == [f"rest: {reason}"]
    resume(world)
    world.until(620)
    assert (world.state, world.facts_now.attempt) == (State.RUNNING, 2)
    assert world.path("maintenance") == ["on", "off"]


def test_a_start_that_is_waited_for_is_held_back() -> None:
    world = running()
    world.tell(e.Exited(1, 1))
    world.until(7)
    assert world.state is State.BACKOFF
    pause(world)
    assert world.server.deadline() is None, "nothing is waited for"
    world.until(600)
    assert (world.state, world.facts_now.attempt) == (State.STOPPED, 1)
    resume(world)
    world.until(620)
    assert world.state is State.RUNNING


def test_a_stalled_start_is_counted_once_and_killed_after_resume() -> None:
    world = World(IMPATIENT)
    world.start()
    world.until(5)
    pause(world)
    world.until(1000)
    assert world.state is State.STARTING
    assert world.facts_now.would_have_killed == {"deadline": 1}
    assert not world.done(a.KeepEvidence)
    resume(world)
    world.until(1004)
    assert world.state is State.STARTING, "news are taken in first"
    world.until(1010)
    assert world.done(a.KeepEvidence)


def test_last_words_kill_only_after_resume() -> None:
    world = running()
    pause(world)
    world.tell(e.RoleDied(1, 77, "scheduler", "TP1"))
    world.until(300)
    assert world.state is State.RUNNING
    assert world.facts_now.would_have_killed["dead"] == 1
    resume(world)
    world.until(400)
    assert world.facts_now.attempt == 2


def test_people_stop_and_start_a_paused_server_as_they_like() -> None:
    world = running()
    pause(world)
    world.stop()
    assert world.settle() is State.STOPPED
    resume(world)
    world.until(world.now + 60)
    assert world.state is State.STOPPED, "nobody wants it up"
    pause(world)
    world.start()
    world.until(world.now + 10)
    assert (world.state, world.facts_now.attempt) == (State.RUNNING, 2)


def test_a_pause_outlives_the_daemon() -> None:
    world = running()
    pause(world)
    world.daemon_dies(30)
    view = world.facts_now.maintenance
    assert view is not None
    assert (view.value, view.since, view.reason) == ("on", 6.0, "pause asked by anna")
    world.tell(e.Exited(1, 1))
    world.until(world.now + 600)
    assert world.state is State.STOPPED
    world.daemon_dies(30)
    resume(world)
    world.until(world.now + 20)
    assert world.state is State.RUNNING
    assert world.facts_now.maintenance is None


def test_resume_of_a_server_that_is_not_paused_does_nothing() -> None:
    world = running()
    resume(world)
    world.until(60)
    assert (world.state, world.path("maintenance")) == (State.RUNNING, [])


def test_a_cause_that_no_restart_mends_is_final_as_ever() -> None:
    world = World(replace(QUICK, restart=RestartSettings(budget=0)))
    world.start()
    world.until(5)
    pause(world)
    world.tell(e.Exited(1, 1))
    world.until(60)
    assert world.state is State.FATAL


def waiting_for_devices() -> World:
    """The backoff is over, and the start that the policy wants waits for somebody's memory."""
    world = running()
    world.dirty = e.DevicesChecked(0, False, "held by pid 9", (e.Holder(0, 2**30, 9, kind="foreign"),))
    world.tell(e.Exited(1, 1))
    world.until(30)
    assert world.state is State.RECLAIMING
    return world


@pytest.mark.parametrize("dies", [False, True])
def test_a_restart_that_waits_for_devices_is_held_back(*, dies: bool) -> None:
    world = waiting_for_devices()
    pause(world)
    if dies:
        world.daemon_dies(1)
    world.dirty = None
    world.until(600)
    assert (world.state, world.facts_now.attempt) == (State.STOPPED, 1)
    resume(world)
    world.until(620)
    assert (world.state, world.facts_now.attempt) == (State.RUNNING, 2)


def test_a_start_that_somebody_asked_for_is_not_held_back() -> None:
    world = waiting_for_devices()
    world.tell(e.RestartRequested("anna"))
    pause(world)
    world.dirty = None
    world.until(60)
    assert (world.state, world.facts_now.attempt) == (State.RUNNING, 2)


def test_a_daemon_that_came_back_announces_a_pause_like_any_other() -> None:
    """What is announced is saved: else the next daemon would not know of it."""
    world = running()
    world.daemon_dies(1)
    pause(world)
    assert world.path("maintenance") == ["on"]


def test_resume_gives_a_living_server_no_new_budget_and_no_new_attempt() -> None:
    world = running()
    world.tell(e.Exited(1, 1))
    world.until(30)
    budget = world.facts_now.budget_remaining
    pause(world)
    resume(world)
    assert world.facts_now.budget_remaining == budget < QUICK.restart.budget
    world.stop()
    assert world.settle() is State.STOPPED
    assert world.facts_now.attempt == 2


def test_resume_starts_nothing_that_was_given_up() -> None:
    world = World(replace(QUICK, restart=RestartSettings(budget=0)))
    world.start()
    world.until(5)
    world.tell(e.Exited(1, 1))
    world.until(10)
    assert world.state is State.FATAL
    pause(world)
    resume(world)
    world.until(60)
    assert (world.state, world.facts_now.attempt) == (State.FATAL, 1)


def test_after_resume_a_serving_server_is_judged_after_a_moment_as_well() -> None:
    world = running()
    pause(world)
    world.tell(e.RoleDied(1, 77, "scheduler", "TP1"))
    world.until(100)
    resume(world)
    world.until(100 + QUICK.fatal_grace_s - 1)
    assert not world.done(a.KeepEvidence)
    world.until(100 + QUICK.fatal_grace_s + 1)
    assert world.done(a.KeepEvidence)
