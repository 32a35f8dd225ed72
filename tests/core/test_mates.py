"""A server whose mate has failed ends and starts again with it, on the same budget; or is given up with it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import State
from supervisor.core.restart import Next
from supervisor.core.settings import RestartSettings
from tests.core.test_server import healthy
from tests.core.world import SETTINGS, World

QUICK = replace(SETTINGS, restart=RestartSettings(backoff_s=5.0, jitter=0.0, budget=2))
AGAIN = e.MateFailed("decode", "exited with status 1; restart 1", 8.0)
NEVER = e.MateFailed("decode", "model-path-missing: a restart cannot help")


def running() -> World:
    return healthy(World(QUICK))


def test_it_ends_and_starts_again_after_its_mates_pause() -> None:
    world = running()
    world.tell(AGAIN)
    assert world.state is State.STOPPING
    world.until(9)
    assert world.state is State.BACKOFF
    assert "decode, with which it restarts together, has failed: exited with status 1" in (
        world.facts_now.lifecycle.reason
    )
    world.until(13)
    assert world.state is State.BACKOFF
    world.until(40)
    assert (world.state, world.facts_now.attempt) == (State.RUNNING, 2)
    assert world.facts_now.incidents == ()


def test_running_requests_get_a_short_grace_since_they_cannot_end_well() -> None:
    world = running()
    world.ignores_term = True
    world.tell(AGAIN)
    world.until(6 + QUICK.stop.startup_grace_s + 1)
    assert [one for _, one in world.did if isinstance(one, a.KillTree)] == [a.KillTree(1)]


def test_the_mates_failures_spend_its_budget() -> None:
    world = running()
    for _ in range(2):
        world.tell(AGAIN)
        world.until(world.now + 60)
        assert world.state is State.RUNNING
    assert world.facts_now.budget_remaining == 0
    assert world.facts_now.restarts == 2

    world.tell(e.Exited(3, 1))
    world.until(world.now + 60)
    assert world.state is State.FATAL
    assert "2 restarts within" in world.facts_now.lifecycle.reason


def test_what_cannot_be_helped_for_one_is_over_for_all() -> None:
    world = running()
    world.tell(NEVER)
    world.until(60)
    assert world.state is State.FATAL
    assert world.facts_now.goal == "up"
    assert world.facts_now.lifecycle.reason == (
        "decode, with which it restarts together, has failed: model-path-missing: a restart cannot help"
    )
    assert world.facts_now.restarts == 0, "none comes"


def test_a_pause_before_a_restart_ends_when_there_is_to_be_none() -> None:
    world = running()
    world.tell(e.Exited(1, 1))
    world.until(7)
    assert world.state is State.BACKOFF
    world.tell(AGAIN)
    assert world.facts_now.budget_remaining == 1  # its own failure is the group's, which is counted once
    world.tell(NEVER)
    world.until(10)
    assert world.state is State.FATAL


def test_a_start_that_waits_for_its_devices_is_given_up_too() -> None:
    world = running()
    world.tell(e.Exited(1, 1))
    world.dirty = e.DevicesChecked(0, False, "waits for decode", waiting=True)
    world.until(20)
    assert world.state is State.RECLAIMING
    world.tell(NEVER)
    world.dirty = None
    world.until(40)
    assert world.state is State.FATAL


def test_who_ends_by_itself_just_then_is_given_up_too() -> None:
    """Its own failure has been seen, and not yet what is left of its processes: what is decided then is decided for all."""
    world = running()
    world.tell(e.Exited(1, 1))
    assert world.state is State.STOPPING
    world.tell(NEVER)
    world.until(60)
    assert world.state is State.FATAL
    assert world.facts_now.lifecycle.reason.startswith("decode, with which it restarts together")
    assert [one.attempt for one in world.facts_now.incidents] == [1], "its own failure is remembered"


def test_who_ends_by_itself_just_then_keeps_its_own_pause_when_the_mate_comes_back() -> None:
    world = running()
    world.tell(e.Exited(1, 1))
    world.tell(AGAIN)
    world.until(7)
    assert world.state is State.BACKOFF
    assert "exited with status 1" in world.facts_now.lifecycle.reason
    assert "decode" not in world.facts_now.lifecycle.reason
    assert world.facts_now.budget_remaining == 1
    world.tell(AGAIN)
    world.until(14)
    assert world.facts_now.attempt == 2


def test_a_start_under_way_is_broken_off_even_before_its_process_is_there() -> None:
    world = World(QUICK)
    world.silent.add(a.Spawn)
    world.start()
    world.until(1)
    assert world.state is State.STARTING
    world.tell(AGAIN)
    world.tell(e.Spawned(1, 4711))
    world.silent.clear()
    assert world.state is State.STOPPING
    assert world.server.follows.next is Next.BACKOFF
    world.until(60)
    assert (world.state, world.facts_now.attempt) == (State.STARTING, 2)


@pytest.mark.parametrize("how", ["down", "paused"])
def test_nobody_is_ended_who_is_not_wanted_or_worked_on(how: str) -> None:
    world = running()
    world.tell(e.PauseRequested("anna") if how == "paused" else e.StopRequested("anna"))
    before = world.state
    world.tell(AGAIN)
    world.tell(NEVER)
    assert world.state is before


def test_a_stop_that_is_held_ends_nothing_until_it_is_asked_again() -> None:
    world = running()
    world.tell(e.StopRequested("anna", hold=True))
    world.until(60)
    assert (world.state, world.facts_now.goal) == (State.RUNNING, "down")

    world.tell(e.StopRequested("anna"))
    world.until(200)
    assert world.state is State.STOPPED


def test_a_held_server_that_dies_meanwhile_is_not_started_again() -> None:
    world = running()
    world.tell(e.StopRequested("anna", hold=True))
    world.tell(e.Exited(1, 1))
    world.until(60)
    assert world.state is State.STOPPED


def test_a_look_that_has_waited_itself_says_when_to_look_again() -> None:
    world = World(QUICK)
    world.dirty = e.DevicesChecked(0, False, "waits for a start slot", waiting=True, again_s=0.25)
    world.start()
    world.until(20)
    looks = [at for at, one in world.did if isinstance(one, a.CheckDevices)]
    assert len(looks) > 25
    world.dirty = e.DevicesChecked(0, False, "another server has the devices", waiting=True)
    begun = len(looks)
    world.until(40)
    assert len([one for _, one in world.did if isinstance(one, a.CheckDevices)]) < begun + 15
