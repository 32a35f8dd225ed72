"""The story of a server: each fact once, the last failure beyond the next start, at most a screen."""

from __future__ import annotations

import msgspec
import pytest

from supervisor.api.control import Clock
from supervisor.api.retelling import Failure
from supervisor.api.story import is_past, sentences
from supervisor.core.restart import Ending, Next, RestartBook
from supervisor.core.settings import RestartSettings
from supervisor.snapshot import (
    DiagnosisView,
    ExitView,
    FacetView,
    IncidentView,
    RankView,
    RouterView,
    StartupView,
    StopView,
    VoteView,
)
from tests.api.fake import snapshot

NOW = Clock(1000.0, 1764420000.0)

STALLED = (
    "stalled in verify-graph: no progress for 95 s, 90 s are allowed; never silent for more than 31 s in 4 starts; "
    "TP3 still in verify-graph; 7 ranks wait for it"
)
STALL = IncidentView(
    attempt=3,
    begun=268.0,
    ended=760.0,
    reason=STALLED,
    phase="verify-graph",
    stage="graph-capture",
    decision=f"backoff: {STALLED}; restart 1",
    laggard="TP3 still in verify-graph; 7 ranks wait for it",
    diagnosis=DiagnosisView("capture-hang", "yes", "nothing to change at first", 0, "", 0.6),
    exit_code=-9,
    evidence_path="/var/lib/s/evidence/kimi/000003",
    log_path="/var/log/s/kimi/000003.log",
    stop=StopView("kill", exit_s=3.4, kill_s=3.2, empty_s=3.6, free_s=4.1, killed=14),
)
DONE = (
    "evidence kept, 14 processes killed after 3.2 s, it ended with our signal 9 after 3.4 s, "
    "nothing left of it after 3.6 s, GPU memory back after 4.1 s"
)
BROKEN = IncidentView(
    attempt=1,
    begun=900.0,
    ended=940.0,
    reason="exited with status 1",
    phase="weights",
    stage="weights",
    decision="fatal: draft-context: a restart cannot help: set --context-length 4096",
    diagnosis=DiagnosisView("draft-context", "no", "set --context-length 4096", 812, "ValueError: x", 0.9),
    exit_code=1,
    stop=StopView("kill", exit_s=0.0, kill_s=0.0, empty_s=0.2, free_s=0.6),
)


def test_evidence_over_which_a_daemon_was_killed_is_not_called_kept() -> None:
    told = sentences(snapshot(), NOW, Failure(msgspec.structs.replace(STALL, evidence_cut=True)))
    assert any(
        line.startswith("what was done: evidence kept in part (the daemon was killed over it), ") for line in told
    )


def test_a_stall_is_told_beyond_the_next_start() -> None:
    again = snapshot("kimi", "running", attempt=4, ready_since=880.0, restarts=1, verdict=FacetView("idle", 880.0))
    odd = "TP3 is in capture, the other 7 ranks are in all_reduce"
    assert sentences(again, NOW, Failure(STALL, odd)) == (
        "kimi is RUNNING (pid 4242, uptime 0:02:00, 1 restart); it is wanted up.",
        f"attempt 3 failed 4 m ago, 8 m 12 s after its launch: {STALLED}.",
        "first cause: capture-hang; a restart can help.",
        "what to change: nothing to change at first",
        "runbook: sglsup runbook capture-hang",
        f"by the stacks {odd}.",
        f"what was done: {DONE}.",
        "then: started again after a pause (restart 1).",
    )


def test_of_a_dead_start_is_told_when_it_is_ended_and_not_when_it_would_be_a_stall() -> None:
    start = StartupView("weights", "weights", 900.0, last_progress=990.0)
    gone = FacetView("dead", 998.0, "scheduler TP1 is gone")
    told = sentences(snapshot("kimi", "starting", attempt=1, start=start, verdict=gone, ends_at=1008.0), NOW)
    assert "it is ended in 8 s, unless it ends by itself before." in told
    assert not [line for line in told if "stalled" in line]
    serving = snapshot("kimi", "running", attempt=1, ready_since=880.0, verdict=gone, ends_at=1008.0)
    assert "it is ended in 8 s, unless it ends by itself before." in sentences(serving, NOW)


