"""Each of our states is said in supervisord's words."""

from __future__ import annotations

import pytest

from supervisor.api.control import Clock
from supervisor.api.words import State, describe, state_of
from supervisor.core import lifecycle
from supervisor.snapshot import (
    DiagnosisView,
    DrainView,
    ExitView,
    FacetView,
    ProgressView,
    RankView,
    RouterView,
    ServerSnapshot,
    StartupView,
)
from tests.api.fake import snapshot

NOW = Clock(160.0, 1764420000.0)


def described(state: str, **fields: object) -> str:
    return describe(snapshot("kimi", state, **fields), NOW)


def test_every_lifecycle_state_has_a_word() -> None:
    for state in lifecycle.State:
        assert state_of(snapshot("kimi", str(state))) is not State.UNKNOWN


@pytest.mark.parametrize(
    ("server", "state"),
    [
        (snapshot("a", "stopped"), State.STOPPED),
        (snapshot("a", "stopped", exit=ExitView(1, 100.0, 0)), State.STOPPED),
        (snapshot("a", "stopped", goal="up", exit=ExitView(1, 100.0, 0)), State.EXITED),
        (snapshot("a", "starting"), State.STARTING),
        (snapshot("a", "running"), State.RUNNING),
        (snapshot("a", "draining"), State.STOPPING),
        (snapshot("a", "stopping"), State.STOPPING),
        (snapshot("a", "reclaiming", goal="up"), State.STARTING),
        (snapshot("a", "reclaiming", goal="down"), State.STOPPING),
        (snapshot("a", "backoff"), State.BACKOFF),
        (snapshot("a", "fatal"), State.FATAL),
        (snapshot("a", "quarantined"), State.FATAL),
        (snapshot("a", "something-new"), State.UNKNOWN),
    ],
)
def test_states(server: ServerSnapshot, state: State) -> None:
    assert state_of(server) is state


def test_numbers_are_supervisords() -> None:
    assert {state.name: state.value for state in State} == {
        "STOPPED": 0,
        "STARTING": 10,
        "RUNNING": 20,
        "BACKOFF": 30,
        "STOPPING": 40,
        "EXITED": 100,
        "FATAL": 200,
        "UNKNOWN": 1000,
    }


def test_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert described("stopped") == "Not started"
    stop_time = described("stopped", exit=ExitView(1, 100.0, 0))
    assert stop_time.startswith("Nov 2")
    assert stop_time.endswith((" AM", " PM"))


@pytest.mark.parametrize(
    ("ready_since", "text"),
    [
        (156.0, "pid 4242, uptime 0:00:04"),
        (160.0 - 7384, "pid 4242, uptime 2:03:04"),
        (160.0 - 86400 - 7384, "pid 4242, uptime 1 day, 2:03:04"),
        (160.0 - 3 * 86400, "pid 4242, uptime 3 days, 0:00:00"),
        (161.0, "pid 4242, uptime 0:00:00"),
    ],
)
def test_uptime_counts_from_readiness_as_supervisord_writes_it(ready_since: float, text: str) -> None:
    assert described("running", ready_since=ready_since) == text


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (FacetView("idle", 100.0), "pid 4242, uptime 0:01:00"),
        (FacetView("busy", 100.0, "12 running"), "pid 4242, uptime 0:01:00, busy"),
        (FacetView("degraded", 100.0, "small KV pool"), "pid 4242, uptime 0:01:00, degraded: small KV pool"),
    ],
)
def test_running_shows_a_verdict_that_matters(verdict: FacetView, text: str) -> None:
    assert described("running", verdict=verdict) == text


