"""The wait for what a server needs of the host: looks that are lost, come late or come twice."""

from __future__ import annotations

import itertools

import pytest

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import State
from tests.core.test_server import LEFTOVER
from tests.core.world import SETTINGS, World

CLEAN = e.DevicesChecked(0, True, devices=SETTINGS.gpus)
LOST_S = 10.0


def waiting() -> World:
    """A start behind memory that may be our own; the looks get lost from now on."""
    world = World()
    world.dirty = LEFTOVER
    world.start()
    world.until(3)
    assert world.state is State.RECLAIMING
    world.silent.add(a.CheckDevices)
    return world


def test_an_answer_to_a_look_that_was_given_up_is_not_believed() -> None:
    """What it has seen is as old as the look; another is made, and that one counts."""
    world = waiting()
    looks = len(world.done(a.CheckDevices))
    while len(world.done(a.CheckDevices)) == looks:
        world.until(world.now + 0.1)
    world.until(world.now + LOST_S)
    assert "the last look was not answered" in world.facts_now.lifecycle.reason
    world.tell(CLEAN)
    assert world.state is State.RECLAIMING
    assert not world.done(a.Spawn)
    while len(world.done(a.CheckDevices)) == looks + 1:
        world.until(world.now + 0.1)
    world.tell(CLEAN)
    assert world.state is State.STARTING


def test_an_answer_that_comes_twice_counts_once() -> None:
    world = waiting()
    before = world.server.deadline()
    world.tell(e.DevicesChecked(0, False, "GPU 0: 60 GiB still held", LEFTOVER.holders))
    assert world.server.deadline() == before
    assert world.facts_now.lifecycle.reason == LEFTOVER.reason


def test_the_pauses_between_looks_grow_to_their_longest() -> None:
    world = World()
    world.dirty = LEFTOVER
    world.start()
    world.until(SETTINGS.reclaim.own_limit_s - 1)
    looks = world.when(a.CheckDevices)
    pauses = [after - before for before, after in itertools.pairwise(looks)]
    assert min(pauses) >= SETTINGS.reclaim.recheck_s
    assert pauses == pytest.approx(sorted(pauses))
    assert max(pauses) <= SETTINGS.reclaim.recheck_max_s + 0.02


def test_not_knowing_once_holds_no_later_start_back() -> None:
    world = World()
    world.dirty = e.DevicesChecked(0, None, "GPU feed is blind")
    world.start()
    world.until(1)
    assert world.state is State.STARTING
    world.stop()
    world.settle()
    world.silent.add(a.CheckDevices)
    world.start()
    world.until(world.now + LOST_S + 0.1)
    assert world.state is State.STARTING
    assert "nobody could tell" in world.facts_now.lifecycle.reason