def test_a_hopeless_failure_says_what_to_change_once() -> None:
    fatal = snapshot("kimi", "fatal", attempt=1, lifecycle=FacetView("fatal", 941.0, BROKEN.decision[7:]))
    assert sentences(fatal, NOW, Failure(BROKEN)) == (
        "kimi is FATAL (fatal for 59 s); it is wanted up.",
        "first cause: draft-context; no restart can help.",
        "evidence, line 812: ValueError: x",
        "what to change: set --context-length 4096",
        "runbook: sglsup runbook draft-context",
        "attempt 1 failed 1 m ago in weights, 40 s after its launch: exited with status 1.",
        "what was done: nothing left of it after 0.2 s, GPU memory back after 0.6 s.",
        "then: given up.",
        "next: nothing, until somebody starts it: sglctl start kimi",
    )


def test_a_cause_that_no_line_tells_is_told_by_who_knows() -> None:
    oom = DiagnosisView("host-oom-killed", "maybe", evidence="the kernel's OOM killer ended pid 7", confidence=0.97)
    told = sentences(snapshot(), NOW, Failure(msgspec.structs.replace(BROKEN, diagnosis=oom)))
    assert "told by: the kernel's OOM killer ended pid 7" in told


def test_a_verdict_of_ours_is_not_quoted_as_its_own_proof() -> None:
    hang = DiagnosisView("scheduler-hang", "yes", evidence=STALLED)
    told = sentences(snapshot(), NOW, Failure(msgspec.structs.replace(STALL, diagnosis=hang), on_gpus=False))
    assert "\n".join(told).count("stalled in verify-graph") == 1
    assert "GPU" not in "\n".join(told)


def test_a_pause_says_when_and_how_often_it_may_still_start() -> None:
    pause = snapshot("kimi", "backoff", backoff_until=1042.0, budget_remaining=3, restarts=1)
    told = sentences(pause, NOW, Failure(STALL))
    assert told[0] == "kimi is BACKOFF (3 more starts allowed in this window); it is wanted up."
    assert told[-1] == "next: starts again in 42 s; sglctl wait kimi returns when it is healthy."


def test_what_is_still_to_come_is_not_told_as_done() -> None:
    pause = snapshot("kimi", "backoff", attempt=3, backoff_until=1003.0, restarts=1)
    told = sentences(pause, NOW, Failure(STALL))
    assert told[1] == "first cause: capture-hang; a restart can help.", "it comes first when it is why"
    assert not any(line.startswith("then: ") for line in told)
    assert told[-1] == "next: starts again in 3 s; sglctl wait kimi returns when it is healthy."


def test_a_start_that_maintenance_holds_back_is_said_so() -> None:
    paused = FacetView("on", 990.0, "pause asked by uid 0")
    held = snapshot("kimi", "stopped", goal="up", attempt=3, maintenance=paused)
    told = sentences(held, NOW, Failure(STALL))
    assert not any(line.startswith("then: ") for line in told)
    assert told[-1] == "next: held back by maintenance; sglctl resume kimi starts it."
    wanted_down = msgspec.structs.replace(held, goal="down")
    assert not any(line.startswith("next: ") for line in sentences(wanted_down, NOW))


@pytest.mark.parametrize(
    ("decision", "end"),
    [("backoff: exited; restart 1", "tried again because not sure."), ("fatal: spent", "a restart may not help.")],
)
def test_a_guess_is_told_as_one(decision: str, end: str) -> None:
    guess = DiagnosisView("draft-context", "no", confidence=0.56)
    told = sentences(snapshot(), NOW, Failure(msgspec.structs.replace(BROKEN, diagnosis=guess, decision=decision)))
    assert f"first cause: probably draft-context (56 % sure); {end}" in told
    assert "no restart can help" not in "".join(told)


