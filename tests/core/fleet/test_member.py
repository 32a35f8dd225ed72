"""What a snapshot says of a server to the others: its state, its usual start, and when it is stuck."""

from __future__ import annotations

import pytest

from supervisor.core.fleet.member import Member, member
from supervisor.core.fleet.starts import Fleet, Rules
from supervisor.core.fleet.view import FleetView, view
from supervisor.core.lifecycle import State
from supervisor.snapshot import DeadlineView, FacetView, ServerSnapshot, StartupView

NOW = 1000.0
UNKNOWN = FacetView("unknown", 0.0)


def snapshot(lifecycle: str, *, goal: str = "up", readiness: str = "unknown", **fields: object) -> ServerSnapshot:
    return ServerSnapshot(
        name="kimi",
        at=NOW,
        goal=goal,
        lifecycle=FacetView(lifecycle, 900.0, "as it is"),
        **{"verdict": UNKNOWN, "startup": UNKNOWN, "liveness": UNKNOWN} | fields,
        readiness=FacetView(readiness, 0.0),
    )


def deadline(phase: str, median_s: float | None) -> DeadlineView:
    return DeadlineView(phase, 60.0, None, None, "learned", median_s=median_s)


def test_the_usual_start_is_the_sum_of_its_phases() -> None:
    known = (
        deadline("weights", 120.0),
        deadline("target-graph", 60.0),
        deadline("healthy", 5.0),
        deadline("jit", None),
    )
    found = member(snapshot("starting", deadlines=known), NOW)
    assert found == Member("kimi", State.STARTING, 900.0, wanted=True, reason="as it is", usual_s=180.0)
    assert member(snapshot("starting"), NOW).usual_s is None


def test_healthy_is_running_and_ready() -> None:
    assert member(snapshot("running", readiness="success"), NOW).healthy
    assert not member(snapshot("running", readiness="failure"), NOW).healthy
    assert not member(snapshot("draining", readiness="success"), NOW).healthy


@pytest.mark.parametrize("state", list(State))
def test_each_state_has_its_place(state: State) -> None:
    found = member(snapshot(str(state)), NOW)
    assert found.alive == (state in (State.STARTING, State.RUNNING, State.DRAINING, State.STOPPING))
    assert found.ending == (state in (State.DRAINING, State.STOPPING))
    assert found.claiming == (state is State.RECLAIMING)
    assert not member(snapshot(str(state), goal="down"), NOW).claiming


def test_only_a_start_can_be_stuck() -> None:
    stalled = FacetView("stalled", 990.0)
    assert member(snapshot("starting", verdict=stalled), NOW).stuck(NOW)
    assert not member(snapshot("running", verdict=stalled), NOW).stuck(NOW)
    assert not member(snapshot("starting"), NOW).stuck(NOW)
    assert member(snapshot("starting"), NOW).stuck(900.0 + 3601)


def test_the_view_counts_a_stuck_start_among_the_unknown() -> None:
    members = {
        "slow": Member("slow", State.STARTING, 0.0, wanted=True, stalled=True),
        "kimi": Member("kimi", State.STARTING, 950.0, wanted=True, usual_s=100.0),
        "glm": Member("glm", State.RECLAIMING, 960.0, wanted=True, usual_s=30.0),
        "idle": Member("idle", State.STOPPED),
    }
    fleet = Fleet(Rules(slots=1))
    fleet.ask("glm", members, NOW)
    assert view(fleet, members, NOW) == FleetView(1, ("kimi", "slow"), ("glm",), NOW + 80, ("slow",), ("slow",))


def test_a_start_that_stands_still_counts_among_the_overdue_and_so_does_who_waits_for_its_slot() -> None:
    """It has its slot yet; its usual length, which is over or will be soon, foretells nothing."""
    members = {
        "slow": Member("slow", State.STARTING, 950.0, wanted=True, usual_s=100.0, overdue=True),
        "kimi": Member("kimi", State.STARTING, 950.0, wanted=True, usual_s=100.0),
        "glm": Member("glm", State.RECLAIMING, 960.0, wanted=True, usual_s=30.0),
        "qwen": Member("qwen", State.RECLAIMING, 961.0, wanted=True, usual_s=40.0),
    }
    fleet = Fleet(Rules(slots=2, priorities={"glm": 1}))
    for name in ("glm", "qwen"):
        fleet.ask(name, members, NOW)
    seen = view(fleet, members, NOW)
    assert (seen.unknown, seen.overdue) == (("slow",), ("slow",))
    assert seen.ready_at == NOW + 50 + 30 + 40, "the other slot serves both"
    alone = Fleet(Rules(slots=1))
    del members["kimi"]
    alone.ask("glm", members, NOW)
    assert view(alone, members, NOW).unknown == ("slow", "glm", "qwen")


def test_a_start_whose_phase_lasts_far_longer_than_usual_is_overdue() -> None:
    known = (deadline("weights", 120.0), deadline("target-graph", 60.0))
    start = StartupView("weights", "weights", 900.0)
    for now, late in ((1000.0, False), (1200.0, True)):
        found = member(snapshot("starting", deadlines=known, start=start), now)
        assert (found.overdue, found.ready_at is None) == (late, late)


def test_nobody_starts_and_nothing_is_foretold() -> None:
    assert view(Fleet(Rules()), {"idle": Member("idle", State.STOPPED)}, NOW) == FleetView()
