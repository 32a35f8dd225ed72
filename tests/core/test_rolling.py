"""Whose turn it is, what a server's news mean for the others, and what is left in which state."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from supervisor.core.rolling import (
    NAMED_AFTER_S,
    Done,
    Failed,
    Member,
    MemberState,
    Roll,
    RollKind,
    RollState,
    Wait,
    begin,
    cancelled,
    ended,
    judge,
    noted,
    summary,
    turn,
    waiting,
)
from supervisor.snapshot import DiagnosisView, FacetView, IncidentView, ServerSnapshot

ROLL = begin(RollKind.RESTART, ["a", "b", "a", "c"], "anna", 60.0, 1000.0)


def seen(
    lifecycle: str, attempt: int, readiness: str = "unknown", goal: str = "up", reason: str = ""
) -> ServerSnapshot:
    unknown = FacetView("unknown", 0.0)
    return ServerSnapshot(
        *("a", 0.0, goal, FacetView(lifecycle, 0.0, reason), unknown, unknown, FacetView(readiness, 0.0), unknown),
        attempt=attempt,
    )


def incident(attempt: int, reason: str, cause: str = "") -> IncidentView:
    diagnosis = DiagnosisView(cause) if cause else None
    return IncidentView(attempt, 0.0, 1.0, reason, "weights", "weights", diagnosis=diagnosis)


EARLIER = incident(2, "ended by signal 9")


def test_each_has_one_turn_in_order() -> None:
    roll, order = ROLL, []
    while (member := turn(roll)) is not None:
        order.append(member.name)
        roll = noted(roll, member.name, MemberState.DONE)
    assert order == ["a", "b", "c"]


def test_the_one_under_way_goes_on_first() -> None:
    roll = noted(ROLL, "b", MemberState.UNDER_WAY, attempt=4)
    assert turn(roll) == Member("b", MemberState.UNDER_WAY, "", 4)
    assert roll.version == ROLL.version + 1


def test_after_the_end_nobody_has_a_turn_and_who_waited_is_untouched() -> None:
    roll = noted(noted(ROLL, "a", MemberState.DONE), "b", MemberState.FAILED, "its start failed: status 1")
    over = ended(roll, RollState.FAILED, 2000.0, "b: its start failed: status 1")
    assert turn(over) is None
    assert [one.state for one in over.members] == [MemberState.DONE, MemberState.FAILED, MemberState.UNTOUCHED]
    assert summary(over) == (
        "rolling restart failed: 1 of 3 done, failed b, untouched c; b: its start failed: status 1"
    )


def test_who_was_at_it_when_the_whole_ended_is_not_under_way_any_more() -> None:
    over = ended(noted(ROLL, "a", MemberState.UNDER_WAY), RollState.ABANDONED, 0.0, "the host was restarted meanwhile")
    assert [one.state for one in over.members] == [MemberState.LEFT_UNDER_WAY, *[MemberState.UNTOUCHED] * 2]
    assert summary(over) == (
        "rolling restart abandoned: 0 of 3 done, left-under-way a, untouched b, c; the host was restarted meanwhile"
    )


def test_what_is_under_way_is_told() -> None:
    assert summary(noted(ROLL, "a", MemberState.UNDER_WAY)) == "rolling restart running: 0 of 3 done, a under way"
    assert summary(ended(ROLL, RollState.CANCELLED, 0.0)) == "rolling restart cancelled: 0 of 3 done, untouched a, b, c"


@pytest.mark.parametrize(
    "snapshot",
    [
        seen("draining", 3, "held"),
        seen("stopping", 3),
        seen("running", 3, "success"),  # it has not begun to end yet
        seen("starting", 4),
        seen("running", 4),
        seen("running", 4, "failure"),
        seen("stopping", 4),  # it fails, and nobody knows why yet
    ],
)
def test_on_the_way_there_is_nothing_to_say(snapshot: ServerSnapshot) -> None:
    assert judge(3, snapshot, "", 1.0) == Wait()


def test_it_is_done_when_its_routers_have_it_again() -> None:
    healthy = seen("running", 4, "success")
    assert judge(3, healthy, "router front: joining", 1.0) == Wait(healthy=True)
    assert judge(3, healthy, "", 1.0) == Done()


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (None, "it has been removed"),
        (seen("running", 3, "success", goal="down"), "somebody wants it down"),
        (seen("fatal", 4, reason="no such file"), "fatal: no such file"),
        (seen("quarantined", 3, reason="GPU 0 is not given back"), "quarantined: GPU 0 is not given back"),
        (seen("backoff", 4, reason="exited with status 1; restart 1"), "its start failed: exited with status 1; restart 1"),
    ],
)  # fmt: skip
def test_the_first_failure_counts(snapshot: ServerSnapshot | None, reason: str) -> None:
    assert judge(3, snapshot, "", 1.0) == Failed(reason)


@pytest.mark.parametrize("snapshot", [seen("stopping", 4), seen("starting", 5), seen("running", 5)])
def test_an_attempt_that_was_lost_or_ended_for_somebody_is_no_failure(snapshot: ServerSnapshot) -> None:
    """A daemon that died between the decision and the spawn, or people who have restarted it once more."""
    assert judge(3, replace(snapshot, incidents=(EARLIER,)), "", 1.0) == Wait()
    assert judge(3, seen("reclaiming", 4), "", 1.0) == Wait(again=NAMED_AFTER_S)
    assert judge(3, seen("running", 5, "success"), "", 1.0) == Done()


def test_what_its_start_waits_for_is_told_once_it_waits_long_or_in_a_line() -> None:
    held = seen("reclaiming", 3, reason="GPU 0 is held by b")
    assert judge(3, held, "", NAMED_AFTER_S - 0.1) == Wait(again=NAMED_AFTER_S)
    assert judge(3, held, "", NAMED_AFTER_S) == Wait(start="waits: GPU 0 is held by b")
    assert judge(3, replace(held, turn="waits for b, which starts"), "", 0.0) == Wait(start="waits for b, which starts")


def test_a_wait_is_noted_once_and_is_over_with_the_next_news() -> None:
    roll = noted(ROLL, "a", MemberState.UNDER_WAY, attempt=4)
    waits = waiting(roll, "a", "waits: GPU 0 is held by b with 10.0 GB")
    assert (turn(waits), waits.version) == (
        Member("a", MemberState.UNDER_WAY, "", 4, "waits: GPU 0 is held by b with 10.0 GB"),
        roll.version + 1,
    )
    assert summary(waits) == (
        "rolling restart running: 0 of 3 done, a under way, its start waits: GPU 0 is held by b with 10.0 GB"
    )
    assert waiting(waits, "a", "waits: GPU 0 is held by b with 9.5 GB") is waits
    assert waiting(waits, "a", "") == replace(roll, version=waits.version + 1)
    assert noted(waits, "a", MemberState.DONE).members[0].waits == ""


def test_who_cancels_it_is_told_and_survives() -> None:
    roll = cancelled(noted(ROLL, "a", MemberState.UNDER_WAY), "anna")
    assert summary(roll) == "rolling restart running: 0 of 3 done, a under way, cancelled by anna"
    assert (cancelled(roll, "ben").cancelled_by, roll.version) == ("anna", ROLL.version + 2)
    over = ended(noted(roll, "a", MemberState.LEFT_WAITING, "its start waits"), RollState.CANCELLED, 0.0)
    assert summary(over) == "rolling restart cancelled: 0 of 3 done, left-waiting a, untouched b, c"


@pytest.mark.parametrize(
    ("incidents", "reason"),
    [
        ((incident(4, "exited with status 1"),), "exited with status 1"),
        ((EARLIER, incident(4, "exited with status 1")), "exited with status 1"),
        ((incident(4, "ended by signal 9", "gpu-oom-weights"),), "gpu-oom-weights: ended by signal 9"),
        ((incident(4, "exited with status 1", "insufficient-evidence"),), "exited with status 1"),
        ((incident(4, "exited with status 1"), incident(5, "ended by signal 9")), "exited with status 1"),
        ((EARLIER,), "as the lifecycle says"),
    ],
)
def test_the_failure_is_told_in_the_words_of_its_own_incident(incidents: tuple[IncidentView, ...], reason: str) -> None:
    """Not in those of an earlier one, which is what people would look for in vain."""
    failed = replace(seen("backoff", 4, reason="as the lifecycle says"), incidents=incidents)
    assert judge(3, failed, "", 1.0) == Failed(f"its start failed: {reason}")


def test_maintenance_holds_it_back() -> None:
    held = replace(seen("stopped", 3, reason="paused, so not started"), maintenance=FacetView("on", 0.0))
    assert judge(3, held, "", 1.0) == Failed("it is held back: paused, so not started")


def test_a_roll_is_the_same_after_it_was_written_down() -> None:
    roll = ended(noted(ROLL, "a", MemberState.DONE, "x", 7), RollState.ABANDONED, 3.0, "y")
    assert msgspec.json.decode(msgspec.json.encode(roll), type=Roll) == roll