@pytest.mark.parametrize(
    ("vote", "told"),
    [
        (VoteView("log", "still", 970.0, "recognised progress in the log"), "log: nothing new for 30 s."),
        (VoteView("log", "moving", 997.0, "recognised progress in the log"), "log: last progress 3 s ago."),
        (VoteView("cpu", "still", 940.0, "0.0 cores"), "cpu: still for 1 m (0.0 cores)."),
        (VoteView("io", "still", None, "0 MB/s read"), "io: still (0 MB/s read)."),
        (VoteView("health", "failure", 940.0, ""), "health: failure."),
    ],
)
def test_a_signal_is_told_in_words(vote: VoteView, told: str) -> None:
    silent = VoteView("gpu", "unknown", None, "not seen")
    stalled = snapshot("kimi", "running", verdict=FacetView("stalled", 900.0, "stalled"), votes=(vote, silent))
    assert sentences(stalled, NOW)[-1] == told


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        ("fatal: 5 restarts within 3600 s spent; last: REASON", "given up (5 restarts within 3600 s spent)"),
        ("quarantine: capture-hang 3 times without getting further: nothing to change at first", None),
        ("relaunch: REASON", "started again"),
        ("backoff: REASON (capture-hang); restart 1", "started again after a pause (restart 1)"),
        ("", ""),
        ("something: new", "something (new)"),
    ],
)
def test_what_followed_adds_only_what_was_not_said(decision: str, told: str | None) -> None:
    incident = msgspec.structs.replace(STALL, decision=decision.replace("REASON", STALLED))
    lines = [line for line in sentences(snapshot(), NOW, Failure(incident)) if line.startswith("then: ")]
    if told is None:
        assert lines == ["then: quarantined (3 times without getting further)."]
    else:
        assert lines == ([f"then: {told}."] if told else [])


def test_a_stop_that_was_asked_for_is_no_failure() -> None:
    stopped = snapshot("kimi", "stopped", exit=ExitView(2, 940.0, -15, "stop asked by uid 0"))
    told = sentences(stopped, NOW)
    assert told[0].startswith("kimi is STOPPED (")
    assert told[1:] == (
        "attempt 2 ended 1 m ago with signal 15: stop asked by uid 0.",
        "next: nothing, until somebody starts it: sglctl start kimi",
    )


SLOW = StartupView("target-graph", "graph-capture", 940.0, (), "TP3 still in target-graph", 949.0)
EARLIER = (
    "earlier: attempt 3 failed 4 m ago, 8 m 12 s after its launch: "
    f"{STALLED}; its first cause: capture-hang. sglctl why kimi --attempt 3 tells it."
)


def test_a_new_trouble_is_told_before_an_earlier_one_and_without_its_advice() -> None:
    hangs = snapshot("kimi", "starting", attempt=17, start=SLOW, deadline=1009.0, restarts=1)
    assert is_past(hangs, STALL, NOW)
    told = sentences(hangs, NOW, Failure(STALL, brief=True))
    assert told[1] == "attempt 17 is in phase target-graph for 1 m; last progress 51 s ago."
    assert told[-1] == EARLIER
    assert not any(line.startswith(("first cause", "what to change", "runbook")) for line in told)


@pytest.mark.parametrize(
    ("state", "fields", "past"),
    [
        ("starting", {"start": SLOW, "deadline": 1009.0}, True),  # 51 s of the 60 s that are allowed
        ("starting", {"start": SLOW, "deadline": 1549.0}, False),  # of ten minutes
        ("starting", {"start": SLOW}, False),
        ("starting", {"verdict": FacetView("dead", 990.0, "TP1 is gone")}, True),
        ("running", {"verdict": FacetView("stalled", 990.0, "no token")}, True),
        ("running", {"verdict": FacetView("idle", 990.0)}, False),
        ("running", {"readiness": FacetView("failure", 990.0)}, True),
        ("stopping", {}, True),
        ("backoff", {}, False),
        ("stopped", {}, True),
        ("stopped", {"goal": "up"}, False),
    ],
)
def test_a_failure_is_past_when_another_trouble_or_a_wish_is_why(state: str, fields: dict, past: bool) -> None:
    assert is_past(snapshot("kimi", state, attempt=4, **fields), STALL, NOW) is past
    own = snapshot("kimi", state, attempt=STALL.attempt, **fields)
    assert is_past(own, STALL, NOW) is (past and state == "stopped"), "the trouble is that failure"


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (ExitView(5, 990.0, -9, "stop asked by uid 7"), "attempt 5 ended 10 s ago with signal 9: stop asked by uid 7."),
        (ExitView(3, 760.0, -9, STALLED), "stopped 5 s ago: stop asked by uid 7."),
        (None, "stopped 5 s ago: stop asked by uid 7."),
    ],
)
def test_a_stopped_server_tells_first_who_stopped_it_and_how_it_starts(ended: ExitView | None, said: str) -> None:
    asked = FacetView("stopped", 995.0, "stop asked by uid 7")
    told = sentences(snapshot("kimi", "stopped", lifecycle=asked, exit=ended), NOW, Failure(STALL, brief=True))
    assert told[1:] == (said, "next: nothing, until somebody starts it: sglctl start kimi", EARLIER)


