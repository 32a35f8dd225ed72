"""A start that the preflight refuses: fatal at once, nothing spent; `force` is remembered until somebody asks anew."""

from __future__ import annotations

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import State
from tests.core.world import SETTINGS, World

REFUSED = e.DevicesChecked(0, False, "preflight: the model is not there", refuse=True)


def asked(world: World) -> list[bool]:
    """Of each look for a start, whether it was to overrule the preflight."""
    return [look.force for look in world.done(a.CheckDevices) if look.start]


def test_a_refused_start_is_fatal_and_spends_no_budget() -> None:
    world = World(SETTINGS)
    world.dirty = REFUSED
    world.start()
    assert world.settle() is State.FATAL
    facts = world.facts_now
    assert facts.lifecycle.reason == REFUSED.reason
    assert (facts.attempt, facts.budget_remaining) == (0, SETTINGS.restart.budget)
    assert world.done(a.Spawn) == []
    assert asked(world) == [False]


def test_a_forced_start_says_so_in_its_look() -> None:
    world = World(SETTINGS)
    world.tell(e.StartRequested("test", force=True))
    world.until(1.0)
    assert asked(world) == [True]
    assert world.state is State.STARTING


def test_force_goes_on_for_restarts_of_our_own() -> None:
    world = World(SETTINGS)
    world.tell(e.StartRequested("test", force=True))
    world.until(1.0)
    world.tell(e.Exited(1, -9))
    world.until(60.0)
    assert len(world.done(a.Spawn)) > 1
    assert set(asked(world)) == {True}


def test_force_outlives_the_daemon() -> None:
    world = World(SETTINGS)
    world.tell(e.StartRequested("test", force=True))
    world.until(1.0)
    world.daemon_dies(leader_dies=True)
    world.until(60.0)
    assert asked(world)[-1] is True


def test_a_plain_start_after_a_stop_forces_nothing() -> None:
    world = World(SETTINGS)
    world.tell(e.StartRequested("test", force=True))
    world.until(1.0)
    world.stop()
    world.settle()
    world.start()
    world.until(world.now + 1.0)
    assert asked(world) == [True, False]


def test_a_plain_start_of_a_started_server_changes_nothing() -> None:
    world = World(SETTINGS)
    world.tell(e.StartRequested("test", force=True))
    world.until(1.0)
    world.start()
    world.tell(e.Exited(1, -9))
    world.until(60.0)
    assert asked(world)[-1] is True


def test_fatal_can_be_forced() -> None:
    world = World(SETTINGS)
    world.dirty = REFUSED
    world.start()
    world.settle()
    world.dirty = None
    world.tell(e.StartRequested("test", force=True))
    world.until(world.now + 1.0)
    assert asked(world) == [False, True]
    assert world.state is State.STARTING
