"""A serving server judged by everything that is known of it: who stands still, who is mute, starved, insane or small."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor.core.health import HealthBook
from supervisor.core.serving import Facts, Judgement, judge, standstill_charge
from supervisor.core.settings import ServingSettings
from supervisor.core.vitals import Vitals
from supervisor.events import EngineSampled, Listener, Probed, ProbeOutcome, ProcessSample, TreeSampled
from tests.core.world import SETTINGS

LIMITS = ServingSettings(stall_s=60.0, stopped_s=30.0, stuck_s=300.0, canary_threshold=3, capacity_drop=0.5)
PLAIN = replace(SETTINGS, serving=LIMITS)


def facts(**changes: object) -> Facts:
    """It has been ready since 100, and its probes succeed."""
    health = HealthBook(PLAIN.readiness)
    health.observe(probe(ProbeOutcome.OK), 100.0)
    return replace(Facts(PLAIN, Vitals(), health, 100.0, 90.0), **changes)


def probe(outcome: ProbeOutcome) -> Probed:
    return Probed(1, outcome, 200, 0.1, Listener.OURS)


def standing(state: str, *looks: float) -> Vitals:
    vitals = Vitals()
    for at in looks:
        vitals.tree(TreeSampled(1, 0.0, 0, 0, (ProcessSample(7, state, "scheduler", "TP1"),)), at)
    return vitals


def counted(*samples: tuple[float, float, float | None, float | None]) -> Vitals:
    """Each as (at, tokens, running, queued)."""
    vitals = Vitals()
    for at, tokens, running, queued in samples:
        vitals.engine(EngineSampled(1, tokens=tokens, requests=0, running=running, queued=queued), at)
    return vitals


def told(judgement: Judgement) -> tuple[str, str]:
    return judgement.verdict, judgement.charge.detector if judgement.charge else ""


# --- who stands still ------------------------------------------------------------------------------------------------


def test_a_stopped_rank_stalls_at_once_and_is_charged_after_its_limit() -> None:
    it = facts(vitals=standing("T", 200.0))
    assert told(judge(it, 200.0)) == ("stalled", "")
    assert told(judge(facts(vitals=standing("T", 200.0, 229.0)), 229.0)) == ("stalled", "")
    judged = judge(facts(vitals=standing("T", 200.0, 231.0)), 232.0)
    assert told(judged) == ("stalled", "standstill")
    assert judged.charge is not None
    assert judged.charge.reason == "scheduler TP1 (pid 7) is stopped (T) for 31 s"


def test_whoever_was_stopped_at_the_last_look_may_run_by_now_and_is_not_charged_for_it() -> None:
    it = facts(vitals=standing("T", 200.0, 225.0))
    assert told(judge(it, 239.0)) == ("stalled", ""), "what else comes before the next look proves nothing"


def test_a_moment_in_the_kernel_is_every_disk_read_and_a_long_one_is_not() -> None:
    for seen, expected in ((231.0, "idle"), (499.0, "idle"), (501.0, "stalled")):
        assert judge(facts(vitals=standing("D", 200.0, seen)), seen).verdict == expected, (
            "its limit is not a stopped one's"
        )
    assert told(judge(facts(vitals=standing("D", 200.0, 501.0)), 501.0)) == ("stalled", "standstill")


def test_of_two_the_one_that_is_stopped_is_seen_behind_the_one_that_reads_a_disk() -> None:
    vitals = Vitals()
    disk, stopped = ProcessSample(7, "D", "scheduler", "TP0"), ProcessSample(8, "T", "scheduler", "TP1")
    vitals.tree(TreeSampled(1, 0.0, 0, 0, (disk,)), 190.0)
    for at in (200.0, 231.0):
        vitals.tree(TreeSampled(1, 0.0, 0, 0, (disk, stopped)), at)
    assert "TP1" in judge(facts(vitals=vitals), 231.0).reason
    assert [standstill_charge(one, PLAIN) is not None for one in vitals.standstills()] == [False, True]


# --- who is mute -----------------------------------------------------------------------------------------------------


def failing(since: float, now: float) -> HealthBook:
    health = HealthBook(PLAIN.readiness)
    health.observe(probe(ProbeOutcome.OK), 100.0)
    for at in range(int(since), int(now) + 1, 10):
        health.observe(probe(ProbeOutcome.TIMEOUT), float(at))
    return health


def test_probes_that_fail_for_long_are_believed_when_nothing_else_moves() -> None:
    stall_s = PLAIN.readiness.liveness_stall_s
    now = 200.0 + stall_s + 10.0
    mute = facts(health=failing(200.0, now))
    assert told(judge(mute, now)) == ("stalled", "serving")
    assert judge(mute, now).reason.endswith("and nothing else moves")
    assert told(judge(replace(mute, progress_at=now - 5.0), now)) != ("stalled", "serving")
    assert told(judge(replace(mute, progress_at=199.0), now)) == ("stalled", "serving"), "before the first failure"
    later = now + 200.0
    assert told(judge(facts(health=failing(200.0, later), progress_at=210.0), later)) == ("stalled", "serving"), (
        "long ago"
    )


def test_probes_that_failed_a_few_times_make_a_server_unready_and_no_more() -> None:
    judgement = judge(facts(health=failing(200.0, 250.0)), 250.0)
    assert told(judgement) == ("degraded", "")
    assert "probes failed in a row" in judgement.reason


# --- who is starved --------------------------------------------------------------------------------------------------


def test_requests_without_a_token_stall_and_are_counted_in_words() -> None:
    starved = facts(vitals=counted((200.0, 5.0, 2.0, 3.0)))
    assert told(judge(starved, 259.0)) == ("busy", "")
    assert told(judge(starved, 261.0)) == ("stalled", "serving")
    assert judge(starved, 261.0).reason == ("stalled while serving: 2 running and 3 queued requests, no token for 61 s")
    unknown = facts(vitals=counted((200.0, 5.0, None, 3.0)))
    assert "0 running and 3 queued" in judge(unknown, 261.0).reason
    assert "2 running and 0 queued" in judge(facts(vitals=counted((200.0, 5.0, 2.0, None))), 261.0).reason


def test_a_token_or_a_line_of_the_log_is_an_answer() -> None:
    tokens = facts(vitals=counted((200.0, 5.0, 2.0, 3.0), (240.0, 6.0, 2.0, 3.0)))
    assert told(judge(tokens, 290.0)) == ("busy", "")
    assert told(judge(tokens, 301.0)) == ("stalled", "serving")
    lines = facts(vitals=counted((200.0, 5.0, 2.0, 3.0)), progress_at=250.0)
    assert told(judge(lines, 290.0)) == ("busy", "")


# --- who is insane, who is small -------------------------------------------------------------------------------------


def test_canaries_without_sense_degrade_from_the_threshold_on() -> None:
    assert judge(facts(canary_failures=2, canary_detail="no answer"), 200.0).verdict == "idle"
    judgement = judge(facts(canary_failures=3, canary_detail="no answer"), 200.0)
    assert told(judgement) == ("degraded", "canary")
    assert judgement.reason == "3 canary requests in a row failed: no answer"


@pytest.mark.parametrize(
    ("have", "usual", "degraded"),
    [
        (499, 1000, True),
        (500, 1000, False),
        (1500, 1000, False),
        (110, 1000, True),
        (None, 1000, False),
        (5, None, False),
    ],
)
def test_a_cache_much_smaller_than_usual_degrades(have: int | None, usual: int | None, *, degraded: bool) -> None:
    judgement = judge(facts(capacity=have, capacity_expected=usual), 200.0)
    assert told(judgement) == (("degraded", "capacity") if degraded else ("idle", ""))


def test_how_small_it_is_is_told() -> None:
    assert judge(facts(capacity=110, capacity_expected=1000), 200.0).reason == (
        "room for 110 tokens, 11% of the 1000 of the last good start"
    )


# --- who works -------------------------------------------------------------------------------------------------------


def test_who_has_requests_is_busy_and_says_how_many() -> None:
    for running, queued, words in ((2.0, 0.0, "2 running, 0 queued"), (None, 4.0, "0 running, 4 queued")):
        judgement = judge(facts(vitals=counted((200.0, 5.0, running, queued))), 201.0)
        assert (judgement.verdict, judgement.reason) == ("busy", words)


def test_requests_that_moved_lately_are_work_and_the_start_and_our_own_are_none() -> None:
    assert judge(facts(progress_at=195.0), 200.0).reason == "requests move"
    assert judge(facts(progress_at=195.0), 211.0).verdict == "idle", "a quarter of a minute ago"
    assert judge(facts(progress_at=99.0), 101.0).verdict == "idle", "the start's own lines"
    assert judge(facts(progress_at=195.5, canary_at=195.0), 200.0).verdict == "idle", "the canary's own line"
    assert judge(facts(progress_at=197.0, canary_at=195.0), 200.0).verdict == "busy"
