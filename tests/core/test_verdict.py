"""What is told of a server in each state: its phase, its verdict, its probes' word, and the facts about its process."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import State
from supervisor.core.settings import RestartSettings
from tests.core.test_server import CAPTURING, LOADED, LOADING, healthy
from tests.core.world import SETTINGS, World

SLOW = replace(SETTINGS, restart=RestartSettings(backoff_s=100.0, jitter=0.0))
HIDDEN = ("python", "-m", "sglang.launch_server", "--model-path", "/m/kimi", "--port", "30000", "--log-level", "error")
PROBES = ("startup", "readiness", "liveness")


def ended() -> World:
    """It was healthy and has crashed; it waits for its restart."""
    world = healthy(World(SLOW))
    world.tell(e.Exited(1, -11))
    world.until(world.now + 5)
    assert world.state is State.BACKOFF
    return world


def vote(world: World, source: str) -> str:
    return next(one.says for one in world.facts_now.votes if one.source == source)


def phases(world: World) -> list[str]:
    return [action.after for action in world.done(a.Announce) if action.facet == "phase"]


def test_before_the_first_start_nothing_is_known() -> None:
    facts = World().facts_now
    assert (facts.verdict.value, facts.pid, facts.start, facts.votes) == ("unknown", None, None, ())
    assert [getattr(facts, probe).value for probe in PROBES] == ["unknown"] * 3


def test_a_phase_is_told_while_there_is_a_process_and_no_longer() -> None:
    world = World(SLOW)
    world.start()
    world.until(0.005)
    assert phases(world) == []
    world.until(1)
    world.log(*LOADING, *LOADED, *CAPTURING)
    assert phases(world)[-1] == "target-graph"
    world.health = e.ProbeOutcome.OK
    world.until(3)
    assert phases(world)[-1] == "healthy"
    world.tell(e.Exited(1, 1))
    world.until(5)
    assert phases(world)[-1] == ""


def test_what_is_no_more_has_no_pid_no_readiness_and_no_vote() -> None:
    world = healthy(World(SLOW))
    facts = world.facts_now
    assert facts.pid == 4001
    assert facts.ready_since is not None
    assert facts.votes
    facts = ended().facts_now
    assert (facts.pid, facts.ready_since, facts.votes) == (None, None, ())
    assert facts.started is not None
    assert facts.last_progress is not None


def test_probes_say_nothing_of_a_server_that_does_not_run() -> None:
    world = healthy(World(SLOW))
    assert [getattr(world.facts_now, probe).value for probe in PROBES] == ["success"] * 3
    facts = ended().facts_now
    assert [(getattr(facts, probe).value, getattr(facts, probe).reason) for probe in PROBES] == [
        ("unknown", "not running")
    ] * 3


def test_while_it_drains_the_probes_still_have_their_word() -> None:
    world = healthy()
    world.ignores_term = True
    world.stop()
    assert world.state is State.DRAINING
    assert world.facts_now.startup.value == "success"
    assert (world.facts_now.verdict.value, world.facts_now.verdict.reason) == (
        "draining",
        "running requests may finish",
    )


def test_the_log_moves_while_there_was_progress_lately() -> None:
    world = World()
    world.start()
    world.until(1)
    world.log(*LOADING)
    assert vote(world, "log") == "moving"
    world.until(15.9)
    assert vote(world, "log") == "moving"
    world.until(17)
    assert vote(world, "log") == "still"
    assert vote(world, "health") == "unknown"


def test_a_starting_server_is_warming_and_says_what_its_probes_see() -> None:
    world = World()
    world.start()
    world.until(0.005)
    assert world.state is not State.STOPPED
    world.until(1)
    verdict = world.facts_now.verdict
    assert (verdict.value, verdict.reason) == ("warming", "port not open yet")


def test_a_starting_server_whose_log_tells_nothing_says_so() -> None:
    world = World(command=HIDDEN)
    world.start()
    world.until(1)
    verdict = world.facts_now.verdict
    assert verdict.value == "warming"
    assert verdict.reason == "port not open yet; the command hides the log's markers: log level error"


@pytest.mark.parametrize("starting", [True, False])
def test_last_words_are_a_verdict_before_anybody_has_acted(starting: bool) -> None:
    world = World() if starting else healthy()
    if starting:
        world.start()
        world.until(1)
    world.tell(e.RoleDied(1, 9, "scheduler", "TP0", code=1))
    verdict = world.facts_now.verdict
    assert (verdict.value, verdict.reason) == ("dead", "scheduler TP0 (pid 9) is gone (status 1)")
    seen = world.server.snapshot()
    assert seen.deadline is None, "it is called stalled no more"
    assert seen.ends_at == world.now + world.server.settings.fatal_grace_s


def test_a_start_that_people_end_drains_until_its_leader_is_gone() -> None:
    world = World()
    world.start()
    world.until(1)
    world.ignores_term = True
    world.silent.add(a.KillTree)
    world.stop()
    verdict = world.facts_now.verdict
    assert (world.state, verdict.value, verdict.reason) == (State.STOPPING, "draining", "stop asked by test")
    world.tell(e.Exited(1, -15))
    verdict = world.facts_now.verdict
    assert (world.state, verdict.value, verdict.reason) == (State.STOPPING, "dead", "stop asked by test")


def test_after_the_end_the_verdict_tells_how_it_came() -> None:
    verdict = ended().facts_now.verdict
    assert (verdict.value, verdict.reason) == ("dead", "ended by signal 11")
    world = healthy(World(SLOW))
    world.stop()
    world.settle()
    assert (world.facts_now.verdict.value, world.facts_now.verdict.reason) == ("unknown", "not running")
