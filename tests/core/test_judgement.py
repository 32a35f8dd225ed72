"""Stalled, slow or busy: stories of one server judged by everything that moves, in virtual time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor import actions as a
from supervisor import events as e
from supervisor.config import DetectorMode
from supervisor.core.lifecycle import State
from supervisor.core.outlook import ready_at
from supervisor.core.settings import DetectorSettings, PhaseLimit, RestartSettings, ServingSettings
from supervisor.snapshot import IncidentView
from tests.core.test_server import CAPTURING, LOADED, LOADING, READY, healthy
from tests.core.world import SETTINGS, World

GRAPH = {"target-graph": PhaseLimit(600, 3600, 300, 20), "weights": PhaseLimit(600, 3600, 300, 20)}
PATIENT = replace(SETTINGS, deadlines=GRAPH, restart=RestartSettings(jitter=0.0), history_key="k")


class Tree:
    """A tree whose counters a test drives; every tick of `step` seconds the world hears of it."""

    def __init__(self, world: World, step_s: float = 5.0) -> None:
        self.world, self.step_s = world, step_s
        self.cpu_s = self.read = 0.0
        self.processes: tuple[e.ProcessSample, ...] = ()
        self.compilers = 0

    def run(self, seconds: float, *, cores: float = 0.0, read_bytes_s: float = 0.0) -> None:
        end = self.world.now + seconds
        while self.world.now < end and self.world.state in (State.STARTING, State.RUNNING):
            self.world.until(min(end, self.world.now + self.step_s))
            self.cpu_s += cores * self.step_s
            self.read += read_bytes_s * self.step_s
            number = self.world.facts_now.attempt
            sample = e.TreeSampled(number, self.cpu_s, int(self.read), 0, self.processes, self.compilers)
            self.world.tell(sample)


def capturing(settings=PATIENT) -> tuple[World, Tree]:
    world = World(settings)
    world.start()
    world.until(1)
    world.log(*LOADING, *LOADED, *CAPTURING)
    return world, Tree(world)


# --- starting: silent, but ... ---------------------------------------------------------------------------------------


def test_idle_and_silent_gets_the_short_budget() -> None:
    world, tree = capturing()
    tree.run(400, cores=0.01)
    assert world.facts_now.verdict.value == "stalled"
    assert "the processes are idle" in world.facts_now.verdict.reason
    assert 295 <= world.when(a.KeepEvidence)[0] <= 320


def test_busy_and_silent_gets_the_long_budget() -> None:
    world, tree = capturing()
    tree.run(590, cores=8.0)
    assert world.state is State.STARTING
    tree.run(30, cores=8.0)
    assert world.facts_now.verdict.value == "stalled"
    assert "idle" not in world.facts_now.verdict.reason


def test_reading_two_gigabytes_a_second_without_a_line_is_loading() -> None:
    world = World(PATIENT)
    world.start()
    world.until(1)
    world.log(*LOADING)
    Tree(world).run(2000, cores=1.0, read_bytes_s=2e9)
    assert world.state is State.STARTING


def test_a_kernel_that_is_being_compiled_is_no_stall() -> None:
    world, tree = capturing()
    tree.compilers = 4
    tree.run(2000, cores=4.0)
    assert world.state is State.STARTING


def test_the_limit_ends_even_a_busy_start() -> None:
    world, tree = capturing()
    tree.compilers = 1
    tree.run(3700, cores=1.0)
    assert "not done after" in world.facts_now.verdict.reason


def test_memory_that_fills_up_is_progress() -> None:
    world, tree = capturing()
    for step in range(20):
        tree.run(100, cores=0.0)
        world.tell(e.DeviceMemorySampled(1, step * 2**30))
    assert world.state is State.STARTING


def test_a_stopped_rank_during_the_start_is_named_and_ends_it_before_the_budget() -> None:
    world, tree = capturing()
    tree.processes = (e.ProcessSample(99, "T", "scheduler", "TP1"),)
    tree.run(10)
    assert "scheduler TP1 (pid 99) is stopped (T)" in world.facts_now.verdict.reason
    tree.run(70)
    assert world.done(a.KeepEvidence)
    assert "is stopped (T) for 60 s" in world.done(a.KeepEvidence)[0].reason


# --- learned deadlines -----------------------------------------------------------------------------------------------


def one_start(world: World, capture_s: float = 30.0) -> None:
    world.start()
    begun = world.now
    world.health = e.ProbeOutcome.REFUSED
    world.until(begun + 1)
    world.log(*LOADING, *LOADED, *CAPTURING)
    world.until(begun + 1 + capture_s)
    world.log("[2026-11-29 10:00:30 TP0] Capture cuda graph end. Time elapsed: 30.00 s. avail mem=7.43 GB")
    world.health = e.ProbeOutcome.OK
    world.until(world.now + 2)
    assert world.state is State.RUNNING


def test_a_start_is_remembered_when_it_is_healthy() -> None:
    world = World(PATIENT)
    one_start(world)
    (remembered,) = world.done(a.Remember)
    phases = {phase.phase: phase for phase in remembered.record.phases}
    assert remembered.record.key == "k"
    assert phases["target-graph"].seconds == pytest.approx(30, abs=3)


def test_the_zombie_is_found_by_what_is_usual_for_it() -> None:
    """Night 3: after three healthy starts of half a minute the fourth is not left alone for ten."""
    world = World(PATIENT)
    for _ in range(3):
        one_start(world)
        world.stop()
        world.settle()
    world.health = e.ProbeOutcome.REFUSED
    world.start()
    begun = world.now
    world.until(begun + 1)
    world.log(*LOADING, *LOADED, *CAPTURING)
    world.until(begun + 150)
    reason = world.done(a.KeepEvidence)[0].reason
    assert "stalled in target-graph" in reason
    assert "in 3 starts" in reason
    assert world.when(a.KeepEvidence)[0] - begun < 125


def test_too_few_starts_are_only_counted() -> None:
    world = World(PATIENT)
    one_start(world)
    world.stop()
    world.settle()
    world.health = e.ProbeOutcome.REFUSED
    world.start()
    world.until(world.now + 1)
    world.log(*LOADING, *LOADED, *CAPTURING)
    world.until(world.now + 200)
    assert world.state is State.STARTING
    assert world.facts_now.would_have_killed == {"learned": 1}
    told = [x for x in world.done(a.Announce) if x.facet == "detector"]
    assert [x.after for x in told] == ["learned"]
    assert "would have killed" in told[0].reason


def test_a_cold_cache_that_is_eight_times_slower_but_moves_is_left_alone() -> None:
    world = World(PATIENT)
    for _ in range(4):
        one_start(world)
        world.stop()
        world.settle()
    world.health = e.ProbeOutcome.REFUSED
    world.start()
    world.until(world.now + 1)
    world.log(*LOADING)
    tree = Tree(world)
    tree.run(400, cores=0.5, read_bytes_s=200e6)
    assert world.state is State.STARTING


def test_the_deadlines_explain_themselves() -> None:
    world = World(PATIENT)
    for _ in range(3):
        one_start(world)
        world.stop()
        world.settle()
    texts = {view.phase: view.text for view in world.facts_now.deadlines}
    assert texts["target-graph"].startswith("target-graph: 3 starts, median 3")
    assert "(learned)" in texts["target-graph"]


# --- serving ---------------------------------------------------------------------------------------------------------


def engine(world: World, tokens: float, running: float = 4, queued: float = 0) -> None:
    world.tell(e.EngineSampled(world.facts_now.attempt, tokens, 1.0, running, queued))


def test_requests_in_and_nothing_out_is_stalled_although_health_says_200() -> None:
    world = healthy(World(PATIENT))
    for _ in range(58):
        engine(world, 1000)
        world.until(world.now + 5)
    assert world.facts_now.verdict.value == "busy"
    for _ in range(6):
        if world.state is State.RUNNING:
            engine(world, 1000)
            world.until(world.now + 5)
    assert "no token for 30" in world.done(a.KeepEvidence)[0].reason


def test_a_long_prefill_that_compiles_is_busy() -> None:
    world = healthy(World(PATIENT))
    tree = Tree(world)
    tree.compilers = 2
    for _ in range(200):
        engine(world, 1000)
        tree.run(5, cores=2.0)
    assert world.state is State.RUNNING
    assert world.facts_now.verdict.value == "busy"


def test_a_full_queue_with_tokens_flowing_is_busy_and_gets_no_probe() -> None:
    world = healthy(World(PATIENT))
    world.log(READY)
    engine(world, 1)
    begun, before = world.now, len(world.done(a.Probe))
    world.health = e.ProbeOutcome.TIMEOUT
    for second in range(0, 1200, 5):
        engine(world, 100 + second, running=48, queued=900)
        world.until(begun + second + 5)
    assert world.state is State.RUNNING
    assert world.facts_now.verdict.value == "busy"
    assert len(world.done(a.Probe)) - before <= 1


def test_a_stopped_detokenizer_is_seen_although_health_says_200() -> None:
    world = healthy(World(PATIENT))
    tree = Tree(world)
    tree.processes = (e.ProcessSample(55, "T", "detokenizer"),)
    tree.run(5)
    assert world.facts_now.verdict.value == "stalled"
    assert "detokenizer (pid 55) is stopped" in world.facts_now.verdict.reason
    tree.run(70)
    assert world.done(a.KeepEvidence)


def test_a_moment_in_the_kernel_is_nothing() -> None:
    world = healthy(World(PATIENT))
    tree = Tree(world)
    tree.processes = (e.ProcessSample(55, "D", "scheduler", "TP0"),)
    tree.run(100)
    assert world.state is State.RUNNING
    assert world.facts_now.verdict.value == "idle"


def test_observe_mode_counts_and_leaves_alone() -> None:
    settings = replace(PATIENT, detectors=DetectorSettings(standstill=DetectorMode.OBSERVE))
    world = healthy(World(settings))
    tree = Tree(world)
    tree.processes = (e.ProcessSample(55, "T", "detokenizer"),)
    tree.run(600)
    assert world.state is State.RUNNING
    assert world.facts_now.would_have_killed == {"standstill": 1}


def test_an_idle_server_gets_a_canary_now_and_then_a_busy_one_none() -> None:
    settings = replace(PATIENT, serving=ServingSettings(canary_interval_s=60))
    world = healthy(World(settings))
    world.until(world.now + 100)
    assert len(world.done(a.AskCanary)) == 1
    world.tell(e.CanaryAnswered(1, True))
    for step in range(100):
        engine(world, step)
        world.until(world.now + 5)
    assert len(world.done(a.AskCanary)) == 1


def test_a_canary_that_is_answered_after_the_end_leaves_nothing_to_wait_for() -> None:
    world = healthy(World(PATIENT))
    world.silent = {a.CheckDevices}
    world.tell(e.StopRequested("anna"))
    world.until(world.now + 5)
    assert world.state is State.RECLAIMING
    world.tell(e.CanaryAnswered(1, True))
    world.tell(e.DevicesChecked(1, True))
    assert world.state is State.STOPPED
    assert world.server.deadline() is None


def test_canaries_without_sense_degrade_and_by_default_only_count() -> None:
    world = healthy(World(PATIENT))
    for _ in range(3):
        world.tell(e.CanaryAnswered(1, False, detail="the answer is all '!'"))
    assert world.facts_now.verdict.value == "degraded"
    assert "all '!'" in world.facts_now.verdict.reason
    assert world.facts_now.would_have_killed == {"canary": 1}
    world.tell(e.CanaryAnswered(1, True))
    assert world.facts_now.verdict.value == "idle"


def test_a_start_with_a_ninth_of_the_usual_cache_is_degraded() -> None:
    def line(tokens: int) -> str:
        return (
            f"[2026-11-29 10:00:39 TP0] max_total_num_tokens={tokens}, chunked_prefill_size=8192,"
            " max_prefill_tokens=16384, max_running_requests=2048, context_len=131072, available_gpu_mem=7.00 GB"
        )

    world = World(PATIENT)
    world.start()
    world.until(1)
    world.log(*LOADING, *LOADED, line(2928046))
    world.health = e.ProbeOutcome.OK
    world.until(3)
    assert world.facts_now.capacity_tokens == 2928046
    world.tell(e.RestartRequested("ann"))
    world.health = e.ProbeOutcome.REFUSED
    world.until(world.now + 1.5)
    world.log(*LOADING, *LOADED, line(334686))
    world.health = e.ProbeOutcome.OK
    world.until(world.now + 2)
    assert world.facts_now.verdict.value == "degraded"
    assert "334686 tokens, 11% of the 2928046" in world.facts_now.verdict.reason
    assert world.facts_now.would_have_killed == {"capacity": 1}


def test_every_verdict_comes_with_the_signals_that_voted() -> None:
    world = healthy(World(PATIENT))
    engine(world, 1)
    votes = {vote.source: vote.says for vote in world.facts_now.votes}
    assert set(votes) == {"log", "health", "cpu", "io", "gpu", "engine"}
    assert votes["health"] == "success"
    assert votes["gpu"] == "unknown"


def test_our_own_probes_do_not_make_an_idle_server_busy() -> None:
    """Each /health makes the engine generate one token and say so."""
    world = healthy(World(PATIENT))
    world.log(READY)
    for second in range(60):
        world.until(world.now + 5)
        world.log(
            f"[2026-11-29 10:30:{second:02d} TP0] Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0,"
            " token usage: 0.00, #running-req: 0, #queue-req: 0",
            f'[2026-11-29 10:30:{second:02d}] INFO:     127.0.0.1:5{second:04d} - "GET /health HTTP/1.1" 200 OK',
        )
        assert world.facts_now.verdict.value == "idle"


def test_how_long_a_start_will_take_is_told_from_earlier_ones() -> None:
    world = World(PATIENT)
    assert ready_at(world.facts_now, world.now) is None
    one_start(world)
    assert ready_at(world.facts_now, world.now) is None
    world.stop()
    world.settle()
    world.health = e.ProbeOutcome.REFUSED
    world.start()
    world.until(world.now + 1)
    world.log(*LOADING, *LOADED, *CAPTURING)
    assert ready_at(world.facts_now, world.now) == pytest.approx(world.now + 31, abs=4)
    world.until(world.now + 10)
    world.tell(e.Ticked())
    assert ready_at(world.facts_now, world.now) == pytest.approx(world.now + 21, abs=4)


def test_a_canarys_own_line_does_not_make_an_idle_server_busy() -> None:
    world = healthy(World(PATIENT))
    world.log(READY)
    world.until(world.now + 60)
    line = '[2026-11-29 10:40:00] INFO:     127.0.0.1:40000 - "POST /generate HTTP/1.1" 200 OK'
    world.log(line)
    world.tell(e.CanaryAnswered(1, True))
    assert world.facts_now.verdict.value == "idle"
    world.until(world.now + 5)
    world.log(line)
    assert world.facts_now.verdict.value == "busy"


# --- blind -----------------------------------------------------------------------------------------------------------


def test_a_log_that_cannot_be_read_kills_nobody() -> None:
    world = World(replace(PATIENT, deadlines={"launch": PhaseLimit(60, 60)}))
    world.start()
    world.until(1)
    world.tell(e.LogUnreadable(1, "cannot read /log: permission denied"))
    world.until(7200)
    assert world.state is State.STARTING
    assert "permission denied" in world.facts_now.verdict.reason
    world.health = e.ProbeOutcome.OK
    world.until(world.now + 2)
    assert world.state is State.RUNNING


def test_a_log_level_that_hides_the_markers_leaves_processes_and_port_to_speak() -> None:
    command = (
        "python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "/m",
        "--port",
        "30000",
        "--log-level",
        "warning",
    )
    world = World(replace(PATIENT, deadlines={"launch": PhaseLimit(60, 60)}), command)
    world.start()
    world.until(1)
    tree = Tree(world)
    tree.run(1800, cores=2.0, read_bytes_s=1e9)
    assert world.state is State.STARTING
    assert "log level warning" in world.facts_now.verdict.reason
    tree.run(1000, cores=0.0)
    assert "blind (the command hides the log's markers" in world.done(a.KeepEvidence)[0].reason


def test_a_ready_line_during_a_probe_is_followed_by_another_at_once() -> None:
    world = World(PATIENT)
    world.silent.add(a.Probe)
    world.start()
    world.until(1)
    assert len(world.done(a.Probe)) == 1
    world.log(READY)
    world.silent.clear()
    world.tell(e.Probed(1, e.ProbeOutcome.UNAVAILABLE))
    world.health = e.ProbeOutcome.OK
    world.until(world.now + 0.03)
    assert world.state is State.RUNNING


# --- causes that only we can know ------------------------------------------------------------------------------------


def test_a_stall_that_we_saw_is_not_explained_away_by_a_probe_that_lies() -> None:
    world = healthy(World(PATIENT))
    tree = Tree(world)
    tree.processes = (e.ProcessSample(55, "T", "scheduler"),)
    tree.run(20)
    world.log(
        "[2026-11-29 10:41:00] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds."
        " tic start time: 10:40:40. last_heartbeat time: 10:40:38"
    )
    tree.run(60)
    world.until(world.now + 10)
    (incident,) = world.facts_now.incidents
    assert incident.diagnosis.cause == "scheduler-hang"
    assert incident.diagnosis.restart != "no"
    assert "is stopped (T)" in incident.diagnosis.evidence


def test_a_kill_nobody_signed_is_not_called_the_kernels_for_sure() -> None:
    world = healthy(World(PATIENT))
    world.log(
        "[2026-11-29 10:41:00] Subprocess scheduler_0 (pid=77) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
    )
    world.tell(e.Exited(1, -9))
    world.until(world.now + 1)
    assert world.facts_now.diagnosis.restart == "maybe"
    assert world.facts_now.diagnosis.confidence <= 0.4


def test_a_kill_that_the_kernel_would_have_told_of_is_somebodys() -> None:
    world = healthy(World(PATIENT))
    world.silent.add(a.KillTree)
    world.log(
        "[2026-11-29 10:41:00] Subprocess scheduler_0 (pid=77) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
    )
    world.tell(e.Exited(1, -9))
    world.tell(e.TreeEmptied(1, kernel_heard=True))
    assert world.facts_now.diagnosis.cause == "external-termination"
    assert world.facts_now.lifecycle.value in ("reclaiming", "backoff")


def test_an_exit_status_of_its_own_is_no_oom_kill_whatever_the_log_mentions() -> None:
    world = World(PATIENT)
    world.start()
    world.until(1)
    world.log("sim: error: unknown cause, choose from host-oom-killed, Killed, exit code -9")
    world.tell(e.Exited(1, 2))
    world.until(2)
    assert world.facts_now.diagnosis.cause == "server-args-invalid"
    assert world.facts_now.lifecycle.value == "fatal"


def test_a_leader_may_end_with_0_after_a_process_of_its_own_was_killed() -> None:
    world = healthy(World(PATIENT))
    world.silent.add(a.KillTree)
    world.log("[2026-11-29 10:41:00] Subprocess scheduler_0 (pid=77) crashed with exit code -9. Triggering SIGQUIT")
    world.tell(e.Exited(1, 0))
    world.tell(e.TreeEmptied(1))
    assert world.facts_now.diagnosis.cause == "host-oom-killed"
    assert world.facts_now.diagnosis.restart == "maybe", "nobody has proven it"
    assert "scheduler_0" in world.facts_now.diagnosis.evidence


def test_who_ended_first_is_named_although_the_leader_followed_at_once() -> None:
    world = healthy(World(PATIENT))
    world.silent.add(a.KillTree)
    world.tell(e.Exited(1, -9))
    world.tell(e.RoleDied(1, 4711, "scheduler", "TP2", with_leader=True))
    world.tell(e.TreeEmptied(1))
    (incident,) = world.facts_now.incidents
    assert incident.reason == "ended by signal 9 after scheduler TP2 (pid 4711) had ended"


def test_when_the_log_proves_a_cause_its_rank_is_named_and_not_whom_the_engine_killed_first() -> None:
    """Seen with a real engine: the detokenizer is the first to go when the launcher clears up after a scheduler."""
    world = World(PATIENT)
    world.start()
    world.until(1)
    world.silent.add(a.KillTree)
    world.log(
        "[2026-11-29 10:40:59 TP1] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/venv/sglang/srt/mem_cache/memory_pool.py", line 801, in _create_buffers',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.10 GiB.",
        "[2026-11-29 10:41:00] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
    )
    world.tell(e.RoleDied(1, 4712, "detokenizer", with_leader=True, code=-9))
    world.tell(e.Exited(1, -9))
    world.tell(e.TreeEmptied(1, kernel_heard=True))
    (incident,) = world.facts_now.incidents
    assert incident.reason == "ended by signal 9"
    assert (incident.diagnosis.cause, incident.diagnosis.evidence_rank) == ("gpu-oom-kv-pool", "TP1")


def test_a_command_that_cannot_be_executed_has_a_cause_of_its_own() -> None:
    world = World(PATIENT)
    world.spawn_error = e.SpawnFailed(0, "cannot execute /opt/none: no such file", True)
    world.start()
    world.settle()
    assert world.facts_now.diagnosis.cause == "cannot-execute"
    assert "/opt/none" in world.facts_now.diagnosis.evidence


def test_memory_is_only_called_back_where_there_was_a_device_to_look_at() -> None:
    world = healthy(World(replace(PATIENT, gpus=())))
    world.stop()
    world.settle()
    assert world.facts_now.stop.empty_s is not None
    assert world.facts_now.stop.free_s is None


# --- a process with a role that ended by itself: our own TERM afterwards is never the cause ----------------------------


def died(code: int | None, rank: str = "TP1", *, kernel_heard: bool = False) -> IncidentView:
    """The story of a start whose rank is gone: we ask the leader to end, which it does by our signal."""
    world, tree = capturing()
    world.silent.add(a.KillTree)
    tree.processes = (
        e.ProcessSample(10, "S"),
        e.ProcessSample(11, "Z", "scheduler", rank),
        e.ProcessSample(12, "S", "scheduler", "TP0"),
    )
    tree.run(5)
    world.tell(e.RoleDied(1, 11, "scheduler", rank, code=code))
    world.until(world.now + 300)
    assert world.done(a.SignalTree) == [a.SignalTree(1, 15)]
    world.tell(e.Exited(1, -15))
    world.tell(e.TreeEmptied(1, kernel_heard=kernel_heard))
    (incident,) = world.facts_now.incidents
    assert incident.diagnosis.evidence == incident.reason
    return incident


def test_a_killed_rank_is_not_blamed_on_our_own_term() -> None:
    incident = died(-9)
    assert incident.diagnosis.cause == "host-oom-killed"
    assert incident.diagnosis.confidence <= 0.4
    assert incident.diagnosis.restart == "maybe"
    assert "dmesg" in incident.diagnosis.remedy
    assert incident.reason == "dead: scheduler TP1 (pid 11) is gone (signal 9)"


def test_a_killed_rank_that_the_kernel_knows_nothing_of_is_somebodys_sigkill() -> None:
    incident = died(-9, kernel_heard=True)
    assert incident.diagnosis.cause == "external-termination"
    assert "Somebody's SIGKILL" in incident.diagnosis.remedy


@pytest.mark.parametrize(
    ("code", "cause", "word"),
    [
        (-11, "native-crash", ""),
        (-15, "external-termination", "SIGTERM"),
        (1, "insufficient-evidence", "dmesg"),
        (None, "insufficient-evidence", "dmesg"),
    ],
)
def test_how_the_rank_ended_tells_the_cause(code: int | None, cause: str, word: str) -> None:
    incident = died(code)
    assert incident.diagnosis.cause == cause
    assert word in incident.diagnosis.remedy


def test_a_rank_that_ended_before_its_title_was_read_is_the_one_that_the_log_knows_and_nobody_bears() -> None:
    assert "scheduler TP1 (pid 11)" in died(-9, rank="").reason


@pytest.mark.parametrize("asked_before", [False, True])
def test_what_the_log_says_of_our_own_term_is_no_cause_and_of_somebodys_before_it_is_one(asked_before: bool) -> None:
    term = "[2026-11-29 10:41:00] SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
    world, tree = capturing()
    world.silent.add(a.KillTree)
    tree.processes = (e.ProcessSample(10, "S"), e.ProcessSample(11, "Z", "scheduler", "TP1"))
    tree.run(5)
    if asked_before:
        world.log(term)
    world.tell(e.RoleDied(1, 11, "scheduler", "TP1", code=-9))
    while not world.done(a.SignalTree):
        world.until(world.now + 1)
    world.log(term)
    world.tell(e.Exited(1, -15))
    world.tell(e.TreeEmptied(1))
    (incident,) = world.facts_now.incidents
    assert incident.diagnosis.cause == ("external-termination" if asked_before else "host-oom-killed")
    assert ("SIGTERM" in incident.diagnosis.evidence) == asked_before


def test_a_last_word_of_the_log_is_not_blamed_on_our_own_term_either() -> None:
    world, _ = capturing()
    world.log("[2026-11-29 10:41:00] Received sigquit from a child process. It usually means the child failed.")
    world.until(world.now + 300)
    (incident, *_) = world.facts_now.incidents
    assert incident.diagnosis.cause == "insufficient-evidence"
    assert "sigquit" in incident.diagnosis.evidence
