"""What passes through a mailbox is counted once, and goes on across readers, attempts and daemons."""

from __future__ import annotations

import msgspec
import pytest

from supervisor.actions import AnyAction, Probe, SignalTree
from supervisor.core.traffic import CHECKS, HostTraffic, Meter, Traffic, together
from supervisor.events import (
    AnyEvent,
    CanaryAnswered,
    EvidenceKept,
    LogGrew,
    Probed,
    ProbeOutcome,
    Ticked,
    TreeEmptied,
    TreeSampled,
    TreeStuck,
)


def counted(*passing: AnyEvent | AnyAction) -> Traffic:
    traffic = Traffic()
    meter = Meter(traffic)
    for what in passing:
        meter.take(what)
    return traffic


def test_probes_count_by_what_they_saw() -> None:
    traffic = counted(
        Probed(1, ProbeOutcome.REFUSED),
        Probed(1, ProbeOutcome.REFUSED),
        Probed(1, ProbeOutcome.UNAVAILABLE, 503, 0.02),
        Probed(1, ProbeOutcome.OK, 200, 0.004),
    )

    assert traffic.checks == {"health refused": 2, "health unavailable": 1, "health ok": 1}
    assert traffic.check_s["health"].counts[:2] == [1, 1], "what was refused took no time"
    assert traffic.check_s["health"].total == pytest.approx(0.024)


@pytest.mark.parametrize(("sane", "outcome"), [(True, "ok"), (False, "error"), (None, "timeout")])
def test_canaries_count_beside_them(sane: bool | None, outcome: str) -> None:
    assert counted(CanaryAnswered(1, sane, 0.3)).checks == {f"canary {outcome}": 1}


def test_every_outcome_has_its_series_from_the_beginning() -> None:
    probes = [Probed(1, outcome) for outcome in ProbeOutcome]
    canaries = [CanaryAnswered(1, sane) for sane in (True, False, None)]
    assert set(counted(*probes, *canaries).checks) == {f"{check} {outcome}" for check, outcome in CHECKS}


def test_a_log_is_counted_on_by_the_next_reader_and_the_next_attempt() -> None:
    traffic = counted(
        LogGrew(1, 1000, 10),
        LogGrew(1, 1500, 12),
        LogGrew(1, 1500, 12),
        LogGrew(1, 200, 2),  # the configuration was replaced: another reader goes on where the last one ended
        LogGrew(2, 5000, 40),
    )

    assert (traffic.log_bytes, traffic.log_lines) == (1500 + 200 + 5000, 12 + 2 + 40)


def test_bundles_count_by_completeness() -> None:
    whole, partial = EvidenceKept(1, "/e/1"), EvidenceKept(2, "/e/2", ("stacks",))
    traffic = counted(whole, partial, EvidenceKept(3, ""), EvidenceKept(4, "/e/4", ("half",), cut=True))

    assert traffic.evidence == {"complete": 1, "partial": 1, "failed": 1, "cut": 1}


def test_the_steps_of_an_end() -> None:
    stuck = TreeStuck(2, ())
    traffic = counted(
        SignalTree(1, 1),  # a HUP ends nothing
        SignalTree(1, 15),
        TreeEmptied(1),
        SignalTree(2, 2),
        stuck,
        stuck,  # tried again a minute later
        TreeEmptied(2, killed=3),
    )

    assert traffic.steps == {"term": 2, "kill": 1, "unkillable": 1}


def test_processes_are_those_of_the_present_attempt() -> None:
    meter = Meter(Traffic())
    assert meter.processes is None
    assert not meter.take(TreeSampled(1, 0.0, 0, 0, members=11)), "a look is nothing to be stored"
    assert meter.processes == 11
    meter.take(TreeEmptied(1))
    assert meter.processes is None


def test_what_is_nobodys_count_stirs_nothing() -> None:
    meter = Meter(Traffic())
    assert not meter.take(Ticked())
    assert not meter.take(Probe(1, 5.0))
    assert meter.take(Probed(1, ProbeOutcome.OK))


def test_counts_survive_json() -> None:
    traffic = counted(Probed(1, ProbeOutcome.OK, 200, 0.1), EvidenceKept(1, ""), LogGrew(1, 5, 1))
    assert msgspec.json.decode(msgspec.json.encode(traffic), type=Traffic) == traffic


def test_earlier_daemons_and_this_one_together() -> None:
    before = HostTraffic(3, 1, {"adopted": 2}, {"listServers 200 read": 4}, {"kimi": 9})
    now = HostTraffic(1, 0, {"gone": 1}, {"listServers 200 read": 1, "showInfo 200 read": 1}, {})

    assert together(before, now) == HostTraffic(
        4, 1, {"adopted": 2, "gone": 1}, {"listServers 200 read": 5, "showInfo 200 read": 1}, {"kimi": 9}
    )
    assert together(HostTraffic(), HostTraffic()) == HostTraffic()
