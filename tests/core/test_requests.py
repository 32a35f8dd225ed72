"""What people ask for: up, down, a fresh attempt, a signal; and what it means in each state."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import State
from supervisor.core.settings import RestartSettings
from tests.core.test_server import healthy
from tests.core.world import SETTINGS, World

CALM = replace(SETTINGS, restart=RestartSettings(backoff_s=5.0, jitter=0.0, budget=3))
HUP, KILL = 1, 9


def running() -> World:
    return healthy(World(CALM))


def signals(world: World) -> list[a.SignalTree]:
    return world.done(a.SignalTree)


# --- a signal --------------------------------------------------------------------------------------------------------


def test_a_signal_is_handed_on_to_the_process_that_lives() -> None:
    world = running()
    assert world.tell(e.SignalRequested("anna", HUP)) == [a.SignalTree(1, HUP)]
    assert world.state is State.RUNNING, "what it does with it is its own affair"


@pytest.mark.parametrize("when", ["never started", "at rest", "not yet spawned"])
def test_there_is_nobody_to_signal_without_a_process(when: str) -> None:
    world = World(CALM)
    if when == "at rest":
        world = running()
        world.stop()
        world.settle()
    elif when == "not yet spawned":
        world.silent.add(a.Spawn)
        world.start()
        world.until(1)
        assert world.state is State.STARTING
    before = signals(world)
    assert world.tell(e.SignalRequested("anna", HUP)) == []
    assert signals(world) == before


def test_an_end_by_the_signal_that_was_asked_for_is_not_blamed_on_the_kernel() -> None:
    def cause_of_an_end_by(signal: int, *, asked: bool) -> str:
        world = running()
        if asked:
            world.tell(e.SignalRequested("anna", signal))
        else:
            world.tell(e.Exited(1, -signal))
        world.until(world.now + 2)
        diagnosis = world.facts_now.diagnosis
        assert diagnosis is not None
        return diagnosis.cause

    assert cause_of_an_end_by(KILL, asked=True) == "external-termination" != cause_of_an_end_by(KILL, asked=False)


def test_whoever_asked_for_the_signal_that_ended_it_is_its_cause() -> None:
    world = running()
    world.tell(e.SignalRequested("uid 7", HUP))
    world.tell(e.SignalRequested("uid 8", KILL))
    world.until(world.now + 2)
    diagnosis = world.facts_now.incidents[-1].diagnosis
    assert diagnosis is not None
    assert diagnosis.evidence == "SIGKILL asked by uid 8"


# --- up --------------------------------------------------------------------------------------------------------------


def test_a_start_of_a_server_that_is_up_changes_nothing() -> None:
    world = running()
    assert world.tell(e.StartRequested("anna")) == []
    world.until(60)
    assert (world.state, world.facts_now.attempt) == (State.RUNNING, 1)


def test_a_start_asked_while_it_stops_follows_as_soon_as_it_has_ended() -> None:
    world = running()
    world.stop()
    world.tell(e.StartRequested("anna"))
    assert world.facts_now.goal == "up"
    world.until(60)
    assert (world.state, world.facts_now.attempt) == (State.RUNNING, 2)


def test_a_start_during_the_pause_before_a_restart_gives_no_new_budget() -> None:
    """It was wanted up all the while: only the waiting is cut short."""
    world = running()
    world.tell(e.Exited(1, 1))
    world.until(7)
    assert world.state is State.BACKOFF
    world.tell(e.StartRequested("anna"))
    world.until(8)
    assert (world.facts_now.attempt, world.facts_now.budget_remaining) == (2, 2)


@pytest.mark.parametrize("asked", [[e.RestartRequested("anna")], [e.StopRequested("anna"), e.StartRequested("anna")]])
def test_who_asks_for_a_fresh_attempt_while_one_fails_gets_it_at_once(asked: list[e.AnyEvent]) -> None:
    """Their word goes before the policy's, which would wait five seconds, or give up."""
    world = running()
    world.tell(e.Exited(1, 1))
    assert world.state is State.STOPPING
    for event in asked:
        world.tell(event)
    world.until(world.now + 4)
    assert (world.state, world.facts_now.attempt) == (State.RUNNING, 2)
    assert world.facts_now.incidents[-1].attempt == 1  # what failed is not forgotten over it


