"""What is remembered of a failed attempt is completed by what comes after the decision."""

from __future__ import annotations

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import State
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
