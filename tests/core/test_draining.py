"""Before a serving server is asked to end it leaves its routers, and what runs may end, within bounds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import State
from supervisor.core.settings import Settings, StopSettings
from tests.core.test_server import healthy
from tests.core.world import SETTINGS, World

ROUTED = replace(SETTINGS, stop=StopSettings(grace_s=90.0, leave_limit_s=15.0))


def running(settings: Settings = ROUTED) -> World:
    return healthy(World(settings))


def drain(world: World, grace_s: float = 60.0) -> None:
    world.tell(e.StopRequested("anna", grace_s))


def test_a_stop_waits_for_the_routers_before_the_signal() -> None:
    world = running()
    world.requests = 3
    world.stop()
    assert world.state is State.DRAINING
    assert world.done(a.LeaveRouters) == [a.LeaveRouters(1, 15.0)]
    assert not world.done(a.SignalTree)
    world.settle()
    assert world.when(a.SignalTree) == [6.02], "as soon as they have let go; a plain stop waits for no requests"
    assert not world.done(a.CountRequests)
    assert world.state is State.STOPPED


def test_without_a_router_the_signal_comes_first() -> None:
    world = running(SETTINGS)
    drain(world)
    assert world.done(a.SignalTree)
    assert not world.done(a.LeaveRouters)


def test_a_starting_server_is_in_no_router() -> None:
    world = World(ROUTED)
    world.start()
    world.until(3)
    world.stop()
    assert world.done(a.SignalTree)
    assert not world.done(a.LeaveRouters)


def test_a_router_that_never_answers_holds_a_stop_up_by_its_limit_and_no_longer() -> None:
    world = running()
    world.silent = {a.LeaveRouters}
    world.stop()
    world.until(30)
    assert not world.done(a.SignalTree)
    world.until(32)
    assert world.when(a.SignalTree) == [31.0], "15 s, and 10 s for an answer that was lost"
    world.settle()
    assert world.state is State.STOPPED


def test_what_could_not_be_had_is_told() -> None:
    world = running()
    world.router_problem = "front: nobody listens"
    drain(world)
    world.requests = 2
    world.until(7)
    assert world.facts_now.drain is not None
    assert world.facts_now.drain.note == "front: nobody listens"


def test_a_drain_waits_for_running_requests_and_for_a_second_look() -> None:
    world = running()
    world.requests = 3
    drain(world)
    world.until(20)
    assert not world.done(a.SignalTree)
    facts = world.facts_now
    assert facts.stop_stage == "requests"
    assert facts.drain is not None
    assert (facts.drain.requests, facts.drain.until) == (3, 66.0)
    world.requests = 0
    world.until(20.4)
    world.requests = 1  # the router had chosen us for it before it let go
    world.until(21)
    world.requests = 0
    world.until(25)
    assert len(world.done(a.SignalTree)) == 1
    assert 21.5 < world.when(a.SignalTree)[0] < 22.5
    world.settle()
    assert world.state is State.STOPPED
    assert world.facts_now.drain is None


def test_a_server_without_requests_is_looked_at_twice_as_well() -> None:
    world = running()
    world.requests = 0
    drain(world)
    world.until(20)
    assert len(world.done(a.CountRequests)) == 2
    first, second = world.when(a.CountRequests)
    assert world.when(a.SignalTree) == [pytest.approx(second + 0.01)]
    assert second - first > 0.5


def test_a_second_drain_begins_its_looks_anew() -> None:
    world = running()
    world.requests = None
    for attempt in (1, 2):
        world.tell(e.RestartRequested("anna", "", 60.0))
        world.until(world.now + 20)
        assert len(world.done(a.CountRequests)) == 3 * attempt
        assert (world.state, world.facts_now.attempt) == (State.RUNNING, attempt + 1)


def test_requests_that_do_not_end_are_cut_off_when_the_time_is_over() -> None:
    world = running()
    world.requests, world.ignores_term = 3, True
    drain(world, 30.0)
    world.settle()
    assert world.when(a.SignalTree) == [36.0]
    assert world.when(a.KillTree) == [41.0], "the engine has a moment to end by itself all the same"
    assert world.state is State.STOPPED


def test_an_engine_that_does_not_count_drains_by_itself_within_the_grace() -> None:
    world = running()
    world.requests, world.ignores_term = None, True
    drain(world, 30.0)
    world.until(10)
    assert 6.9 < world.when(a.SignalTree)[0] < 7.5, "after three looks"
    assert world.facts_now.drain is not None
    assert world.facts_now.drain.note == "running requests are not known: no page"
    world.settle()
    assert world.when(a.KillTree) == [36.0]


def test_one_look_without_an_answer_is_no_reason_to_cut_requests_off() -> None:
    world = running()
    world.requests = None
    drain(world)
    world.until(6.6)
    world.requests = 2
    world.until(30)
    assert not world.done(a.SignalTree)
    world.silent = {a.CountRequests}
    world.until(31)
    world.silent, world.requests = set(), 0
    world.until(45)
    assert world.done(a.SignalTree)


def test_only_looks_without_an_answer_in_a_row_end_the_wait() -> None:
    world = running()
    world.silent.add(a.CountRequests)
    drain(world)
    world.until(7)
    for counted in (None, 2, None, None, 2, None, None):
        world.tell(e.RequestsCounted(1, counted, "no page"))
        assert not world.done(a.SignalTree)
    world.tell(e.RequestsCounted(1, None, "no page"))
    assert world.done(a.SignalTree)


def test_a_plain_stop_ends_the_wait() -> None:
    world = running()
    world.requests = 3
    drain(world, 600.0)
    world.until(20)
    world.stop()
    world.until(21)
    assert world.when(a.SignalTree) == [20.0]
    world.settle()
    assert world.state is State.STOPPED


def test_a_shorter_drain_shortens_the_wait_and_a_longer_one_does_not_lengthen_it() -> None:
    world = running()
    world.requests = 3
    drain(world, 600.0)
    world.until(20)
    drain(world, 10.0)
    drain(world, 500.0)
    world.until(40)
    assert world.when(a.SignalTree) == [30.0]


def test_a_plain_stop_while_the_routers_are_left_waits_for_no_requests_then() -> None:
    world = running()
    world.requests = 3
    drain(world, 600.0)
    world.stop()
    world.until(7)
    assert world.when(a.SignalTree) == [6.02]


def test_a_plain_stop_while_the_routers_are_left_has_the_grace_of_a_stop() -> None:
    world = running()
    world.ignores_term = True
    drain(world, 600.0)
    world.stop()
    world.settle()
    assert world.when(a.KillTree) == [pytest.approx(6.02 + 90.0)]


def test_a_drain_asked_while_a_stop_leaves_the_routers_gives_no_more_time() -> None:
    world = running()
    world.ignores_term = True
    world.stop()
    drain(world, 600.0)
    world.settle()
    assert world.when(a.KillTree) == [pytest.approx(6.02 + 90.0)]


def test_a_restart_drains_and_starts_again() -> None:
    world = running()
    world.requests = 1
    world.tell(e.RestartRequested("anna", "rolling", 60.0))
    world.until(10)
    assert not world.done(a.SignalTree)
    world.requests = 0
    world.until(20)
    assert (world.state, world.facts_now.attempt) == (State.RUNNING, 2)


def test_a_server_that_ends_meanwhile_is_swept() -> None:
    world = running()
    world.requests = 3
    drain(world, 600.0)
    world.until(10)
    world.tell(e.Exited(1, 0))
    world.settle()
    assert world.state is State.STOPPED
    assert not world.done(a.SignalTree)


def test_the_next_daemon_goes_on_with_the_drain() -> None:
    world = running()
    world.requests = 3
    drain(world, 60.0)
    world.until(10)
    world.daemon_dies(5.0)
    assert world.state is State.DRAINING
    assert world.done(a.LeaveRouters)[1:] == [a.LeaveRouters(1, 15.0)], "once more: nobody knows what came of it"
    world.until(20)
    assert not world.done(a.SignalTree)
    assert world.facts_now.drain is not None
    assert world.facts_now.drain.until == 66.0
    world.requests = 0
    world.settle()
    assert world.state is State.STOPPED


def test_a_signal_that_died_with_the_daemon_is_sent_by_the_next_one() -> None:
    """The decision is written down before the deed: a long grace must not pass without anybody having been asked."""
    world = running(SETTINGS)
    world.ignores_term = True
    drain(world, 600.0)
    world.ignores_term = False
    world.daemon_dies(1.0)
    world.until(world.now + 5.0)
    assert len(world.done(a.SignalTree)) == 2
    assert world.state is State.STOPPED


def test_an_end_that_was_asked_for_is_not_told_as_a_failure() -> None:
    """An engine kills its own tree on the way out, so that its leader may well end by a signal."""
    world = running(SETTINGS)
    world.stop()
    world.settle()
    assert world.state is State.STOPPED
    reasons = [action.reason for action in world.done(a.Announce) if action.facet == "lifecycle"]
    assert any(reason.startswith("ended as asked") for reason in reasons), reasons
    assert not any(reason.startswith(("ended by", "exited")) for reason in reasons), reasons
