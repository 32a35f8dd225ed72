"""What a server costs is counted once, under its cause, and goes on across daemons."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.gpus.views import GpusView, GpuView
from supervisor.core.lifecycle import ALIVE
from supervisor.core.phasetimes import phase_seconds
from supervisor.core.reasons import MEANING, Reason, reason_of
from supervisor.core.tally import LOSSES, STARTUP, Account, SavedTally, Tally
from supervisor.core.traffic import HostTraffic
from supervisor.events import Probed, ProbeOutcome, TreeSampled
from supervisor.profile import load_profile
from supervisor.snapshot import (
    DiagnosisView,
    ExitView,
    FacetView,
    IncidentView,
    ServerSnapshot,
    SpanView,
    StartupView,
    StopView,
)

PLAIN = ServerSnapshot(
    name="kimi",
    at=0.0,
    goal="down",
    lifecycle=FacetView("stopped", 0.0),
    verdict=FacetView("unknown", 0.0),
    startup=FacetView("unknown", 0.0),
    readiness=FacetView("unknown", 0.0),
    liveness=FacetView("unknown", 0.0),
    gpus=(0, 1, 2, 3),
)


class Life:
    """One server's facets as they change, and the tally that watches."""

    def __init__(self, saved: SavedTally | None = None) -> None:
        self.tally = Tally(saved)
        self.now = 0.0
        self.facts = PLAIN
        self.tally.observe(self.facts, self.now)

    def at(self, now: float, state: str, **fields: object) -> Life:
        self.now = now
        lifecycle = FacetView(state, now)
        self.facts = msgspec.structs.replace(self.facts, lifecycle=lifecycle, **fields)
        self.tally.observe(self.facts, now)
        return self

    def starts(self, now: float) -> Life:
        attempt = self.facts.attempt + 1
        self.at(now, "reclaiming", goal="up")
        new = {"readiness": FacetView("unknown", now), "verdict": FacetView("warming", now)}
        return self.at(now, "starting", attempt=attempt, started=now, exit=None, stop=None, **new)

    def serves(self, now: float) -> Life:
        return self.at(now, "running", readiness=FacetView("success", now), ready_since=now)

    def fails(self, now: float, cause: str = "", code: int | None = 1, *, stalled: bool = False) -> Life:
        phase = "healthy" if self.facts.ready_since is not None else "weights"
        if stalled:
            self.at(now, "stopping", verdict=FacetView("stalled", now))
        number, begun = self.facts.attempt, self.facts.started or 0.0
        incident = IncidentView(number, begun, now, "x", phase, phase, diagnosis=DiagnosisView(cause))
        exit_view = ExitView(number, now, code)
        stop = StopView("kill", exit_s=0.0, kill_s=0.0, empty_s=0.2, killed=3)
        incidents = (*self.facts.incidents, incident)
        self.at(now, "reclaiming", incidents=incidents, exit=exit_view, stop=stop, ready_since=None)
        return self.at(now, "backoff", stop=msgspec.structs.replace(stop, free_s=0.7), verdict=FacetView("dead", now))

    @property
    def book(self) -> Account:
        self.tally.settle(self.now)
        return self.tally.account("kimi")


def test_a_start_that_succeeds_is_time_of_starting() -> None:
    life = Life().starts(10).serves(110)

    assert life.book.starts == 1
    assert life.book.lost_s == {STARTUP: 100.0}
    assert life.book.gpu_lost_s == {STARTUP: 400.0}
    assert life.book.startup_s["ready"].total == 100.0
    assert life.book.restarts == {}


def test_hours_of_a_start_that_stalls_are_the_stalls() -> None:
    life = Life().starts(0).fails(3600, stalled=True).starts(3605).serves(3705)

    assert life.book.lost_s == {"stall_start": 3705.0}
    assert life.book.exits == {"code stall_start": 1}
    assert life.book.restarts == {"stall_start": 1}
    assert life.book.startup_s["failed"].total == 3600.0


def test_a_start_fails_once_and_not_when_it_had_served() -> None:
    life = Life().starts(100).fails(130).starts(140).serves(150).fails(400)

    assert (life.book.startup_s["failed"].total, sum(life.book.startup_s["failed"].counts)) == (30.0, 1)
    assert (life.book.startup_s["ready"].total, sum(life.book.startup_s["ready"].counts)) == (10.0, 1)


def test_what_nobody_wanted_any_more_is_not_the_reason_of_the_next_start() -> None:
    life = Life().starts(0).serves(10).fails(20).at(25, "stopped", goal="down")
    life.now = 1000
    life.starts(1000).serves(1100)

    assert life.book.restarts == {}
    assert life.book.lost_s == {STARTUP: 110.0, "crash": 5.0}


def test_a_start_that_nobody_wants_any_more_was_time_of_starting() -> None:
    life = Life().starts(0).at(50, "stopping", goal="down")

    assert (life.book.lost_s, life.book.pending_s) == ({STARTUP: 50.0}, 0.0)


