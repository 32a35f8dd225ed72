"""The steps of an end: evidence, TERM, grace, kill, proof; and what survives the kill."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import State
from supervisor.core.settings import RestartSettings
from tests.core.test_server import LEFTOVER, healthy
from tests.core.world import SETTINGS, World

CALM = replace(SETTINGS, restart=RestartSettings(backoff_s=5.0, jitter=0.0, budget=3))


def condemned(world: World) -> World:
    """A rank has died under it, and the grace for its own dump is over."""
    world.tell(e.RoleDied(1, 9, "scheduler", "TP0", code=-11))
    world.until(world.now + CALM.fatal_grace_s + 0.01)
    assert world.state is State.STOPPING
    return world


def test_what_is_condemned_goes_through_evidence_term_and_kill() -> None:
    world = healthy(World(CALM))
    world.ignores_term = True
    world.silent.add(a.KeepEvidence)
    condemned(world)
    begun = world.now
    assert world.facts_now.stop_stage == "evidence"
    assert not world.done(a.SignalTree)
    world.until(begun + 5)
    world.tell(e.EvidenceKept(1, "/evidence/1"))
    assert world.facts_now.stop_stage == "term"
    assert world.done(a.SignalTree) == [a.SignalTree(1, CALM.stop.signal)]
    world.until(begun + 5 + CALM.stop.stall_grace_s + 1)
    stop = world.facts_now.stop
    assert stop is not None
    assert stop.kill_s is not None
    assert 5 + CALM.stop.stall_grace_s - 0.1 < stop.kill_s < 5.1 + CALM.stop.stall_grace_s, (
        "the clock began with the evidence"
    )


def test_who_is_stopped_while_it_is_condemned_rests_because_somebody_stopped_it() -> None:
    """Not for what it was condemned for, and with no restart told of that does not come."""
    world = healthy(World(CALM))
    world.ignores_term = True
    condemned(world)
    world.stop()
    assert world.settle() is State.STOPPED
    asked = world.facts_now.lifecycle.reason
    assert asked.startswith("stop asked by ")
    (incident,) = world.facts_now.incidents
    assert incident.decision == f"rest: {asked}"


def test_evidence_is_kept_once_for_an_attempt() -> None:
    world = condemned(healthy(World(CALM)))
    world.until(world.now + 4)
    assert world.state is State.BACKOFF
    assert len(world.done(a.KeepEvidence)) == 1


def test_a_second_answer_about_the_evidence_changes_no_step() -> None:
    world = healthy(World(CALM))
    world.ignores_term = True
    condemned(world)
    world.until(world.now + 1)
    assert world.facts_now.stop_stage == "term"
    world.tell(e.EvidenceKept(1, "/evidence/again"))
    assert len(world.done(a.SignalTree)) == 1
    assert world.facts_now.evidence_path == "/evidence/again"


def test_a_spawn_that_nobody_answered_is_the_hosts_failure_and_spends_no_budget() -> None:
    world = World(CALM)
    world.silent.add(a.Spawn)
    world.start()
    world.until(CALM.spawn_limit_s + 2)
    assert world.state is State.BACKOFF
    facts = world.facts_now
    assert facts.lifecycle.reason.startswith("the spawn was never answered; tried again")
    assert facts.budget_remaining == 3


def test_who_survives_the_kill_is_named_with_what_he_keeps_from_others() -> None:
    world = healthy(World(CALM))
    world.unkillable = world.ignores_term = True
    world.stop()
    world.until(world.now + 150)
    assert world.state is State.QUARANTINED
    assert world.facts_now.lifecycle.reason == (
        "cannot be killed: pid 4242 (D, nv_wait); it blocks port 30000 and GPU 0, 1 until the kernel lets go"
    )
    bare = healthy(World(replace(CALM, port=0, gpus=())))
    bare.stop()
    bare.silent.add(a.KillTree)
    bare.until(bare.now + 150)
    bare.tell(e.TreeStuck(1, (e.StuckProcess(7, "D"),)))
    assert bare.facts_now.lifecycle.reason == (
        "cannot be killed: pid 7 (D, no wait channel); it stays until the kernel lets go"
    )


def test_who_has_but_one_thing_keeps_that_from_others() -> None:
    for settings, words in (
        (replace(CALM, gpus=()), "it blocks port 30000 until"),
        (replace(CALM, port=0), "it blocks GPU 0, 1 until"),
    ):
        world = healthy(World(settings))
        world.unkillable = world.ignores_term = True
        world.stop()
        world.until(world.now + 150)
        assert words in world.facts_now.lifecycle.reason


def test_who_survives_the_kill_is_killed_again_and_again_until_the_kernel_lets_go() -> None:
    world = healthy(World(CALM))
    world.unkillable = world.ignores_term = True
    world.stop()
    world.until(world.now + 150)
    before = len(world.done(a.KillTree))
    world.until(world.now + 300)
    assert world.state is State.QUARANTINED
    assert before + 3 <= len(world.done(a.KillTree)) <= before + 6, "now and then"
    world.unkillable = False
    world.until(world.now + 120)
    assert world.state is State.STOPPED


def test_while_it_is_being_ended_nobody_waits_for_its_start() -> None:
    """No deadline of a phase is told beside an end, and what may live is not called starting."""
    world = World(CALM)
    world.silent |= {a.KeepEvidence, a.KillTree}
    world.start()
    world.until(30)
    assert world.facts_now.deadline is not None
    stopped = e.ProcessSample(4711, "T", "scheduler", "TP0")
    world.tell(e.TreeSampled(1, 0.0, 0, 0, processes=(stopped,)))
    world.until(world.now + CALM.serving.stopped_s + 1)
    world.tell(e.TreeSampled(1, 0.0, 0, 0, processes=(stopped,)))
    assert (world.facts_now.stop_stage, world.facts_now.deadline) == ("evidence", None)
    other = World(CALM)
    other.silent |= {a.Spawn, a.KillTree}
    other.start()
    other.until(CALM.spawn_limit_s + 2)
    assert (other.state, other.facts_now.lifecycle.reason) == (State.STOPPING, "the spawn was never answered")


def test_news_of_a_survivor_after_a_later_kill_has_succeeded_is_no_news() -> None:
    world = healthy(World(CALM))
    world.dirty = LEFTOVER
    world.stop()
    world.until(world.now + 5)
    assert world.state is State.RECLAIMING
    stuck = e.TreeStuck(1, (e.StuckProcess(7, "D", "nv_wait"),))
    world.tell(stuck)
    assert world.state is State.RECLAIMING
    assert world.settle() is State.QUARANTINED
    reason = world.facts_now.lifecycle.reason
    world.tell(stuck)
    assert world.facts_now.lifecycle.reason == reason
    assert world.server.deadline() is None
    assert not world.server.save("boot").tree_alive


def test_an_engine_that_takes_long_to_end_is_asked_once() -> None:
    world = healthy(World(replace(CALM, stop=replace(CALM.stop, leave_limit_s=15.0))))
    world.ignores_term = True
    world.requests = 0
    world.tell(e.StopRequested("anna", 60.0))
    world.settle()
    assert len(world.done(a.SignalTree)) == 1
    assert len(world.done(a.CountRequests)) == 2
    assert world.state is State.STOPPED


@pytest.mark.parametrize("ignores", [True, False])
def test_a_stop_that_outlives_its_grace_is_said_to(ignores: bool) -> None:
    """Signal 9 alone does not tell: engines end their own trees by it."""
    world = healthy(World(CALM))
    world.ignores_term = ignores
    world.stop()
    world.until(world.now + CALM.stop.grace_s + 5)
    assert world.state is State.STOPPED
    reasons = [action.reason for action in world.done(a.Announce) if action.facet == "lifecycle"]
    ended = {reason for reason in reasons if reason.startswith("ended as asked")}
    assert [reason.endswith(": its grace was over") for reason in ended] == [ignores], ended
