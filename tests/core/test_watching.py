"""What is seen of a living server and when it must end: its last words, a dead rank, a canary, its readiness."""

from __future__ import annotations

import gzip

import pytest
from msgspec.structs import replace

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.desk import CATCH_UP_S
from supervisor.core.lifecycle import State
from supervisor.core.settings import ServingSettings
from tests.core.golden import LOGS
from tests.core.test_server import LOADING, healthy
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


def test_the_room_of_a_good_start_is_what_the_next_one_is_measured_by() -> None:
    world = World()
    world.start()
    world.until(1)
    world.tell(e.LineMatched(1, 1, "memory-pool", "TP0", fields={"capacity_tokens": "5000"}))
    world.health = e.ProbeOutcome.OK
    world.until(20)
    assert (world.facts_now.capacity_tokens, world.facts_now.capacity_expected) == (5000, None)
    world.tell(e.Exited(1, 1))
    world.until(60)
    assert (world.facts_now.attempt, world.facts_now.capacity_expected) == (2, 5000)


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
    assert world.facts_now.verdict.reason == "Scheduler hit an exception (TP0)"


def test_last_words_of_a_server_that_was_asked_to_end_are_no_failure() -> None:
    world = healthy()
    world.ignores_term = True
    world.stop()
    world.log(SIGQUIT)
    world.until(world.now + SETTINGS.fatal_grace_s + 5)
    assert (world.state, world.facts_now.verdict.value) == (State.DRAINING, "draining")
    assert not world.done(a.KeepEvidence)
    assert world.settle() is State.STOPPED


@pytest.mark.parametrize("name", ["gpu-port_taken_while_loading", "cpu-fail-port-in-use-silent-listener"])
def test_who_will_never_listen_is_not_waited_for_as_one_that_warms_up(name: str) -> None:
    """The whole load, then a port that a stranger has: the launcher lives on without a word, and keeps its devices."""
    world = World()
    world.start()
    world.until(1)
    world.log(*gzip.decompress((LOGS / f"{name}.log.gz").read_bytes()).decode().splitlines())
    assert world.facts_now.start.phase == "warmup"
    assert world.facts_now.verdict.value == "dead"
    assert "[Errno 98] error while attempting to bind on address" in world.facts_now.verdict.reason
    said = world.now
    world.until(said + SETTINGS.fatal_grace_s + 1)
    assert world.when(a.KeepEvidence) == [said + SETTINGS.fatal_grace_s]
    world.until(world.now + 5)
    (incident,) = world.facts_now.incidents
    assert (incident.diagnosis.cause, incident.decision.partition(":")[0]) == ("port-in-use", "backoff")


@pytest.mark.parametrize(
    ("line", "dead"),
    [
        ("ERROR:    [Errno 99] error while attempting to bind on address ('10.9.9.9', 30000): cannot assign", True),
        ("ERROR:    Application startup failed. Exiting.", True),
        ("ERROR:    [Errno 104] Connection reset by peer", False),
        ("[2026-11-29 10:00:39] my ERROR:    Application startup failed. Exiting.", False),
    ],
)
def test_last_words_of_a_web_server_are_those_with_which_it_gives_up(line: str, dead: bool) -> None:
    world = World()
    world.start()
    world.until(1)
    world.log("[2026-11-29 10:00:38] server_args=ServerArgs(model_path='/m')", line)
    assert (world.facts_now.verdict.value == "dead") is dead


@pytest.mark.parametrize(("code", "how"), [(-9, " (signal 9)"), (1, " (status 1)"), (0, " (status 0)"), (None, "")])
def test_a_dead_rank_is_told_with_the_way_it_ended(code: int | None, how: str) -> None:
    world = healthy()
    world.tell(e.RoleDied(1, 4711, "scheduler", "TP1", code=code))
    assert world.facts_now.verdict.reason == f"scheduler TP1 (pid 4711) is gone{how}"


def test_a_rank_that_dies_with_its_leader_is_left_to_the_leaders_end() -> None:
    world = healthy()
    world.tell(e.RoleDied(1, 4711, "scheduler", "TP1", with_leader=True))
    assert world.facts_now.verdict.value == "idle"


UP = "[2026-11-29 10:00:00] INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)"


def probing() -> World:
    """A start whose probe is under way: its answers are the test's."""
    world = World()
    world.start()
    world.until(3)
    world.silent.add(a.Probe)
    world.until(world.now + SETTINGS.readiness.refused_interval_s + 0.1)
    return world


def asks_at_once(world: World) -> bool:
    before = len(world.done(a.Probe))
    world.until(world.now + 0.001)
    return len(world.done(a.Probe)) > before


def test_a_word_of_the_log_hastens_the_next_probe_and_no_other() -> None:
    world = probing()
    world.log(UP)
    assert not asks_at_once(world), "one at a time"
    for hastened in (True, False, False):
        world.tell(e.Probed(1, e.ProbeOutcome.UNAVAILABLE))
        assert asks_at_once(world) is hastened
        world.until(world.now + SETTINGS.readiness.timeout_s - 1)


def test_of_all_lines_those_of_the_port_alone_hasten_a_probe() -> None:
    for line, hastens in ((LOADING[0], False), (UP, True)):
        world = probing()
        world.tell(e.Probed(1, e.ProbeOutcome.REFUSED))
        world.log(line)
        assert asks_at_once(world) is hastens


def busy(world: World, seconds: int, tokens: float | None = None) -> None:
    """Requests run; every second there are more tokens, or as many as are said."""
    for _ in range(seconds):
        world.until(world.now + 1)
        count = world.now if tokens is None else tokens
        world.tell(e.EngineSampled(1, tokens=count, requests=0.0, running=4.0, queued=0.0))


def test_a_full_engine_is_not_probed_until_its_tokens_stop() -> None:
    world = healthy()
    busy(world, 5)
    before = len(world.done(a.Probe))
    busy(world, 60)
    assert len(world.done(a.Probe)) == before
    busy(world, 60, tokens=0.0)
    assert len(world.done(a.Probe)) > before


def test_after_people_have_worked_on_it_a_standstill_is_judged_anew_when_news_are_in() -> None:
    stall_s = int(SETTINGS.serving.stall_s)
    for again in (True, False):
        world = healthy()
        busy(world, 5)
        world.tell(e.PauseRequested("anna"))
        busy(world, stall_s + 60, tokens=0.0)
        assert world.facts_now.would_have_killed == {"serving": 1}
        world.tell(e.ResumeRequested("anna"))
        if again:
            world.tell(e.PauseRequested("anna"))
        busy(world, int(CATCH_UP_S) - 1, tokens=0.0)
        assert world.state is State.RUNNING, "news are taken in first"
        busy(world, 3, tokens=0.0)
        assert world.facts_now.would_have_killed == {"serving": 1 + again}
        assert bool(world.done(a.KeepEvidence)) is not again


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