def test_a_server_that_runs_before_its_readiness_is_known_has_not_started_yet() -> None:
    life = Life().starts(0).at(5, "running", ready_since=None)
    assert "ready" not in life.book.startup_s
    life.serves(30)
    assert life.book.startup_s["ready"].total == 30.0


def test_a_start_that_is_under_way_is_not_yet_anybodys() -> None:
    life = Life().starts(0)
    life.now = 50

    assert (life.book.lost_s, life.book.pending_s, life.book.pending_gpu_s) == ({}, 50.0, 200.0)


def test_each_failure_of_a_row_has_its_own_time() -> None:
    life = Life().starts(0).fails(100, "gpu-oom-weights").starts(110).fails(160, "scheduler-software-bug")
    life.starts(170).serves(270)

    assert life.book.lost_s == {"oom_gpu": 110.0, "crash": 160.0}
    assert life.book.restarts == {"oom_gpu": 1, "crash": 1}


def test_a_server_that_stays_down_goes_on_costing() -> None:
    life = Life().starts(0).serves(10).fails(20, "server-args-invalid").at(25, "fatal")
    life.now = 1025

    assert life.book.lost_s["config"] == pytest.approx(1005)


def test_nobody_loses_what_nobody_wants() -> None:
    life = Life().starts(0).serves(10).at(20, "draining", goal="down").at(30, "stopped")
    life.now = 9000

    assert life.book.lost_s == {STARTUP: 10.0}
    assert life.book.exits == {"unknown operator": 1}


def test_a_restart_that_was_asked_for_is_the_operators() -> None:
    life = Life().starts(0).serves(10).at(100, "draining").at(105, "stopping")
    life.at(106, "reclaiming", exit=ExitView(1, 106, 0)).starts(107).serves(150)

    assert life.book.restarts == {"operator": 1}
    assert life.book.exits == {"code operator": 1}
    assert life.book.lost_s == {STARTUP: 10.0, "operator": 50.0}


def test_running_without_use_is_time_lost() -> None:
    life = Life().starts(0).serves(10).at(50, "running", readiness=FacetView("failure", 50)).serves(80)

    assert life.book.lost_s == {STARTUP: 10.0, "unready": 30.0}
    assert life.book.startup_s["ready"].counts.count(1) == 1, "readiness that comes back is no second start"


def test_waiting_for_devices_is_told_apart() -> None:
    life = Life().at(0, "reclaiming", goal="up").at(60, "reclaiming").starts(60).serves(70)

    assert life.book.lost_s == {"devices": 60.0, STARTUP: 10.0}


def test_an_end_counts_processes_killed_and_how_long_memory_took() -> None:
    life = Life().starts(0).serves(5).fails(10, code=-9)

    assert life.book.exits == {"signal crash": 1}
    assert life.book.killed_processes == 3
    assert (life.book.stop_s.total, sum(life.book.stop_s.counts)) == (0.2, 1)
    assert life.book.release_s.total == pytest.approx(0.5)


def test_the_same_facts_again_count_nothing() -> None:
    life = Life().starts(0).serves(5).fails(10)
    before = msgspec.json.encode(life.book)
    for _ in range(3):
        life.tally.observe(life.facts, 10)

    assert msgspec.json.encode(life.book) == before


def test_the_next_daemon_counts_on() -> None:
    life = Life().starts(0).serves(10).fails(20)
    saved = msgspec.json.decode(msgspec.json.encode(life.tally.save()), type=SavedTally)
    life.tally = Tally(saved)
    life.tally.observe(life.facts, 500)
    life.starts(510).serves(520)

    assert life.book.starts == 2
    assert life.book.restarts == {"crash": 1}
    assert life.book.lost_s == {STARTUP: 10.0, "crash": 20.0}, "the time without a daemon is nobody's"


def test_attempts_from_before_the_first_look_are_not_counted() -> None:
    tally = Tally()
    tally.observe(msgspec.structs.replace(PLAIN, attempt=17, goal="up", lifecycle=FacetView("starting", 0)), 0)

    assert tally.account("kimi").starts == 0
    assert tally.account("nobody").starts == 0


def test_who_is_configured_no_more_is_forgotten() -> None:
    life = Life().starts(0)
    life.tally.keep_only(())

    assert life.book == Account()


def test_phases_add_up_to_the_start() -> None:
    spans = [
        ("TP0", "launch", 0, 10),
        ("TP0", "weights", 10, 40),
        ("TP1", "weights", 12, 60),
        ("TP0", "warmup", 40, 70),
    ]
    start = StartupView("warmup", "warmup", 40.0, timeline=tuple(SpanView(*span) for span in spans))

    assert phase_seconds(start, 75) == {"launch": 10, "weights": 30, "warmup": 35}
    assert phase_seconds(None, 75) == {}