def test_a_start_tells_who_lags_and_what_it_said_last() -> None:
    ranks = tuple(RankView(f"TP{n}", "weights", "weights", 950.0, last_line=f"line of {n}") for n in range(2))
    start = StartupView("weights", "weights", 950.0, ranks, "TP1 still in weights; 1 rank waits for it", 990.0)
    votes = (VoteView("log", "moving", 990.0, "is told above"), VoteView("cpu", "moving", 999.0, "8 cores busy"))
    told = sentences(snapshot("kimi", "starting", attempt=1, start=start, deadline=1030.0, votes=votes), NOW)
    assert told == (
        "kimi is STARTING (weights for 50 s, TP1 slowest); it is wanted up.",
        "attempt 1 is in phase weights for 50 s; last progress 10 s ago.",
        "TP1 still in weights; 1 rank waits for it.",
        "last line of TP1: line of 1",
        "it is called stalled in 30 s.",
        "cpu: moving (8 cores busy).",
    )


def test_a_stalled_server_does_not_say_stalled_twice() -> None:
    reason = "stalled: no token for 300 s with 12 requests running"
    stalled = snapshot("kimi", "running", verdict=FacetView("stalled", 900.0, reason))
    assert "stalled: stalled" not in " ".join(sentences(stalled, NOW))


def test_a_stop_under_way_tells_its_step_and_its_reason() -> None:
    goes_on = "once nothing is left of it, it starts again, or is given up if that cannot help"
    ending = snapshot("kimi", "stopping", stop_stage="evidence", lifecycle=FacetView("stopping", 997.0, STALLED))
    assert sentences(ending, NOW) == (
        "kimi is STOPPING (keeping evidence for 3 s); it is wanted up.",
        f"stopping for 3 s: {STALLED}.",
        f"next: {goes_on}; sglctl wait kimi returns when it is healthy.",
    )


@pytest.mark.parametrize("state", ["draining", "stopping", "reclaiming"])
def test_who_is_stopped_while_it_ends_stays_so(state: str) -> None:
    told = sentences(snapshot("kimi", state, goal="down"), NOW)
    assert told[-1] == "next: stays stopped; sglctl wait kimi --for stopped returns when nothing is left of it."


@pytest.mark.parametrize("gpus", [(), (0, 1)])
def test_who_waits_for_its_devices_says_where_to_look(gpus: tuple[int, ...]) -> None:
    told = sentences(snapshot("kimi", "reclaiming", goal="up", gpus=gpus), NOW)
    who = " (sglctl gpus tells whose memory it is)" if gpus else ""
    assert told[-1] == f"next: goes on by itself when they are free{who}; sglctl wait kimi returns when it is healthy."


def test_a_server_without_its_devices_says_so_first_and_how_it_gets_them_back() -> None:
    """Its attempt's failure, with a cause and a remedy of its own, is not why it is down."""
    held = "9.7 GB held by nobody for 60 s: reset it, or sglctl gpu release 1"
    lifecycle = FacetView("quarantined", 940.0, f"GPU 1 is quarantined: {held}; GPU 3 is quarantined: {held}")
    out = snapshot("kimi", "quarantined", goal="up", attempt=3, lifecycle=lifecycle)
    told = sentences(out, NOW, Failure(STALL))
    assert told[0] == f"kimi is FATAL (quarantined: {lifecycle.reason}); it is wanted up."
    assert told[-1] == (
        "next: nothing, until it has its devices back (sglctl gpu release 1, sglctl gpu release 3) and somebody starts "
        "it: sglctl start kimi"
    )
    by_cause = FacetView("quarantined", 940.0, STALLED)
    failed = msgspec.structs.replace(STALL, decision=f"quarantine: {STALLED}")
    told = sentences(msgspec.structs.replace(out, lifecycle=by_cause), NOW, Failure(failed))
    assert told[0] == "kimi is FATAL (quarantined for 1 m); it is wanted up."
    assert told[-1] == "next: nothing, until somebody starts it: sglctl start kimi"


