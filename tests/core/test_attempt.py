"""What one attempt knows: its log, its deaths, its canaries, its capacity, and the record of its start."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor import events as e
from supervisor.core.attempt import Attempt
from supervisor.core.budgets import Budgets
from supervisor.core.endcause import EndKind
from supervisor.core.health import Health
from supervisor.core.history import History
from supervisor.core.log.grammar import LogReader
from supervisor.lines import LineCutter
from supervisor.profile import facts, load_profile
from tests.core.test_endcause import RESET
from tests.core.test_server import LOADED, LOADING
from tests.core.world import COMMAND, SETTINGS

PROFILE = load_profile("sglang")


def attempt(capacity_expected: int | None = None, more: tuple[str, ...] = ()) -> Attempt:
    budgets = Budgets(SETTINGS, History([]))
    one = Attempt(1, SETTINGS, PROFILE, facts(PROFILE, (*COMMAND, *more)), 0.0, budgets, capacity_expected)
    one.spawned(e.Spawned(1, 4711, log_path="/log"))
    return one


def log(one: Attempt, now: float, *texts: str) -> None:
    for event in LogReader(PROFILE, 1).read(LineCutter().feed("".join(f"{text}\n" for text in texts).encode())):
        one.line(event, now)


def tokens(one: Attempt, count: str) -> None:
    one.line(e.LineMatched(1, 1, "some-rule", "TP0", fields={"capacity_tokens": count}), 1.0)


# --- the start -------------------------------------------------------------------------------------------------------


def test_how_far_a_start_came_grows_with_its_stages() -> None:
    one = attempt()
    orders = [one.stage_order()]
    for at, line in enumerate((LOADING[0], LOADING[1], *LOADED[:1]), 1):
        log(one, float(at), line)
        orders.append(one.stage_order())
    assert orders == [0, 1, 2, 2]
    assert one.view().stage == PROFILE.stages[2]


@pytest.mark.parametrize("moved", [True, False])
def test_memory_that_fills_breaks_the_silence_that_later_starts_learn_from(*, moved: bool) -> None:
    one = attempt()
    one.sampled(e.DeviceMemorySampled(1, 0), 10.0)
    one.sampled(e.DeviceMemorySampled(1, 2**30 if moved else 2**20), 60.0)
    (record,) = one.start_record(100.0).phases
    assert (record.phase, record.seconds) == ("launch", 100.0)
    assert record.longest_silence_s == (60.0 if moved else 100.0)


def test_lines_that_move_something_break_the_silence_and_others_do_not() -> None:
    one = attempt()
    log(one, 10.0, *LOADING)
    log(one, 40.0, "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.0s/it]")
    log(one, 60.0, "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.0s/it]")
    log(one, 75.0, "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:02<00:02,  1.0s/it]")
    record = {record.phase: record for record in one.start_record(80.0).phases}["weights"]
    assert (record.seconds, record.longest_silence_s) == (70.0, 35.0)


def test_the_capacity_is_that_of_the_rank_with_the_least() -> None:
    one = attempt()
    assert one.capacity is None
    for count in ("1000", "400", "900", "", "many"):
        tokens(one, count)
    assert one.capacity == 400
    assert one.start_record(10.0).capacity_tokens == 400


# --- serving ---------------------------------------------------------------------------------------------------------


def test_a_server_that_was_ready_is_not_moved_back_by_what_its_log_says() -> None:
    one = attempt()
    log(one, 5.0, *LOADING)
    one.ready(10.0)
    before = one.view().phase
    log(one, 20.0, *LOADED, *LOADING)
    assert one.view().phase == before


def test_one_that_was_ready_under_another_daemon_is_ready_and_its_failures_count() -> None:
    one = attempt()
    log(one, 5.0, *LOADING)
    start = replace(one.view(), phase="warmup")
    again = attempt()
    again.serve(10.0, start)
    assert (again.ready_at, again.view().phase) == (10.0, "warmup")
    assert again.health.opinion.readiness is Health.SUCCESS
    for at in range(SETTINGS.readiness.failure_threshold):
        again.probed(e.Probed(1, e.ProbeOutcome.TIMEOUT), 20.0 + at, draining=False)
    assert again.health.opinion.readiness is Health.FAILURE


def test_a_start_of_another_age_may_have_stages_that_nobody_knows() -> None:
    again = attempt()
    again.serve(10.0, replace(again.view(), stage="a stage of another version"))
    assert again.stage_order() == 0


def test_canaries_are_counted_in_a_row_and_told_by_what_came() -> None:
    one = attempt()
    one.canary(e.CanaryAnswered(1, None), 1.0)
    assert (one.canary_failures, one.canary_detail) == (1, "no answer")
    one.canary(e.CanaryAnswered(1, False), 2.0)
    assert (one.canary_failures, one.canary_detail) == (2, "the answer makes no sense")
    one.canary(e.CanaryAnswered(1, False, detail="all '!'"), 3.0)
    assert (one.canary_failures, one.canary_detail) == (3, "all '!'")
    one.canary(e.CanaryAnswered(1, True), 4.0)
    assert (one.canary_failures, one.canary_at) == (0, 4.0)


def test_tokens_after_readiness_prove_life_for_a_while_and_before_it_nothing_does() -> None:
    one = attempt()
    one.sampled(e.EngineSampled(1, tokens=1.0, requests=0.0, running=1.0, queued=0.0), 5.0)
    one.sampled(e.EngineSampled(1, tokens=2.0, requests=0.0, running=1.0, queued=0.0), 6.0)
    assert not one.progressing(7.0, 10.0)
    one.ready(10.0)
    assert not one.progressing(11.0, 10.0), "those of the start"
    one.sampled(e.EngineSampled(1, tokens=3.0, requests=0.0, running=1.0, queued=0.0), 20.0)
    assert one.progressing(25.0, 10.0)
    assert not one.progressing(31.0, 10.0)


# --- deaths ----------------------------------------------------------------------------------------------------------


def test_the_first_death_explains_the_leaders_end() -> None:
    one = attempt()
    assert one.role_died(e.RoleDied(1, 7, "scheduler", "TP1", code=-11)) == "scheduler TP1 (pid 7)"
    assert one.role_died(e.RoleDied(1, 8, "detokenizer", code=1)) == "detokenizer (pid 8)"
    assert (one.first_death, one.death_code) == ("scheduler TP1 (pid 7)", -11)
    one.exited(e.Exited(1, 1), 10.0)
    one.end(EndKind.EXIT, "the leader exited")
    assert one.summary() == "exited with status 1 after scheduler TP1 (pid 7) had ended"


def ranks(*seen: tuple[str, str], logged: int = 3) -> Attempt:
    """Three ranks in the log; of the processes each one's role and the rank in its title, the last one untitled."""
    one = attempt()
    log(one, 1.0, *(f"[2026-03-01 10:00:01 TP{at}] Load weight begin. avail mem=78.00 GB" for at in range(logged)))
    samples = tuple(e.ProcessSample(10 + at, "S", role, rank) for at, (role, rank) in enumerate(seen))
    one.sampled(e.TreeSampled(1, 0.0, 0, 0, processes=(*samples, e.ProcessSample(99, "S", "scheduler"))), 2.0)
    return one