def test_each_xid_counts_once() -> None:
    def look(xid_at: float | None) -> GpusView:
        return GpusView("seeing", 0, "", gpus=(GpuView(0, "GPU-a", "H200", "free", last_xid=79, last_xid_at=xid_at),))

    tally = Tally()
    for at in (None, 5.0, 5.0, 9.0):
        tally.observe_gpus(look(at))

    assert tally.xids() == {"GPU-a": 2}


def test_every_cause_of_the_profile_has_a_reason() -> None:
    for cause in load_profile("sglang").causes:
        incident = IncidentView(1, 0, 1, "x", "weights", "weights", diagnosis=DiagnosisView(cause.name))
        assert reason_of(incident, stalled=False) in MEANING
    assert set(MEANING) == set(Reason)


def test_a_cause_that_explains_the_standstill_says_more_than_the_standstill() -> None:
    def reason(cause: str, phase: str) -> Reason:
        return reason_of(IncidentView(1, 0, 1, "x", phase, phase, diagnosis=DiagnosisView(cause)), stalled=True)

    assert reason("gpu-hardware-fault", "weights") is Reason.HARDWARE
    assert reason("scheduler-hang", "weights") is Reason.STALL_START
    assert reason("scheduler-hang", "healthy") is Reason.STALL_SERVE


STEPS = st.lists(
    st.tuples(st.sampled_from(["starts", "serves", "cannot be used", "fails", "stops"]), st.floats(0, 100)), max_size=30
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_counters_only_grow_and_time_is_lost_once(steps: list[tuple[str, float]]) -> None:
    life, before, due = Life(), 0.0, 0.0
    for step, pause_s in steps:
        now = life.now + pause_s
        serving = life.facts.lifecycle.value == "running" and life.facts.readiness.value != "failure"
        due += pause_s if life.facts.goal == "up" and not serving else 0.0
        match step:
            case "starts" if life.facts.lifecycle.value in ("stopped", "backoff"):
                life.starts(now)
            case "serves" if life.facts.lifecycle.value == "starting":
                life.serves(now)
            case "fails" if life.facts.lifecycle.value in ("starting", "running"):
                life.fails(now)
            case "cannot be used" if life.facts.lifecycle.value == "running":
                life.at(now, "running", readiness=FacetView("failure", now))
            case "stops":
                life.at(now, "stopped", goal="down")
            case _:
                life.now = now
        book = life.book
        lost = sum(book.lost_s.values())
        assert lost >= before
        assert lost + book.pending_s == pytest.approx(due), "whoever is wanted serves, or loses time"
        assert set(book.lost_s) <= set(LOSSES)
        assert book.gpu_lost_s == pytest.approx({cause: 4 * seconds for cause, seconds in book.lost_s.items()})
        assert book.pending_gpu_s == pytest.approx(4 * book.pending_s)
        assert book.starts == life.facts.attempt
        assert sum(book.exits.values()) == life.facts.attempt - (life.facts.lifecycle.value in ALIVE)
        before = lost


def test_each_phase_is_told_with_what_became_of_it() -> None:
    life = Life().starts(10)
    spans = (SpanView("TP0", "launch", 10, 30), SpanView("TP0", "weights", 30))
    life.facts = msgspec.structs.replace(life.facts, start=StartupView("weights", "weights", 30, timeline=spans))
    life.fails(110)

    assert {key: observed.total for key, observed in life.book.phase_s.items()} == {
        "launch passed": 20,
        "weights failed": 80,
    }
    life.starts(120).serves(200)
    assert life.book.phase_s["weights failed"].total == 80
    assert sum(life.book.phase_s["launch passed"].counts) == 2


def test_memory_that_does_not_come_back_is_counted_as_given_up() -> None:
    life = Life().starts(10).serves(110)
    stop = StopView("kill", exit_s=0.0, kill_s=0.0, empty_s=0.2)
    life.at(200, "stopping").at(201, "reclaiming", stop=stop).at(261, "quarantined").at(300, "quarantined")

    assert (sum(life.book.unreleased_s.counts), life.book.unreleased_s.total) == (1, 60)
    assert sum(life.book.release_s.counts) == 0


def test_traffic_is_counted_for_servers_that_are_known_and_forgotten_with_them() -> None:
    life = Life()
    life.tally.save()
    life.tally.hear("stranger", Probed(1, ProbeOutcome.OK))
    assert not life.tally.stirred
    life.tally.hear("kimi", Probed(1, ProbeOutcome.OK))
    life.tally.hear("kimi", TreeSampled(1, 0.0, 0, 0, members=4))
    assert life.tally.stirred
    assert life.tally.processes() == {"kimi": 4}

    again = Tally(life.tally.save(HostTraffic(2)))
    assert not life.tally.stirred
    again.hear("kimi", Probed(1, ProbeOutcome.OK))
    assert again.account("kimi").traffic.checks == {"health ok": 2}
    assert again.save(HostTraffic(1)).host.orphans_reaped == 3
    again.keep_only([])
    assert again.processes() == {}
    assert again.account("kimi") == Account()
