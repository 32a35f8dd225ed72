"""What is remembered of a failed attempt is completed by what comes after the decision."""

from __future__ import annotations

import msgspec

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import State
from supervisor.core.memory import past_of
from supervisor.core.server import Server
from supervisor.saved import SavedServer
from supervisor.snapshot import IncidentView
from tests.core.test_maintenance import running


def test_an_incident_knows_when_the_memory_was_back_beyond_the_next_start() -> None:
    world = running()
    world.dirty = e.DevicesChecked(1, False, reason="GPU 0: 80 GB held")
    world.tell(e.Exited(1, 1))
    world.until(20)
    assert world.state is State.RECLAIMING
    (incident,) = world.facts_now.incidents
    assert incident.stop is not None
    assert incident.stop.free_s is None

    world.dirty = None
    world.until(60)
    assert (world.state, world.facts_now.attempt) == (State.RUNNING, 2)
    (incident,) = world.facts_now.incidents
    assert incident.stop is not None
    assert incident.stop.empty_s is not None
    assert incident.stop.free_s is not None
    assert incident.stop.free_s > 10 > incident.stop.empty_s


def test_late_evidence_is_put_to_its_own_incident_alone() -> None:
    world = running()
    world.silent.add(a.KeepEvidence)
    for attempt in (1, 2):
        world.tell(e.Exited(attempt, -11))
        world.until(world.now + 30)
        assert world.facts_now.attempt == attempt + 1
    world.tell(e.EvidenceKept(1, "/evidence/1"))
    assert [one.evidence_path for one in world.facts_now.incidents] == ["/evidence/1", ""]
    world.tell(e.EvidenceKept(2, "/evidence/2"))
    assert [one.evidence_path for one in world.facts_now.incidents] == ["/evidence/1", "/evidence/2"]


def test_what_an_earlier_daemon_has_died_over_is_found_and_never_goes_before_what_is_whole() -> None:
    world = running()
    world.silent.add(a.KeepEvidence)
    for attempt in (1, 2):
        world.tell(e.Exited(attempt, -11))
        world.until(world.now + 30)
    world.tell(e.EvidenceKept(1, "/evidence/1-2", ("half",), cut=True))
    world.tell(e.EvidenceKept(2, "/evidence/2"))
    world.tell(e.EvidenceKept(2, "/evidence/2-2", ("half",), cut=True))
    kept = [(one.evidence_path, one.evidence_cut) for one in world.facts_now.incidents]
    assert kept == [("/evidence/1-2", True), ("/evidence/2", False)]


def test_a_server_knows_the_failures_that_an_earlier_daemon_has_seen_and_gives_none_of_their_numbers() -> None:
    past = [IncidentView(number, 1.0, 2.0, "killed", "weights", "weights") for number in range(3, 30)]
    world = running()
    server = Server(world.server.settings, world.profile, world.facts, 50.0, 7, past=past)
    assert [one.attempt for one in server.snapshot().incidents] == list(range(20, 30)), "as many as are ever kept"
    assert server.snapshot().attempt == 29


def test_the_times_of_another_boot_are_told_by_the_wall_clock() -> None:
    failed = IncidentView(3, begun=1000.0, ended=1100.0, reason="killed", phase="weights", stage="weights")
    saved = SavedServer("kimi", "boot", True, "running", 0.0, "", 3, incidents=(failed,), at=2000.0, wall=500_000.0)
    assert past_of(saved, "boot", 5000.0, 600_000.0) == (failed,)
    (told,) = past_of(saved, "another", now=60.0, wall=500_300.0)
    assert (told.begun, told.ended) == (60 - 300 - 1000, 60 - 300 - 900), "as long ago as it is"
    assert past_of(msgspec.structs.replace(saved, wall=0.0), "another", 60.0, 500_300.0) == (), "nobody knows when"