@pytest.mark.parametrize(
    ("seen", "logged", "who"),
    [
        ((("scheduler", "TP0"), ("scheduler", "TP1")), 3, "scheduler TP2 (pid 99)"),
        ((("scheduler", "TP0"), ("detokenizer", ""), ("scheduler", "TP1")), 3, "scheduler TP2 (pid 99)"),
        ((("scheduler", "DP0 TP0"), ("scheduler", "DP0 TP2")), 3, "scheduler TP1 (pid 99)"),
        ((("scheduler", "TP0"), ("scheduler", "TP1"), ("scheduler", "")), 3, "scheduler (pid 99)"),
        ((("scheduler", "TP0"),), 3, "scheduler (pid 99)"),
        ((("scheduler", "TP0"), ("scheduler", "TP1")), 2, "scheduler (pid 99)"),
        ((), 1, "scheduler (pid 99)"),
    ],
)
def test_who_died_without_a_title_is_the_one_rank_that_nobody_bears(
    seen: tuple[tuple[str, str], ...], logged: int, who: str
) -> None:
    assert ranks(*seen, logged=logged).role_died(e.RoleDied(1, 99, "scheduler", code=-9)) == who


@pytest.mark.parametrize(("more", "cause"), [((), "external-termination"), (("--nnodes", "2"), "peer-rank-death")])
def test_whom_the_survivors_miss_may_be_of_another_node(more: tuple[str, ...], cause: str) -> None:
    one = attempt(more=more)
    log(one, 5.0, *LOADING, *RESET.splitlines())
    one.role_died(e.RoleDied(1, 12, "scheduler", "TP2", code=-9))
    one.exited(e.Exited(1, -9), 6.0)
    one.emptied(e.TreeEmptied(1, kernel_heard=True), 6.0)
    one.end(EndKind.EXIT, "the leader exited")
    assert one.conclude(6.0).cause == cause