def test_who_asked_before_it_failed_leaves_what_follows_to_the_policy() -> None:
    world = running()
    world.tell(e.StartRequested("anna"))
    world.tell(e.Exited(1, 1))
    world.until(world.now + 4)
    assert world.state is State.BACKOFF


def test_a_start_of_what_was_given_up_has_the_whole_budget() -> None:
    world = World(CALM)
    world.start()
    for attempt in range(1, 5):
        world.until(world.now + 100)
        world.tell(e.Exited(attempt, 1))
    world.settle()
    assert world.state in (State.FATAL, State.QUARANTINED)
    world.tell(e.StartRequested("anna"))
    world.until(world.now + 5)
    assert (world.state, world.facts_now.budget_remaining) == (State.STARTING, 3)


def test_a_start_while_a_process_cannot_be_killed_tries_the_kill_again_and_starts_afterwards() -> None:
    world = running()
    world.unkillable, world.ignores_term = True, True
    world.stop()
    world.until(150)
    assert world.state is State.QUARANTINED
    kills = len(world.done(a.KillTree))
    world.tell(e.StartRequested("anna"))
    assert len(world.done(a.KillTree)) == kills + 1
    world.unkillable = False
    world.until(world.now + 120)
    assert (world.state, world.facts_now.attempt) == (State.RUNNING, 2)


def test_a_start_of_a_quarantined_server_without_processes_kills_nobody() -> None:
    world = running()
    world.dirty = e.DevicesChecked(0, False, "GPU 1 is quarantined: Xid 79", quarantined=(1,))
    world.tell(e.RestartRequested("anna"))
    assert world.settle() is State.QUARANTINED
    kills = len(world.done(a.KillTree))
    world.tell(e.StartRequested("anna"))
    assert world.state is State.RECLAIMING
    assert len(world.done(a.KillTree)) == kills


# --- down ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["backoff", "fatal"])
def test_a_stop_of_what_waits_or_was_given_up_is_at_rest_at_once(held: str) -> None:
    world = World(replace(CALM, restart=RestartSettings(budget=0))) if held == "fatal" else World(CALM)
    world.start()
    world.until(1)
    world.tell(e.Exited(1, 1))
    world.until(3)
    assert world.state.value == held
    world.stop()
    assert world.state is State.STOPPED
    assert world.server.deadline() is None


def test_a_stop_of_a_process_that_cannot_be_killed_tries_again() -> None:
    world = running()
    world.unkillable, world.ignores_term = True, True
    world.stop()
    world.until(150)
    kills = len(world.done(a.KillTree))
    world.stop()
    assert len(world.done(a.KillTree)) == kills + 1
    world.unkillable = False
    assert world.settle() is State.STOPPED


def test_a_stop_asks_in_words_whether_it_was_a_drain() -> None:
    world = running()
    world.tell(e.StopRequested("anna", 60.0))
    assert world.facts_now.lifecycle.reason == "drain of at most 60 s asked by anna"
    other = running()
    other.tell(e.StopRequested("anna"))
    assert other.facts_now.lifecycle.reason == "stop asked by anna"


# --- a fresh attempt -------------------------------------------------------------------------------------------------


def test_a_restart_of_a_server_at_rest_is_a_start() -> None:
    world = World(CALM)
    world.tell(e.RestartRequested("anna"))
    world.until(2)
    assert (world.state, world.facts_now.goal) == (State.STARTING, "up")


def test_a_restart_gives_the_whole_budget_back() -> None:
    world = running()
    world.tell(e.Exited(1, 1))
    world.until(30)
    assert world.facts_now.budget_remaining == 2
    world.tell(e.RestartRequested("anna"))
    world.until(60)
    assert (world.facts_now.attempt, world.facts_now.budget_remaining) == (3, 3)


def test_a_restart_tells_its_own_reason() -> None:
    world = running()
    world.tell(e.RestartRequested("anna", "the weights are new"))
    assert world.facts_now.lifecycle.reason == "the weights are new"