def test_starting_shows_phase_progress_laggard_and_eta() -> None:
    ranks = (
        RankView("TP0", "weights", "weights", 130.0, ProgressView(15, 20, eta_s=20)),
        RankView("TP3", "weights", "weights", 130.0, ProgressView(9, 20, eta_s=80)),
        RankView("TP4", "memory-pool", "memory-pool", 150.0, ProgressView(0, 20, eta_s=800)),
    )
    start = StartupView("weights", "weights", 130.0, ranks, laggard="TP3")
    assert described("starting", start=start, restarts=2) == (
        "weights 45 % for 30 s, TP3 slowest, about 1 m 20 s left in it, 2 restarts"
    )


def test_of_a_dead_one_nothing_is_foretold_but_its_end() -> None:
    """Its full bar has nothing left to do, and it is called stalled no more."""
    rank = RankView("TP1", "weights", "weights", 130.0, ProgressView(20, 20, eta_s=0.0), last_progress=158.0)
    start = StartupView("weights", "weights", 130.0, (rank,), last_progress=158.0)
    gone = FacetView("dead", 158.0, "scheduler TP1 is gone")
    told = "weights 100 % for 30 s, dead: scheduler TP1 is gone"
    ends_at = NOW.monotonic + 8.0
    assert described("starting", start=start, verdict=gone, ends_at=ends_at) == f"{told}, ended in 8 s"
    assert described("running", ready_since=40.0, verdict=gone, ends_at=ends_at).endswith("TP1 is gone, ended in 8 s")
    paused = FacetView("on", 100.0, "a look at the host")
    assert described("starting", start=start, verdict=gone, ends_at=ends_at, maintenance=paused) == f"{told}, paused"


@pytest.mark.parametrize(
    ("bar", "silent_s", "text"),
    [
        (ProgressView(9, 20, "sizes", 1.0, 11.0), 4.0, "about 7 s left in it"),
        (ProgressView(9, 20, "sizes", 1.0, 11.0), 26.0, "no progress for 26 s"),
        (ProgressView(9, 20, "shards", 0.01, 1100.0), 26.0, "about 17 m 54 s left in it"),
        (ProgressView(20, 20, "shards", 1.0, 0.0), 5.0, "about 0 s left in it"),
        (ProgressView(20, 20, "shards", 1.0, 0.0), 57.0, "no progress for 57 s"),
    ],
)
def test_nothing_is_foretold_of_a_bar_that_stands_still(bar: ProgressView, silent_s: float, text: str) -> None:
    """Not moving is measured by its own rate: one shard may take minutes."""
    moved = NOW.monotonic - silent_s
    rank = RankView("TP0", "weights", "weights", 100.0, bar, last_progress=moved)
    start = StartupView("weights", "weights", 100.0, (rank,), last_progress=moved)
    assert described("starting", start=start).endswith(text)


def test_a_stalled_start_says_so() -> None:
    start = StartupView("verify-graph", "graph-capture", 100.0)
    verdict = FacetView("stalled", 150.0, "no progress for 50 s")
    assert described("starting", start=start, verdict=verdict) == (
        "verify-graph for 1 m, stalled: no progress for 50 s"
    )


def test_backoff_shows_cause_and_time_left() -> None:
    lifecycle_view = FacetView("backoff", 150.0, "CUDA out of memory")
    assert described("backoff", lifecycle=lifecycle_view, backoff_until=172.0, restarts=1) == (
        "restart 1, next start in 12 s: CUDA out of memory"
    )


def test_backoff_tells_the_count_of_its_reason_once() -> None:
    lifecycle_view = FacetView("backoff", 150.0, "exited with status 1 (cuda-oom); restart 2")
    assert described("backoff", lifecycle=lifecycle_view, backoff_until=164.0, restarts=7) == (
        "restart 2, next start in 4 s: exited with status 1 (cuda-oom)"
    )
    assert described("backoff", lifecycle=lifecycle_view) == "restart 2: exited with status 1 (cuda-oom)"


