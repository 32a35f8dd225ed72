"""A server in virtual time: scripted events come in their order, ticks at deadlines, and the world obliges."""

from __future__ import annotations

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import State
from supervisor.core.replay.rehearsal import Obliging, Rehearsal
from supervisor.core.server import Server
from supervisor.core.settings import PhaseLimit, RestartSettings, Settings
from supervisor.profile import facts, load_profile

PROFILE = load_profile("sglang")
SETTINGS = Settings(
    name="kimi", default_limit=PhaseLimit(60.0, 600.0), restart=RestartSettings(jitter=0.0, backoff_s=5.0)
)


def rehearsal(begin: float = 100.0) -> tuple[Rehearsal, Obliging]:
    world = Obliging()
    return Rehearsal(Server(SETTINGS, PROFILE, facts(PROFILE, ()), begin), begin, world), world


def run(played: Rehearsal, until: float) -> None:
    for _ in played.until(until):
        pass


def lifecycle(played: Rehearsal) -> list[tuple[float, str]]:
    return [
        (round(one.at, 1), one.action.after)
        for one in played.decisions
        if isinstance(one.action, a.Announce) and one.action.facet == "lifecycle"
    ]


def test_a_start_that_stays_silent_is_ended_and_started_again() -> None:
    played, _ = rehearsal()
    played.tell(e.StartRequested("test"))
    run(played, 170.0)
    assert lifecycle(played) == [
        (100.0, "reclaiming"),
        (100.0, "starting"),
        (160.0, "stopping"),
        (160.8, "reclaiming"),
        (160.8, "backoff"),
        (165.8, "reclaiming"),
        (165.8, "starting"),
    ]
    assert played.now == 170.0


def test_what_is_scripted_comes_when_it_is_due() -> None:
    played, _ = rehearsal()
    played.tell(e.StartRequested("test"))
    played.at(150.0, e.LineMatched(1, 1, "weights-begin", "TP0"))
    played.at(130.0, e.LineMatched(1, 1, "dist-begin", "TP0"))
    run(played, 200.0)
    phases = [one for one in played.decisions if isinstance(one.action, a.Announce) and one.action.facet == "phase"]
    assert [(one.at, one.action.after) for one in phases if isinstance(one.action, a.Announce)] == [
        (100.0, "launch"),
        (130.0, "dist-init"),
        (150.0, "weights"),
    ]


def test_readiness_is_what_the_world_says() -> None:
    played, world = rehearsal()
    played.tell(e.StartRequested("test"))
    run(played, 110.0)
    assert played.server.state is State.STARTING
    world.health = e.ProbeOutcome.OK
    run(played, 111.0)
    assert played.server.state is State.RUNNING


def test_time_can_be_stopped_at_any_decision() -> None:
    played, _ = rehearsal()
    played.tell(e.StartRequested("test"))
    for made in played.until(1e6):
        if any(isinstance(action, a.KeepEvidence) for action in made):
            break
    assert played.now == 160.0
    run(played, 160.1)
    assert played.server.state is State.STOPPING


def test_a_stop_ends_at_rest_and_time_passes_without_deadlines() -> None:
    played, _ = rehearsal()
    played.tell(e.StartRequested("test"))
    played.at(120.0, e.StopRequested("test"))
    run(played, 1000.0)
    assert played.server.state is State.STOPPED
    assert played.server.deadline() is None
    assert played.now == 1000.0
