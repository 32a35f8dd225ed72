"""What probes mean: warming is no failure, a foreign listener is no success, one failure is one voice."""

from __future__ import annotations

import msgspec
import pytest

from supervisor.core.health import Health, HealthBook
from supervisor.core.settings import ReadinessSettings
from supervisor.events import Listener, Probed, ProbeOutcome

SETTINGS = ReadinessSettings(failure_threshold=3, liveness_stall_s=60.0)


def probed(outcome: ProbeOutcome, *, listener: Listener = Listener.OURS, model: str = "", status: int = 0) -> Probed:
    return Probed(1, outcome, status, 0.1, listener, model)


def healthy() -> HealthBook:
    book = HealthBook(SETTINGS)
    book.observe(probed(ProbeOutcome.OK), 0.0)
    return book


@pytest.mark.parametrize("outcome", [o for o in ProbeOutcome if o is not ProbeOutcome.OK])
def test_nothing_a_probe_sees_during_a_start_is_a_failure(outcome: ProbeOutcome) -> None:
    book = HealthBook(SETTINGS)
    for at in range(1000):
        opinion = book.observe(probed(outcome), at)
    assert (opinion.startup, opinion.readiness, opinion.liveness) == (Health.UNKNOWN,) * 3


def test_refused_and_503_are_told_apart_in_words() -> None:
    book = HealthBook(SETTINGS)
    assert "not open" in book.observe(probed(ProbeOutcome.REFUSED), 0).reason
    assert "warming" in book.observe(probed(ProbeOutcome.UNAVAILABLE), 1).reason


def test_200_from_our_own_socket_is_success() -> None:
    assert healthy().opinion.startup is Health.SUCCESS


def test_200_from_somebody_elses_socket_is_not() -> None:
    opinion = HealthBook(SETTINGS).observe(probed(ProbeOutcome.OK, listener=Listener.FOREIGN), 0)
    assert opinion.startup is Health.UNKNOWN
    assert "somebody else" in opinion.reason


def test_a_listener_nobody_can_name_is_no_contradiction() -> None:
    opinion = HealthBook(SETTINGS).observe(probed(ProbeOutcome.OK, listener=Listener.UNKNOWN), 0)
    assert opinion.startup is Health.SUCCESS


@pytest.mark.parametrize(
    ("answers", "startup"), [("/m/kimi", "success"), ("kimi", "success"), ("", "success"), ("/m/llama", "unknown")]
)
def test_the_model_identity_must_not_contradict(answers: str, startup: str) -> None:
    book = HealthBook(SETTINGS, "kimi", "/m/kimi")
    assert book.observe(probed(ProbeOutcome.OK, model=answers), 0).startup == startup


def test_below_the_threshold_readiness_stays() -> None:
    book = healthy()
    for at in (1, 2):
        assert book.observe(probed(ProbeOutcome.TIMEOUT), at).readiness is Health.SUCCESS
    opinion = book.observe(probed(ProbeOutcome.TIMEOUT), 3)
    assert opinion.readiness is Health.FAILURE
    assert opinion.liveness is Health.UNKNOWN
    assert "3 probes failed in a row" in opinion.reason


def test_liveness_fails_only_after_a_long_run_of_failures() -> None:
    book = healthy()
    for at in (10, 20, 30, 69):
        assert book.observe(probed(ProbeOutcome.UNAVAILABLE), at).liveness is not Health.FAILURE
    assert book.observe(probed(ProbeOutcome.UNAVAILABLE), 70).liveness is Health.FAILURE
    assert book.failing_since == 10


def test_one_success_wipes_the_run() -> None:
    book = healthy()
    for at in (10, 20, 30):
        book.observe(probed(ProbeOutcome.TIMEOUT), at)
    assert book.observe(probed(ProbeOutcome.OK), 40).readiness is Health.SUCCESS
    assert book.failing_since is None


def test_a_probe_that_could_not_be_made_says_nothing() -> None:
    book = healthy()
    for at in range(100):
        opinion = book.observe(probed(ProbeOutcome.UNKNOWN), at)
    assert opinion.readiness is Health.SUCCESS


def test_while_draining_readiness_is_held() -> None:
    book = healthy()
    opinion = book.observe(probed(ProbeOutcome.UNAVAILABLE), 5, draining=True)
    assert (opinion.readiness, opinion.liveness) == (Health.HELD, Health.HELD)
    assert opinion.startup is Health.SUCCESS


def test_the_port_taken_over_by_another_process_is_a_failure() -> None:
    book = healthy()
    for at in (1, 2, 3):
        opinion = book.observe(probed(ProbeOutcome.OK, listener=Listener.FOREIGN), at)
    assert opinion.readiness is Health.FAILURE
    assert "somebody else" in opinion.reason


def test_one_success_ends_the_row_of_failures() -> None:
    book = healthy()
    for at, outcome in enumerate((ProbeOutcome.TIMEOUT, ProbeOutcome.TIMEOUT, ProbeOutcome.OK, ProbeOutcome.TIMEOUT)):
        book.observe(probed(outcome), at)
    assert book.observe(probed(ProbeOutcome.TIMEOUT), 5).readiness is Health.SUCCESS
    assert book.observe(probed(ProbeOutcome.TIMEOUT), 6).readiness is Health.FAILURE


def test_failures_of_an_adopted_server_count() -> None:
    book = HealthBook(SETTINGS)
    book.serve()
    opinions = [book.observe(probed(ProbeOutcome.REFUSED), at).readiness for at in range(3)]
    assert opinions == [Health.SUCCESS, Health.SUCCESS, Health.FAILURE]


def test_an_unexpected_answer_is_told_by_its_status_or_its_detail() -> None:
    book = HealthBook(SETTINGS)
    assert book.observe(probed(ProbeOutcome.ERROR, status=418), 0).reason == "unexpected answer 418"
    broken = Probed(1, ProbeOutcome.ERROR, 0, 0.1, Listener.OURS, detail="no HTTP")
    assert book.observe(broken, 1).reason == "unexpected answer no HTTP"


def test_whose_answer_it_is_not_is_told_in_whole_sentences() -> None:
    def reason(event: Probed) -> str:
        return HealthBook(SETTINGS, "kimi", "/m/kimi").observe(event, 0).reason

    foreign = Probed(1, ProbeOutcome.OK, 200, 0.1, Listener.FOREIGN)
    assert reason(foreign) == "the port belongs to a process of somebody else"
    assert reason(msgspec.structs.replace(foreign, detail="pid 7")) == (
        "the port belongs to a process of somebody else: pid 7"
    )
    assert reason(probed(ProbeOutcome.OK, model="/m/llama")) == "another model answers: /m/llama, not kimi"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (probed(ProbeOutcome.UNAVAILABLE, status=503), "503"),
        (probed(ProbeOutcome.REFUSED), "connection refused"),
        (probed(ProbeOutcome.TIMEOUT), "no answer in time"),
        (probed(ProbeOutcome.ERROR, status=500), "error 500"),
    ],
)
def test_a_failing_server_is_told_by_its_last_answer(event: Probed, words: str) -> None:
    assert healthy().observe(event, 1).reason == f"a probe failed: {words}"
