"""The restart policy: backoff, budget, hopeless causes, repeated causes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config import CauseAction
from supervisor.core.clues import NO_EVIDENCE
from supervisor.core.restart import Ending, Next, RestartBook
from supervisor.core.settings import CauseRule, RestartSettings
from supervisor.snapshot import DiagnosisView

SETTINGS = RestartSettings(backoff_s=5, backoff_max_s=300, budget=5, window_s=3600, jitter=0.2, same_cause_limit=3)


def ending(attempt: int = 1, at: float = 0.0, *, cause: str = "native-crash", **changes) -> Ending:
    restart = changes.pop("restart", "maybe")
    confidence = changes.pop("confidence", 0.9)
    diagnosis = DiagnosisView(cause, restart=restart, confidence=confidence, remedy=changes.pop("remedy", ""))
    return Ending(attempt, at, diagnosis, summary="exited with status 1", **changes)


def book(**changes) -> RestartBook:
    from msgspec.structs import replace

    return RestartBook("kimi", replace(SETTINGS, **changes))


def test_the_first_failure_waits_about_the_configured_backoff() -> None:
    decision = book().decide(ending(at=100.0))
    assert decision.next is Next.BACKOFF
    assert 104.0 <= decision.due <= 106.0
    assert "exited with status 1" in decision.reason


def test_delays_double_up_to_the_maximum() -> None:
    it = book(jitter=0.0, budget=100, same_cause_limit=100)
    delays = []
    for attempt in range(1, 10):
        decision = it.decide(ending(attempt, at=attempt))
        delays.append(decision.due - attempt)
    assert delays == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_failures_older_than_the_window_cost_nothing() -> None:
    """Nobody has asked for the budget meanwhile."""
    it = book(budget=2, window_s=100.0, same_cause_limit=100)
    for now in (0.0, 1.0):
        assert it.decide(ending(at=now)).next is Next.BACKOFF
    late = it.decide(ending(at=200.0))
    assert (late.next, late.reason.rpartition("; ")[2]) == (Next.BACKOFF, "restart 1")
    assert it.remaining(200.0) == 1


def test_a_mates_failure_is_charged_like_ones_own() -> None:
    it = book(budget=2)
    it.charge(0.0)
    assert (it.remaining(1.0), it.total) == (1, 1)
    it.charge(1.0)
    assert it.decide(ending(at=2.0)).next is Next.FATAL
    assert it.remaining(4000.0) == 2


def test_jitter_is_the_same_for_the_same_attempt_and_differs_between_servers() -> None:
    a, b = RestartBook("a", SETTINGS), RestartBook("b", SETTINGS)
    assert a.delay_s(3) == RestartBook("a", SETTINGS).delay_s(3)
    assert [a.delay_s(n) for n in range(8)] != [b.delay_s(n) for n in range(8)]


def test_a_cause_that_no_restart_mends_is_fatal_at_once_with_its_remedy() -> None:
    decision = book().decide(ending(cause="spec-decode-config", restart="no", remedy="use another draft"))
    assert decision.next is Next.FATAL
    assert "spec-decode-config" in decision.reason
    assert "use another draft" in decision.reason


def test_a_verdict_without_a_remedy_is_a_whole_sentence() -> None:
    decision = book().decide(ending(cause="spec-decode-config", restart="no"))
    assert decision.reason == "spec-decode-config: a restart cannot help"


def test_a_restart_says_why_and_how_many_there_were() -> None:
    it = book()
    assert it.decide(ending(1, at=1)).reason == "exited with status 1 (native-crash); restart 1"
    assert it.decide(ending(2, at=2, cause="")).reason == "exited with status 1; restart 2"
    assert it.decide(ending(3, at=3, cause=NO_EVIDENCE)).reason == "exited with status 1; restart 3"


def test_without_a_budget_the_first_failure_is_the_last() -> None:
    decision = book(budget=0).decide(ending())
    assert (decision.next, decision.reason) == (Next.FATAL, "exited with status 1; restarts are switched off")


def test_a_guess_is_no_reason_to_leave_a_server_down() -> None:
    assert book().decide(ending(restart="no", confidence=0.4)).next is Next.BACKOFF


def test_a_server_that_served_is_started_again_whatever_the_class_says() -> None:
    assert book().decide(ending(restart="no", serving_s=30.0)).next is Next.BACKOFF


def test_a_command_that_cannot_be_executed_is_fatal() -> None:
    assert book().decide(ending(permanent=True)).next is Next.FATAL


def test_a_host_that_cannot_start_anything_now_is_asked_again_however_often() -> None:
    """A full disk for a quarter of an hour once left servers quarantined for the night."""
    it = book(jitter=0.0)
    decisions = [it.decide(ending(n, at=n, cause="cannot-execute", host_refused=True)) for n in range(1, 21)]
    assert {decision.next for decision in decisions} == {Next.BACKOFF}
    assert decisions[-1].due == 320.0, "the pauses grow to their maximum"
    assert it.remaining(20.0) == SETTINGS.budget
    assert "tried again, however often" in decisions[-1].reason


def test_what_is_tried_without_end_is_not_tried_without_pause() -> None:
    it = book(jitter=0.0, backoff_s=0.0)
    assert it.decide(ending(1, at=10.0, host_refused=True)).due == 11.0
    assert it.decide(ending(2, at=20.0)).due == 20.0, "within the budget the backoff is the operator's affair"


def test_what_the_host_refuses_does_not_break_the_count_of_a_cause() -> None:
    it = book()
    it.decide(ending(1, at=1, stage_order=2))
    it.decide(ending(2, at=2, stage_order=2))
    it.decide(ending(3, at=3, cause="cannot-execute", host_refused=True))
    assert it.decide(ending(4, at=4, stage_order=2)).next is Next.QUARANTINE


def test_the_budget_ends_in_fatal_and_says_so() -> None:
    it = book(same_cause_limit=100)
    decisions = [it.decide(ending(n, at=n * 10.0)) for n in range(1, 7)]
    assert [d.next for d in decisions[:5]] == [Next.BACKOFF] * 5
    assert decisions[5].next is Next.FATAL
    assert "5 restarts within 3600 s spent" in decisions[5].reason
    assert it.remaining(60.0) == 0


def test_failures_older_than_the_window_do_not_count() -> None:
    it = book(same_cause_limit=100)
    for n in range(1, 6):
        it.decide(ending(n, at=n))
    assert it.remaining(10.0) == 0
    assert it.remaining(3606.0) == 5
    assert it.decide(ending(6, at=4000.0)).next is Next.BACKOFF


def test_the_same_cause_without_progress_is_quarantined_before_the_budget_is_spent() -> None:
    it = book()
    last = [it.decide(ending(n, at=n, stage_order=2)) for n in range(1, 4)][-1]
    assert last.next is Next.QUARANTINE
    assert "native-crash 3 times" in last.reason


def test_getting_further_breaks_the_repetition() -> None:
    it = book()
    assert [it.decide(ending(n, at=n, stage_order=n)).next for n in range(1, 4)] == [Next.BACKOFF] * 3


def test_another_cause_breaks_the_repetition() -> None:
    it = book()
    causes = ("a", "b", "a", "b")
    assert {it.decide(ending(n, at=n, cause=c, stage_order=1)).next for n, c in enumerate(causes)} == {Next.BACKOFF}


def test_a_long_time_of_service_wipes_the_record() -> None:
    it = book(jitter=0.0)
    for n in range(1, 3):
        it.decide(ending(n, at=n))
    decision = it.decide(ending(3, at=1000.0, serving_s=900.0))
    assert decision.due == pytest.approx(1005.0)
    assert it.remaining(1000.0) == 4


def test_an_operator_gets_a_full_budget() -> None:
    it = book()
    for n in range(1, 4):
        it.decide(ending(n, at=n))
    it.forgive()
    assert it.remaining(5.0) == 5


@given(
    st.lists(
        st.tuples(
            st.floats(0, 500), st.sampled_from(["a", "b", ""]), st.sampled_from(["yes", "no", "maybe"]), st.floats(0, 1)
        ),
        max_size=30,
    )
)
def test_delays_are_bounded_and_the_window_never_holds_more_restarts_than_the_budget(steps) -> None:
    it = book()
    now, restarts = 0.0, []
    for number, (pause, cause, restart, confidence) in enumerate(steps, 1):
        now += pause
        decision = it.decide(ending(number, at=now, cause=cause, restart=restart, confidence=confidence))
        if decision.next is Next.BACKOFF:
            assert now <= decision.due <= now + SETTINGS.backoff_max_s
            restarts.append(now)
        assert len([at for at in restarts if now - at < SETTINGS.window_s]) <= SETTINGS.budget


def rules(**actions: CauseAction) -> dict[str, CauseRule]:
    return {name.replace("_", "-"): CauseRule(action, told=True) for name, action in actions.items()}


@pytest.mark.parametrize("serving_s", [0.0, 99.0])
@pytest.mark.parametrize(
    ("action", "then"), [("retry", Next.BACKOFF), ("fatal", Next.FATAL), ("quarantine", Next.QUARANTINE)]
)
def test_the_operators_word_about_a_cause_goes_before_the_profile(action, then, serving_s) -> None:
    it = book(rules=rules(native_crash=CauseAction(action)))
    assert it.decide(ending(restart="no", confidence=0.2, serving_s=serving_s)).next is then


def test_a_cause_that_wants_patience_backs_off_longer() -> None:
    patient = {"host-oom-killed": CauseRule(backoff_factor=4.0)}
    decision = book(jitter=0.0, rules=patient).decide(ending(cause="host-oom-killed", at=10.0))
    assert decision.due == 30.0


def test_patience_never_exceeds_the_longest_backoff() -> None:
    patient = {"host-oom-killed": CauseRule(backoff_factor=1000.0)}
    decision = book(rules=patient).decide(ending(cause="host-oom-killed", at=0.0))
    assert decision.due == SETTINGS.backoff_max_s


def test_restarts_can_be_switched_off() -> None:
    decision = book(budget=0).decide(ending())
    assert decision.next is Next.FATAL
    assert "switched off" in decision.reason


def test_every_restart_is_counted_once_also_beyond_the_window() -> None:
    it = book(same_cause_limit=100)
    for n in range(1, 5):
        it.decide(ending(n, at=n * 4000.0))
    assert (it.total, it.remaining(16_000.0)) == (4, 4)
    assert it.decide(ending(5, at=16_001.0, permanent=True)).next is Next.FATAL
    assert it.total == 4, "what is given up is no restart"


def test_to_have_served_for_a_moment_is_to_have_come_further() -> None:
    it = book()
    ends = [it.decide(ending(n, at=n, stage_order=2, serving_s=0.5)).next for n in range(1, 4)]
    assert ends == [Next.BACKOFF] * 3


def test_the_jitter_lies_on_both_sides_of_the_backoff() -> None:
    delays = [RestartBook(f"server-{number}", SETTINGS).delay_s(1) for number in range(200)]
    assert min(delays) >= 4.0
    assert max(delays) <= 6.0
    assert 60 < sum(delay > 5.0 for delay in delays) < 140
