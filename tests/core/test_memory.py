"""The daemon is killed in each state and phase: the next one goes on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from supervisor import actions as a
from supervisor import events as e
from supervisor.config import DetectorMode
from supervisor.core.lifecycle import State
from supervisor.core.memory import started_again, unusable
from supervisor.core.settings import DetectorSettings, PhaseLimit, ReclaimSettings, RestartSettings
from supervisor.saved import SavedServer
from tests.core.test_judgement import PATIENT
from tests.core.test_server import CAPTURING, FOREIGN, LOADED, LOADING, READY, healthy
from tests.core.world import SETTINGS, World

LIMITS = {"target-graph": PhaseLimit(180, 900), "weights": PhaseLimit(300, 1200)}
SETTINGS = replace(SETTINGS, deadlines=LIMITS, restart=RestartSettings(jitter=0.0))


def starting(*lines: str) -> World:
    world = World(SETTINGS)
    world.start()
    world.until(1)
    for line in lines:
        world.until(world.now + 2)
        world.log(line)
    world.until(world.now + 30)
    return world


def draining() -> World:
    world = healthy(World(SETTINGS))
    world.ignores_term = True
    world.stop()
    world.until(world.now + 10)
    return world


def stopping() -> World:
    world = draining()
    world.silent.add(a.KillTree)
    world.until(world.now + 90)
    world.silent.clear()
    return world


def reclaiming() -> World:
    world = World(SETTINGS)
    world.dirty = FOREIGN
    world.start()
    world.until(60)
    return world


def backoff() -> World:
    world = healthy(World(replace(SETTINGS, restart=RestartSettings(backoff_s=100.0, jitter=0.0))))
    world.tell(e.Exited(1, -11))
    world.until(world.now + 10)
    return world


def fatal() -> World:
    world = World(SETTINGS)
    world.spawn_error = e.SpawnFailed(0, "no such file", True)
    world.start()
    world.settle()
    return world


def quarantined() -> World:
    world = healthy(World(SETTINGS))
    world.unkillable = True
    world.stop()
    world.until(world.now + 30)
    return world


STORIES = {
    "stopped": lambda: World(SETTINGS),
    "launch": starting,
    "weights": lambda: starting(*LOADING),
    "memory": lambda: starting(*LOADING, *LOADED),
    "capture": lambda: starting(*LOADING, *LOADED, *CAPTURING),
    "running": lambda: healthy(World(SETTINGS)),
    "draining": draining,
    "stopping": stopping,
    "reclaiming": reclaiming,
    "backoff": backoff,
    "fatal": fatal,
    "quarantined": quarantined,
}


@pytest.mark.parametrize("story", STORIES)
def test_the_next_daemon_sees_the_same_server(story: str) -> None:
    world = STORIES[story]()
    world.daemon_dies()
    (before, after) = world.reborn[0]
    assert after.lifecycle.value == before.lifecycle.value
    assert after.lifecycle.since == before.lifecycle.since
    assert (after.goal, after.attempt, after.pid) == (before.goal, before.attempt, before.pid)
    assert (after.started, after.ready_since) == (before.started, before.ready_since)
    assert (after.restarts, after.budget_remaining) == (before.restarts, before.budget_remaining)
    assert after.backoff_until == before.backoff_until
    assert after.incidents == before.incidents
    if before.start is not None and before.lifecycle.value == "starting":
        assert (after.start.phase, after.start.since) == (before.start.phase, before.start.since)
        assert after.start.last_progress == before.start.last_progress


@pytest.mark.parametrize("story", STORIES)
def test_it_starts_no_second_copy_and_ends_where_people_want_it(story: str) -> None:
    world = STORIES[story]()
    trees = set(world.trees)
    world.daemon_dies(3.0)
    world.until(world.now + 1)
    assert len(world.trees) <= max(1, len(trees))
    world.unkillable = False
    world.dirty = None
    world.spawn_error = None
    world.stop()
    assert world.settle() is State.STOPPED


def test_a_phases_deadline_is_the_same_as_before() -> None:
    world = starting(*LOADING, *LOADED, *CAPTURING)
    deadline = world.facts_now.deadline
    world.daemon_dies(20.0)
    world.until(world.now + 6)
    assert world.facts_now.deadline == deadline
    world.until(deadline + 0.1)
    assert world.facts_now.verdict.value == "stalled"
    assert "180 s" in world.facts_now.verdict.reason


def test_a_deadline_that_passed_while_nobody_watched_waits_for_the_log_to_be_read() -> None:
    world = starting(*LOADING, *LOADED, *CAPTURING)
    world.written.append(
        (world.now + 170, "Capturing batches (bs=8 avail_mem=9.17 GB): 10%|█ | 3/30 [00:10<01:30,  1.0s/it]")
    )
    world.daemon_dies(200.0)
    world.until(world.now + 100)
    assert world.state is State.STARTING
    assert not world.done(a.KillTree)


def test_a_serving_server_is_probed_at_once_and_keeps_its_history() -> None:
    world = healthy(World(PATIENT))
    ready = world.facts_now.ready_since
    world.daemon_dies(5.0)
    world.until(world.now + 30)
    assert world.state is State.RUNNING
    assert world.facts_now.ready_since == ready
    assert world.facts_now.verdict.value == "idle"
    assert len(world.done(a.Spawn)) == 1
    assert len(world.done(a.Remember)) == 1


def test_a_serving_server_that_is_busy_is_busy_again() -> None:
    world = healthy(World(PATIENT))
    world.log(READY)
    world.daemon_dies(5.0)
    world.until(world.now + 2)
    world.log(
        "[2026-11-29 10:20:00 TP0] Decode batch, #running-req: 9, #token: 9, token usage: 0.10,"
        " cuda graph: True, gen throughput (token/s): 88.00, #queue-req: 0"
    )
    assert world.facts_now.verdict.value == "busy"


def test_a_leader_that_ended_meanwhile_is_a_failure_with_an_unknown_status() -> None:
    world = healthy(World(SETTINGS))
    world.daemon_dies(5.0, leader_dies=True)
    world.tell(e.Exited(1, None))
    world.until(world.now + 20)
    assert world.facts_now.attempt == 2
    assert "exit status unknown" in world.facts_now.incidents[0].reason


def test_a_tree_that_is_gone_altogether_is_followed_by_the_policy() -> None:
    world = healthy(World(SETTINGS))
    world.trees.clear()
    world.leaders.clear()
    world.daemon_dies(5.0)
    world.until(world.now + 20)
    assert world.facts_now.attempt == 2


def test_how_a_leader_ended_that_nobody_watched_is_told_when_it_was_recorded() -> None:
    world = healthy(World(SETTINGS))
    world.trees.clear()
    world.leaders.clear()
    world.daemon_dies(5.0, ended=7)
    world.until(world.now + 20)
    assert world.facts_now.attempt == 2
    assert world.facts_now.incidents[0].reason == "exited with status 7"


def test_a_stop_that_was_asked_for_before_the_death_is_carried_out() -> None:
    world = draining()
    grace = world.server.deadline()
    world.daemon_dies(5.0)
    assert world.server.deadline() == grace
    assert world.settle() is State.STOPPED
    assert len(world.done(a.Spawn)) == 1


def test_a_death_between_decision_and_spawn_costs_no_budget() -> None:
    world = World(SETTINGS)
    world.silent.add(a.Spawn)
    world.start()
    world.until(1)
    world.silent.clear()
    world.daemon_dies(1.0)
    world.until(world.now + 3)
    assert world.state is State.STARTING
    assert world.facts_now.attempt == 2
    assert world.facts_now.budget_remaining == SETTINGS.restart.budget


def test_a_backoff_goes_on_where_it_was() -> None:
    world = backoff()
    due = world.facts_now.backoff_until
    world.daemon_dies(20.0)
    world.until(due + 0.5)
    assert world.when(a.Spawn)[-1] == pytest.approx(due, abs=0.2)


def test_a_wait_for_foreign_memory_goes_on() -> None:
    world = World(replace(SETTINGS, reclaim=ReclaimSettings()))
    world.dirty = FOREIGN
    world.start()
    world.until(60)
    world.daemon_dies(5.0)
    world.until(world.now + 60)
    assert world.state is State.RECLAIMING
    assert "bob" in world.facts_now.lifecycle.reason
    world.dirty = None
    world.until(world.now + 10)
    assert world.state is State.STARTING


def test_the_budget_is_not_refilled_by_a_death_of_the_daemon() -> None:
    world = World(replace(SETTINGS, restart=RestartSettings(budget=2, backoff_s=1.0, jitter=0.0, same_cause_limit=99)))
    world.start()
    for _ in range(3):
        world.until(world.now + 20)
        world.tell(e.Exited(world.facts_now.attempt, 1))
        world.until(world.now + 0.5)
        world.daemon_dies(0.1)
    world.until(world.now + 20)
    assert world.state is State.FATAL


def test_devices_that_were_dirty_stay_so_for_the_next_daemon_until_a_look_is_answered() -> None:
    """An unanswered look is no reason to wait, unless the last one that was answered found them held."""
    world = World()
    world.dirty = e.DevicesChecked(0, False, "held by pid 7 of bob", (e.Holder(0, 9 * 2**30, 7, "bob"),))
    world.start()
    world.until(10)
    world.silent = {a.CheckDevices}
    world.daemon_dies()
    world.until(1000)
    assert world.state is State.RECLAIMING
    assert not world.done(a.Spawn)
    world.dirty = None
    world.silent = set()
    world.until(1100)
    assert world.state is State.STARTING


def test_the_record_tells_the_next_daemon_whether_processes_may_live() -> None:
    world = World(SETTINGS)
    assert not world.server.save("boot").tree_alive
    healthy(world)
    assert world.server.save("boot").tree_alive
    world.stop()
    assert world.server.save("boot").tree_alive, "it has only been asked to end"
    world.settle()
    assert not world.server.save("boot").tree_alive


def saved(**changes: object) -> SavedServer:
    return replace(healthy(World(SETTINGS)).server.save("boot"), **changes)


def test_a_record_as_we_write_it_can_be_gone_on_from() -> None:
    assert unusable(saved()) == ""
    assert unusable(World(SETTINGS).server.save("boot")) == ""


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (saved(state="levitating"), "it has the state 'levitating'"),
        (saved(next="sing"), "it is followed by 'sing'"),
        (saved(attempt=replace(saved().attempt, ending="boredom")), "its attempt ended by 'boredom'"),
        (saved(attempt=None), "it is running without an attempt"),
        (saved(attempt=None, state="quarantined", tree_alive=True), "it is quarantined without an attempt"),
    ],
)
def test_a_record_that_no_server_can_go_on_from_says_why(record: SavedServer, why: str) -> None:
    assert unusable(record) == why


def test_a_record_of_a_server_at_rest_needs_no_attempt() -> None:
    assert unusable(saved(attempt=None, state="stopped", tree_alive=False)) == ""


def test_what_would_have_been_killed_is_counted_on() -> None:
    world = healthy(World(replace(SETTINGS, detectors=DetectorSettings(standstill=DetectorMode.OBSERVE))))
    still = e.ProcessSample(55, "T", "detokenizer")
    for at in range(0, 200, 5):
        world.until(10.0 + at)
        world.tell(e.TreeSampled(1, 1.0, 0, 0, (still,)))
    assert world.facts_now.would_have_killed == {"standstill": 1}
    world.daemon_dies(1.0)
    assert world.facts_now.would_have_killed == {"standstill": 1}


def test_what_could_not_be_killed_is_tried_again_by_the_next_daemon() -> None:
    world = healthy(World(SETTINGS))
    world.unkillable = world.ignores_term = True
    world.stop()
    world.until(world.now + 150)
    assert world.state is State.QUARANTINED
    kills = len(world.done(a.KillTree))
    world.unkillable = False  # the kernel lets go while nobody is there
    world.daemon_dies(1.0)
    assert len(world.done(a.KillTree)) == kills + 1
    assert world.settle() is State.STOPPED


def stopped() -> World:
    world = draining()
    assert world.settle() is State.STOPPED
    return world


@pytest.mark.parametrize(
    "story", [draining, lambda: healthy(World(SETTINGS)), stopped], ids=["draining", "up", "stopped"]
)
def test_who_was_stopped_only_to_be_started_again_is_started_by_the_next_daemon(story: Callable[[], World]) -> None:
    world = story()
    before = world.server.save("boot")
    record = started_again(before, "the daemon ended meanwhile", world.now)
    assert unusable(record) == ""
    if before.goal_up:
        assert record == before
        return
    heir = World(SETTINGS)
    heir.now = world.now
    heir.carry(heir.server.restore(record, world.now, tree_lives=False))
    heir.until(heir.now + 60)
    assert (heir.facts_now.goal, len(heir.done(a.Spawn))) == ("up", 1)


def test_who_was_given_up_is_not_started_again_either_way() -> None:
    record = replace(fatal().server.save("boot"), goal_up=False)
    assert started_again(record, "the daemon ended meanwhile", 0.0) == record