def test_what_is_to_be_typed_is_told_with_the_servers_name_wherever_the_cause_is_told() -> None:
    """Hooks, webhooks, events and the journal have no other place to learn it from."""
    one = attempt()
    one.end(EndKind.STALL, "stalled: no token for 300 s")
    remedy = one.conclude(10.0).remedy
    assert "sglctl" in remedy
    assert "NAME" not in remedy


def test_a_report_of_the_kernel_that_names_a_process_outweighs_one_that_does_not() -> None:
    named, nameless = e.HostOomKilled(1, 7, "python", "kernel log"), e.HostOomKilled(1, source="memory.events")
    other = e.HostOomKilled(1, 8, "python", "kernel log")
    for told, kept, at in (
        ([nameless], nameless, 0.0),
        ([nameless, named], named, 1.0),
        ([named, nameless], named, 0.0),
        ([named, other], other, 1.0),
        ([nameless, nameless], nameless, 1.0),
    ):
        one = attempt()
        for now, event in enumerate(told):
            one.oom_killed(event, float(now))
        assert (one.oom, one.oom_at) == (kept, at)


def test_an_oom_kill_counts_for_minutes_and_not_for_hours() -> None:
    for later, cause in ((100.0, "host-oom-killed"), (3600.0, "external-termination")):
        one = attempt()
        one.oom_killed(e.HostOomKilled(1, 7, "python", "kernel log"), 9000.0)
        one.exited(e.Exited(1, -9), 9000.0 + later)
        one.emptied(e.TreeEmptied(1, kernel_heard=True), 9000.0 + later)
        one.end(EndKind.EXIT, "the leader exited")
        assert one.conclude(9000.0 + later).cause == cause


@pytest.mark.parametrize("signal", [1, 6, 9, 10, 11])
def test_whoever_ends_by_a_signal_that_people_had_us_send_has_not_crashed(signal: int) -> None:
    causes = []
    for asked in (True, False):
        one = attempt()
        if asked:
            one.asked_signal(e.SignalRequested("uid 0", signal))
        one.exited(e.Exited(1, -signal), 6.0)
        one.end(EndKind.EXIT, "the leader exited")
        causes.append(one.conclude(6.0).cause)
    assert causes[0] == "external-termination"
    assert causes[1] != "external-termination"


def test_a_signal_that_we_were_asked_for_is_not_somebody_elses() -> None:
    """What the log then says of it is its echo."""
    for asked, cause in ((True, "external-termination"), (False, "external-termination")):
        one = attempt()
        log(one, 5.0, *LOADING)
        if asked:
            one.asked_signal(e.SignalRequested("uid 0", 15))
        log(
            one,
            6.0,
            "[2026-03-01 10:00:05] SIGTERM received. signum=15 frame=None. Draining requests and shutting down...",
        )
        one.exited(e.Exited(1, -15), 7.0)
        one.end(EndKind.EXIT, "the leader exited")
        told = one.conclude(7.0)
        assert told.cause == cause
        assert ("asked by uid 0" in told.evidence) is asked
        assert ("SIGTERM received" in told.evidence) is not asked


def test_what_ended_before_our_kill_was_not_ended_by_it() -> None:
    one = attempt()
    one.exited(e.Exited(1, -11), 10.0)
    one.killing(11.0)
    assert 9 not in one.signals
    other = attempt()
    other.killing(11.0)
    assert 9 in other.signals


def test_the_first_reason_for_an_end_stands() -> None:
    one = attempt()
    assert one.end(EndKind.STALL, "stalled in weights")
    assert not one.end(EndKind.EXIT, "the leader exited")
    assert one.summary() == "stalled in weights"


def test_an_incident_tells_the_phase_or_that_it_served() -> None:
    one = attempt()
    log(one, 5.0, *LOADING)
    assert one.incident(10.0, "again").phase == "weights"
    one.ready(11.0)
    assert one.incident(12.0, "again").phase == "healthy"