def test_two_failures_in_a_row_of_different_causes_are_both_told() -> None:
    """Mending the second alone would not do."""
    first = msgspec.structs.replace(BROKEN, attempt=2)
    both = snapshot("kimi", "backoff", attempt=3, incidents=(first, STALL))
    told = sentences(both, NOW, Failure(STALL))
    assert told[-1].startswith("earlier: attempt 2 failed 1 m ago in weights")
    assert told[-1].endswith("its first cause: draft-context. sglctl why kimi --attempt 2 tells it.")
    for other in (msgspec.structs.replace(first, diagnosis=STALL.diagnosis), msgspec.structs.replace(first, attempt=1)):
        one = msgspec.structs.replace(both, incidents=(other, STALL))
        assert not any(line.startswith("earlier") for line in sentences(one, NOW, Failure(STALL)))


def test_routers_are_told_with_their_reasons() -> None:
    routers = (RouterView("front", "joined"), RouterView("back", "unreachable", "nobody listens"))
    told = sentences(snapshot("kimi", "running", routers=routers), NOW)
    assert told[-2:] == ("router front: joined.", "router back: unreachable (nobody listens).")


def test_restarts_that_did_not_help_are_not_advised_again() -> None:
    """Whatever the policy gave up after: the words are those that the book of restarts really says."""
    diagnosis = DiagnosisView("capture-hang", "yes", "look at the stacks", confidence=0.8)
    for budget, same in ((9, 3), (2, 9)):
        book = RestartBook("kimi", RestartSettings(budget=budget, same_cause_limit=same))
        decisions = [book.decide(Ending(n, 10.0 * n, diagnosis, stage_order=3, summary=STALLED)) for n in range(1, 4)]
        for decision in decisions:
            incident = msgspec.structs.replace(
                STALL, decision=f"{decision.next}: {decision.reason}", diagnosis=diagnosis
            )
            (told,) = [line for line in sentences(snapshot(), NOW, Failure(incident)) if line.startswith("first cause")]
            again = decision.next is Next.BACKOFF
            assert (
                told == f"first cause: capture-hang; {'a restart can help' if again else 'restarts have not helped'}."
            )
        assert not again


def test_advice_can_be_copied_as_it_stands() -> None:
    """The commands have the server's name, and evidence of several lines is one."""
    hang = DiagnosisView("scheduler-hang", "yes", "look (sglctl bundle NAME has them)", 65, "one\ntwo", 0.9)
    told = sentences(snapshot("kimi", "fatal"), NOW, Failure(msgspec.structs.replace(BROKEN, diagnosis=hang)))
    assert "what to change: look (sglctl bundle kimi has them)" in told
    assert "evidence, line 65: one two" in told


def test_who_waits_for_its_turn_is_told_once_and_what_comes() -> None:
    turn = "waits for a start slot: glm is starting; next in line"
    waiting = snapshot("kimi", "reclaiming", goal="up", turn=turn)
    head, *rest = sentences(waiting, NOW)
    assert head.startswith("kimi is STARTING (waiting ")
    assert " for a start slot: glm is starting; next in line); it is wanted up." in head
    assert rest == [
        "next: starts by itself when its turn comes; sglctl wait kimi returns when it is healthy.",
    ]


@pytest.mark.parametrize(
    ("goal", "what"), [("up", "whether devices and ports are free"), ("down", "whether the memory is back")]
)
def test_what_is_done_about_devices_is_said_in_words(goal: str, what: str) -> None:
    busy = snapshot("kimi", "reclaiming", goal=goal, lifecycle=FacetView("reclaiming", 990.0, "GPU 0: 3 GB held"))
    head, line, *_ = sentences(busy, NOW)
    assert "(checking for 10 s: GPU 0: 3 GB held); " in head
    assert line == f"checking: {what}."
