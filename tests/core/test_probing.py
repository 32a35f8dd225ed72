"""How soon the next probe comes, and which of them ask who answers."""

from __future__ import annotations

import itertools

import pytest

from supervisor.actions import Probe
from supervisor.core.probing import ProbePlan
from supervisor.core.settings import ReadinessSettings
from supervisor.events import ProbeOutcome

SETTINGS = ReadinessSettings(
    timeout_s=25.0,
    interval_s=10.0,
    refused_interval_s=1.0,
    warming_interval_s=0.1,
    warming_interval_max_s=0.5,
    reidentify_every=2,
)


def plan() -> ProbePlan:
    return ProbePlan(7, SETTINGS)


def test_every_probe_of_a_start_asks_who_answers_and_later_every_few() -> None:
    probes = plan()
    assert [probes.next(ready=False) for _ in range(4)] == [Probe(7, 25.0, True)] * 4
    assert [probes.next(ready=True).identify for _ in range(4)] == [False, True, False, True]


def test_a_serving_server_is_asked_at_its_interval_whatever_it_said() -> None:
    assert {plan().delay_s(outcome, 50.0, ready=True) for outcome in ProbeOutcome} == {10.0}


def test_servers_are_asked_at_the_same_moments_whenever_they_were_started_or_became_healthy() -> None:
    assert {now + plan().delay_s(ProbeOutcome.OK, now, ready=True) for now in (50.0, 50.4, 53.9, 46.0)} == {60.0}
    assert {now + plan().delay_s(ProbeOutcome.REFUSED, now, ready=False) for now in (50.0, 50.3, 49.6)} == {51.0}


@pytest.mark.parametrize("outcome", [one for one in ProbeOutcome if one is not ProbeOutcome.UNAVAILABLE])
def test_a_port_that_does_not_answer_yet_is_asked_at_one_pace(outcome: ProbeOutcome) -> None:
    probes = plan()
    assert [probes.delay_s(outcome, 50.0, ready=False) for _ in range(3)] == [1.0] * 3


def test_a_warming_server_is_asked_at_once_and_then_ever_less_often() -> None:
    probes = plan()
    delays = [probes.delay_s(ProbeOutcome.UNAVAILABLE, 50.0, ready=False) for _ in range(30)]
    assert delays[:2] == [0.1, pytest.approx(0.115)]
    growing = delays[: delays.index(0.5) + 1]
    assert all(later > sooner for sooner, later in itertools.pairwise(growing))
    assert sum(growing) < 5.0, "within seconds"
    assert set(delays[len(growing) :]) == {0.5}