@pytest.mark.parametrize(("state", "before"), [("fatal", ""), ("quarantined", "quarantined: ")])
def test_a_line_leaves_the_remedy_to_why(state: str, before: str) -> None:
    cause = DiagnosisView("draft-context", "no", "set --context-length 4096")
    view = FacetView(state, 100.0, "draft-context: a restart cannot help: set --context-length 4096")
    assert described(state, lifecycle=view, diagnosis=cause) == f"{before}draft-context: a restart cannot help"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"lifecycle": FacetView("fatal", 100.0, "no such file")}, "no such file"),
        ({"diagnosis": DiagnosisView("oom")}, "oom"),
        ({"exit": ExitView(1, 100.0, 1, "exited with 1")}, "exited with 1"),
        ({}, "unknown error"),
    ],
)
def test_fatal_shows_the_best_known_cause(fields: dict[str, object], text: str) -> None:
    assert described("fatal", **fields) == text


def test_quarantined_says_so() -> None:
    assert described("quarantined", lifecycle=FacetView("quarantined", 100.0, "pid 7 cannot be killed")) == (
        "quarantined: pid 7 cannot be killed"
    )


@pytest.mark.parametrize("state", ["stopping", "draining", "reclaiming"])
def test_what_is_under_way_shows_for_how_long(state: str) -> None:
    assert described(state, stop_stage="kill").startswith("being killed for 1 m")
    told = "checking for 1 m: stop asked" if state == "reclaiming" else "stop asked for 1 m"
    assert described(state, lifecycle=FacetView(state, 100.0, "stop asked")) == told


@pytest.mark.parametrize(("port", "asked"), [(31099, " (asked at port 31099)"), (0, "")])
def test_a_start_that_only_its_log_calls_ready_says_what_its_probe_says(port: int, asked: str) -> None:
    start = StartupView("healthy", "serving", 144.0)
    verdict = FacetView("warming", 100.0, "port not open yet")
    told = described("starting", start=start, verdict=verdict, port=port)
    assert told == f"ready by its log for 16 s, but port not open yet{asked}"


def test_who_waits_for_its_turn_says_for_whom_whatever_came_before() -> None:
    waits = "waits for a start slot: kimi is starting; next in line"
    told = "waiting 1 m for a start slot: kimi is starting; next in line"
    assert described("reclaiming", turn=waits, stop_stage="kill") == told
    looking = FacetView("reclaiming", 100.0, "start asked by alice")
    assert described("reclaiming", lifecycle=looking, turn_came=157.0) == "checking for 3 s: start asked by alice"
    assert described("reclaiming", lifecycle=looking, stop_stage="kill").startswith("checking for 1 m: "), "it is over"
    assert described("reclaiming", turn="held by hand") == "held by hand for 1 m"


@pytest.mark.parametrize(
    ("stage", "drain", "text"),
    [
        ("requests", DrainView(3, 200.0), "draining: 3 requests running, 40 s left"),
        ("term", DrainView(1, 159.0), "draining: 1 request running, 0 s left"),
        ("leave", DrainView(0, 200.0), "draining: leaving its routers, 0 requests running, 40 s left"),
        ("term", DrainView(None, 200.0, "no page"), "draining: running requests are not known, 40 s left; no page"),
    ],
)
def test_a_drain_tells_what_runs_and_how_long_it_may(stage: str, drain: DrainView, text: str) -> None:
    assert described("draining", stop_stage=stage, drain=drain) == text


def test_a_serving_server_tells_which_router_does_not_have_it() -> None:
    routers = (RouterView("front", "joined"), RouterView("back", "unreachable", "nobody listens"))
    assert described("running", routers=routers).endswith("uptime 0:01:00, router back unreachable")
    assert "router" not in described("stopped", routers=routers)


def test_healthy_is_running_and_ready() -> None:
    assert snapshot("a", "running").healthy
    assert not snapshot("a", "running", readiness=FacetView("failure", 100.0)).healthy
    assert not snapshot("a", "draining", readiness=FacetView("success", 100.0)).healthy
