"""Stories of one server in virtual time: what happened, what was decided, when."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.lifecycle import State
from supervisor.core.log.grammar import LogReader
from supervisor.core.settings import PhaseLimit, RestartSettings
from supervisor.lines import LineCutter
from tests.core.world import SETTINGS, World

STAMP = "[2026-11-29 10:00:{:02d}{}] {}"
LOADING = (
    STAMP.format(1, " TP0", "Init torch distributed begin."),
    STAMP.format(2, " TP0", "Load weight begin. avail mem=78.00 GB"),
    STAMP.format(2, " TP1", "Load weight begin. avail mem=78.00 GB"),
)
LOADED = (
    STAMP.format(
        9, " TP0", "Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=70 GB, mem usage=8 GB."
    ),
    STAMP.format(
        9, " TP1", "Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=70 GB, mem usage=8 GB."
    ),
)
CAPTURING = (
    STAMP.format(11, " TP0", "Capture cuda graph begin. This can take up to several minutes. avail mem=9.92 GB"),
    STAMP.format(11, " TP1", "Capture cuda graph begin. This can take up to several minutes. avail mem=9.92 GB"),
)
READY = "[2026-11-29 10:00:40] The server is fired up and ready to roll!"
NO_JITTER = RestartSettings(backoff_s=5.0, jitter=0.0)


def healthy(world: World | None = None) -> World:
    world = world or World()
    world.start()
    world.until(world.now + 5)
    world.health = e.ProbeOutcome.OK
    world.until(world.now + 1)
    assert world.state is State.RUNNING
    return world


# --- a start ---------------------------------------------------------------------------------------------------------


def test_a_start_looks_at_the_devices_spawns_and_probes_until_healthy() -> None:
    world = healthy()
    kinds = [type(action) for _, action in world.did if not isinstance(action, a.Announce)]
    assert kinds[:3] == [a.CheckDevices, a.Spawn, a.Probe]
    assert world.path() == ["reclaiming", "starting", "running"]
    assert world.facts_now.verdict.value == "idle"
    assert world.facts_now.startup.value == "success"


def test_refused_and_503_for_an_hour_are_warming() -> None:
    limits = {"launch": PhaseLimit(float("inf"), float("inf"))}
    world = World(replace(SETTINGS, deadlines=limits))
    world.start()
    world.until(1800)
    world.health = e.ProbeOutcome.UNAVAILABLE
    world.until(3600)
    assert world.state is State.STARTING
    assert world.facts_now.verdict.value == "warming"
    assert not world.done(a.KillTree)


def test_probes_never_overlap_and_a_lost_one_is_made_up_for() -> None:
    world = World()
    world.silent.add(a.Probe)
    world.start()
    world.until(20)
    assert len(world.done(a.Probe)) == 1
    world.until(100)
    first, second, third = world.when(a.Probe)  # one per time-out and slack
    assert third - second == pytest.approx(second - first)
    assert second - first == pytest.approx(SETTINGS.readiness.timeout_s + 10.0)


def test_the_ready_line_makes_the_next_probe_come_at_once() -> None:
    world = World()
    world.health = e.ProbeOutcome.TIMEOUT
    world.start()
    world.until(10.1)
    before = len(world.done(a.Probe))
    world.health = e.ProbeOutcome.OK
    world.log(READY)
    world.until(world.now + 0.02)
    assert len(world.done(a.Probe)) >= before
    assert world.when(a.Probe)[-1] == pytest.approx(10.1, abs=0.02)
    world.until(world.now + 0.05)
    assert world.state is State.RUNNING


def test_a_spawn_that_fails_for_good_is_fatal_without_a_loop() -> None:
    world = World()
    world.spawn_error = e.SpawnFailed(0, "cannot execute /opt/nope: no such file", True)
    world.start()
    assert world.settle() is State.FATAL
    assert len(world.done(a.Spawn)) == 1
    assert "no such file" in world.facts_now.lifecycle.reason


def test_a_spawn_that_the_host_refuses_for_now_is_tried_again_however_often() -> None:
    world = World(replace(SETTINGS, restart=RestartSettings(budget=3, same_cause_limit=3, backoff_max_s=60)))
    world.spawn_error = e.SpawnFailed(0, "cannot fork: resource temporarily unavailable", False)
    world.start()
    world.until(600)
    assert world.server.state is State.BACKOFF
    assert len(world.done(a.Spawn)) > 8
    world.spawn_error = None
    world.until(700)
    assert world.server.state is State.STARTING


def test_an_unanswered_spawn_is_killed_by_its_number() -> None:
    world = World()
    world.silent.add(a.Spawn)
    world.start()
    world.until(31)
    assert world.done(a.KillTree) == [a.KillTree(1)]


# --- the four nights -------------------------------------------------------------------------------------------------


def test_night_1_silence_in_a_capture_is_named_kept_killed_and_restarted() -> None:
    world = World(replace(SETTINGS, deadlines={"target-graph": PhaseLimit(180, 900)}, restart=NO_JITTER))
    world.start()
    world.until(1)
    world.log(*LOADING, *LOADED, *CAPTURING)
    world.until(170)
    assert world.facts_now.deadline == pytest.approx(181)
    assert world.facts_now.start.phase == "target-graph"
    assert world.state is State.STARTING
    world.until(181.1)
    assert world.facts_now.verdict.value == "stalled"
    assert "target-graph" in world.facts_now.verdict.reason
    assert "180 s" in world.facts_now.verdict.reason
    world.until(195)
    kinds = [type(x) for t, x in world.did if t > 180 and not isinstance(x, a.Announce | a.Probe)]
    assert kinds[:4] == [a.KeepEvidence, a.SignalTree, a.KillTree, a.CheckDevices]
    assert world.facts_now.attempt == 2
    assert world.state is State.STARTING
    assert world.facts_now.restarts == 1


def test_night_2_a_slow_warm_up_is_never_taken_for_dead_and_readiness_is_seen_at_once() -> None:
    world = World()
    world.start()
    world.until(1)
    world.log(*LOADING, *LOADED, *CAPTURING)
    for second in range(2, 600, 30):
        world.until(second)
        world.log(f"Capturing batches (bs={second} avail_mem=9.17 GB): 10%|█ | {second}/600 [00:10<01:30,  1.0s/it]")
    world.health = e.ProbeOutcome.UNAVAILABLE
    world.until(605)
    world.health = e.ProbeOutcome.OK
    asked = world.now
    world.until(607)
    ready = world.facts_now.ready_since
    assert ready is not None
    assert ready - asked <= 1.0
    assert not world.done(a.KillTree)


def test_night_3_the_zombie_is_killed_although_its_process_lives_and_term_is_ignored() -> None:
    world = World(replace(SETTINGS, deadlines={"target-graph": PhaseLimit(180, 900)}, restart=NO_JITTER))
    world.ignores_term = True
    world.start()
    world.until(1)
    world.log(*LOADING, *LOADED, *CAPTURING)
    world.until(200)
    assert world.done(a.KillTree) == [a.KillTree(1)]
    assert world.facts_now.attempt == 2


def test_night_4_a_cause_that_no_restart_mends_is_fatal_after_one_attempt() -> None:
    world = World()
    world.start()
    world.until(1)
    world.log(
        *LOADING,
        STAMP.format(5, " TP0", "Scheduler hit an exception: Traceback (most recent call last):"),
        '  File "/x/sglang/srt/managers/scheduler.py", line 2500, in run_scheduler_process',
        "    scheduler = Scheduler(server_args, port_args)",
        '  File "/x/sglang/srt/configs/model_config.py", line 210, in __init__',
        "    raise ValueError(",
        "ValueError: Warning: Target model's context_length (262144) is greater than the derived context_length (2048)."
        " This may lead to incorrect model outputs or CUDA errors. To allow overriding this maximum, set the env var"
        " SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
        "",
        "[2026-11-29 10:00:06] Received sigquit from a child process. It usually means the child failed.",
    )
    world.tell(e.Exited(1, -9))
    assert world.settle() is State.FATAL
    assert len(world.done(a.Spawn)) == 1
    assert world.facts_now.diagnosis.cause == "spec-decode-config"
    assert world.facts_now.diagnosis.remedy
    world.until(world.now + 24 * 3600)
    assert len(world.done(a.Spawn)) == 1


# --- deadlines -------------------------------------------------------------------------------------------------------


def test_a_moving_bar_extends_the_deadline_until_the_limit() -> None:
    world = World(replace(SETTINGS, deadlines={"weights": PhaseLimit(60, 600)}, restart=NO_JITTER))
    world.start()
    world.until(1)
    world.log(*LOADING)
    shard = 0
    while world.now < 580:
        world.until(world.now + 50)
        shard += 1
        world.log(f"Loading safetensors checkpoint shards:  {shard}% Completed | {shard}/100 [00:50<10:00, 50.0s/it]")
        assert world.state is State.STARTING
    world.until(602)
    assert "not done after" in world.facts_now.verdict.reason


def test_repeated_lines_and_bytes_are_no_progress() -> None:
    world = World(replace(SETTINGS, deadlines={"weights": PhaseLimit(60, 600)}))
    world.start()
    world.until(1)
    world.log(*LOADING)
    for _ in range(12):
        world.until(world.now + 5)
        world.log(STAMP.format(30, " TP0", "Using default MoE config. Performance might be sub-optimal!"))
        world.tell(e.LogGrew(1, 4096, 30))
    world.until(62)
    assert world.facts_now.verdict.value == "stalled"


def test_our_own_absence_is_not_taken_for_a_stall() -> None:
    """The daemon was stopped for a minute: what the server wrote meanwhile is read before anything is judged."""
    world = World(replace(SETTINGS, deadlines={"weights": PhaseLimit(60, 600)}))
    world.start()
    world.until(1)
    world.log(*LOADING)
    world.now = 100.0  # no tick in between
    world.tell(e.Ticked())
    assert world.state is State.STARTING
    world.log(*LOADED)
    world.until(130)
    assert world.state is State.STARTING


def test_after_our_own_absence_a_real_stall_is_still_found() -> None:
    world = World(replace(SETTINGS, deadlines={"weights": PhaseLimit(60, 600)}))
    world.start()
    world.until(1)
    world.log(*LOADING)
    world.now = 100.0
    world.tell(e.Ticked())
    world.until(106)
    assert world.facts_now.verdict.value == "stalled"


def test_evidence_that_never_comes_does_not_hold_up_the_kill() -> None:
    world = World(replace(SETTINGS, deadlines={"launch": PhaseLimit(30, 30)}))
    world.silent.add(a.KeepEvidence)
    world.ignores_term = True
    world.start()
    world.until(30 + 10 + 10 + 3 + 1)
    assert world.done(a.KillTree)


def test_the_engines_last_words_are_acted_upon_when_it_does_not_exit() -> None:
    """A port conflict shows after the whole load and then nothing ever happens; so does a dead detokenizer for 66 s."""
    world = healthy()
    world.log("[2026-11-29 10:10:00] SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
    assert world.facts_now.verdict.value == "dead"
    world.until(world.now + SETTINGS.fatal_grace_s + 5)
    assert world.done(a.KillTree)


# --- serving ---------------------------------------------------------------------------------------------------------


def test_one_failed_probe_of_a_serving_server_changes_nothing() -> None:
    world = healthy()
    world.health = e.ProbeOutcome.TIMEOUT
    world.until(world.now + 15)
    assert world.facts_now.readiness.value == "success"
    world.health = e.ProbeOutcome.OK
    world.until(world.now + 60)
    assert world.facts_now.verdict.value == "idle"


def test_a_busy_server_that_fails_its_probes_lives() -> None:
    world = healthy()
    world.log(READY)
    world.health = e.ProbeOutcome.TIMEOUT
    for minute in range(30):
        world.until(world.now + 60)
        world.log(
            f"[2026-11-29 10:{minute + 10}:00 TP0] Decode batch, #running-req: 9, #token: {minute}, token usage: 0.10,"
            " cuda graph: True, gen throughput (token/s): 88.00, #queue-req: 0"
        )
    assert world.state is State.RUNNING
    assert not world.done(a.KillTree)


def test_a_silent_server_that_fails_its_probes_for_long_is_stalled_and_replaced() -> None:
    world = healthy(World(replace(SETTINGS, restart=NO_JITTER)))
    world.health = e.ProbeOutcome.TIMEOUT
    since = world.now
    world.until(since + 60)
    assert world.facts_now.verdict.value == "degraded"
    world.until(since + 160)
    assert world.done(a.KeepEvidence)
    assert world.facts_now.attempt == 2


def test_a_scheduler_that_dies_under_a_living_leader_is_known_from_its_process() -> None:
    world = healthy()
    world.tell(e.RoleDied(1, 4711, "scheduler", "TP1"))
    assert world.facts_now.verdict.value == "dead"
    assert "scheduler TP1" in world.facts_now.verdict.reason


# --- stopping --------------------------------------------------------------------------------------------------------


def test_a_stop_drains_kills_the_rest_proves_it_empty_and_waits_for_the_memory() -> None:
    world = healthy()
    world.stop()
    assert world.state is State.DRAINING
    assert world.settle() is State.STOPPED
    assert world.path()[-4:] == ["draining", "stopping", "reclaiming", "stopped"]
    assert world.done(a.SignalTree) == [a.SignalTree(1, 15)]
    assert world.done(a.KillTree) == [a.KillTree(1)]  # also after a clean exit: children may be left


def test_a_drain_without_end_is_ended_by_the_grace_period() -> None:
    world = healthy()
    world.ignores_term = True
    begun = world.now
    world.stop()
    assert world.settle() is State.STOPPED
    assert world.when(a.KillTree)[0] == pytest.approx(begun + SETTINGS.stop.grace_s)


ASKING = replace(SETTINGS, stop=replace(SETTINGS.stop, evidence=True))


def test_a_stop_may_ask_for_the_evidence_of_what_outlives_its_grace() -> None:
    world = healthy(World(ASKING))
    world.ignores_term = True
    begun = world.now
    world.stop()
    assert world.settle() is State.STOPPED
    assert world.when(a.SignalTree) == [begun], "it has had its grace"
    (asked,), (killed,) = world.when(a.KeepEvidence), world.when(a.KillTree)
    assert asked == pytest.approx(begun + SETTINGS.stop.grace_s)
    assert asked < killed < asked + ASKING.evidence_limit_s


@pytest.mark.parametrize("silent", [False, True])
def test_evidence_holds_no_stop_back_for_long(silent: bool) -> None:
    """Nor does a leader that ends while it is kept."""
    world = healthy(World(ASKING))
    world.ignores_term = True
    begun = world.now
    world.silent = {a.KeepEvidence}
    world.stop()
    world.until(begun + SETTINGS.stop.grace_s + 0.1)
    assert world.done(a.KeepEvidence)
    assert not world.done(a.KillTree)
    if not silent:
        world.tell(e.Exited(1, 0))
        assert world.done(a.KillTree)
    assert world.settle() is State.STOPPED
    assert world.when(a.KillTree)[0] <= begun + SETTINGS.stop.grace_s + ASKING.evidence_limit_s + 10


def test_a_stop_that_ends_in_time_keeps_no_evidence() -> None:
    world = healthy(World(ASKING))
    world.stop()
    assert world.settle() is State.STOPPED
    assert not world.done(a.KeepEvidence)


def test_a_drain_may_take_longer_than_a_stop() -> None:
    world = healthy()
    world.ignores_term = True
    begun = world.now
    world.tell(e.StopRequested("test", grace_s=5000.0))
    assert world.state is State.DRAINING
    assert world.facts_now.lifecycle.reason == "drain of at most 5000 s asked by test"
    assert world.settle() is State.STOPPED
    assert world.when(a.KillTree)[0] == pytest.approx(begun + 5000)


@pytest.mark.parametrize(
    ("asked", "again", "kill_s"), [(5000.0, None, 100 + SETTINGS.stop.grace_s), (5000.0, 0.0, 100), (150.0, 400.0, 150)]
)
def test_a_drain_ends_by_the_earlier_of_two_requests(asked: float, again: float | None, kill_s: float) -> None:
    world = healthy()
    world.ignores_term = True
    begun = world.now
    world.tell(e.StopRequested("test", grace_s=asked))
    world.until(begun + 100)
    world.tell(e.StopRequested("test", grace_s=again))
    assert world.settle() is State.STOPPED
    assert world.when(a.KillTree)[0] == pytest.approx(begun + kill_s)


def test_a_drain_goes_on_under_the_next_daemon() -> None:
    world = healthy()
    world.ignores_term = True
    begun = world.now
    world.tell(e.StopRequested("test", grace_s=5000.0))
    world.until(begun + 100)
    world.daemon_dies(away_s=10.0)
    assert world.settle() is State.STOPPED
    assert world.when(a.KillTree)[-1] == pytest.approx(begun + 5000)


def test_a_stop_during_the_start_has_a_short_grace() -> None:
    world = World()
    world.ignores_term = True
    world.start()
    world.until(2)
    world.stop()
    world.settle()
    assert world.when(a.KillTree)[0] == pytest.approx(2 + SETTINGS.stop.startup_grace_s)


def test_a_stop_before_the_spawn_was_answered_still_ends_the_process() -> None:
    world = World()
    world.tell(e.StartRequested("x"))
    world.until(0.0101)
    assert world.done(a.Spawn)
    world.stop()
    assert world.settle() is State.STOPPED
    assert not world.trees


def test_a_stop_ends_a_process_whose_spawn_was_only_told_to_the_daemon_before() -> None:
    """The daemon is killed between the spawn and the news of it: the next one has the tree, and nobody's answer to await."""
    world = World()
    world.start()
    while not world.done(a.Spawn):
        world.until(world.now + 0.0001)
    assert world.facts_now.pid is None
    world.daemon_dies()
    assert world.trees
    world.stop()
    assert world.settle() is State.STOPPED
    assert not world.trees


def test_how_long_each_step_of_a_stop_took_is_kept() -> None:
    world = healthy()
    world.ignores_term = True
    world.dirty = LEFTOVER
    world.stop()
    world.until(world.now + SETTINGS.stop.grace_s + 2)
    world.dirty = None
    world.settle()
    stop = world.facts_now.stop
    assert stop is not None
    assert (stop.stage, stop.killed) == ("kill", 3)
    assert stop.kill_s == pytest.approx(SETTINGS.stop.grace_s)
    assert stop.exit_s == pytest.approx(SETTINGS.stop.grace_s + 0.02)
    assert stop.empty_s == pytest.approx(SETTINGS.stop.grace_s + 0.03)
    assert stop.free_s is not None
    assert SETTINGS.stop.grace_s + 2 < stop.free_s < SETTINGS.stop.grace_s + 4


def test_a_process_stuck_in_the_kernel_is_quarantined_and_never_called_stopped() -> None:
    world = healthy()
    world.unkillable = True
    world.stop()
    world.until(world.now + 3600)
    assert world.state is State.QUARANTINED
    assert "nv_wait" in world.facts_now.lifecycle.reason
    assert "pid 4242" in world.facts_now.lifecycle.reason
    assert "it blocks port 30000 and GPU 0, 1 until the kernel lets go" in world.facts_now.lifecycle.reason
    world.unkillable = False
    world.until(world.now + 120)
    assert world.state is State.STOPPED


def test_a_start_while_a_tree_is_stuck_does_not_make_a_second_one() -> None:
    world = healthy()
    world.unkillable = True
    world.stop()
    world.until(world.now + 30)
    world.start()
    world.until(world.now + 300)
    assert len(world.done(a.Spawn)) == 1
    world.unkillable = False
    world.until(world.now + 200)
    assert len(world.done(a.Spawn)) == 2


def test_a_restart_drains_and_starts_again_without_spending_the_budget() -> None:
    world = healthy()
    world.tell(e.RestartRequested("ann"))
    world.until(world.now + 3)
    assert world.facts_now.attempt == 2
    assert world.facts_now.budget_remaining == SETTINGS.restart.budget


def test_a_start_asked_during_a_stop_follows_it() -> None:
    world = healthy()
    world.stop()
    world.start()
    world.until(world.now + 3)
    assert world.facts_now.attempt == 2
    assert world.state in (State.STARTING, State.RUNNING)


def test_a_stop_asked_during_backoff_ends_it() -> None:
    world = World()
    world.start()
    world.until(1)
    world.tell(e.Exited(1, 1))
    world.until(2)
    assert world.state is State.BACKOFF
    world.stop()
    assert world.state is State.STOPPED
    assert world.server.deadline() is None


def test_a_start_asked_during_backoff_does_not_wait() -> None:
    world = World()
    world.start()
    world.until(1)
    world.tell(e.Exited(1, 1))
    world.until(1.5)
    assert world.state is State.BACKOFF
    world.start()
    world.until(1.6)
    assert world.facts_now.attempt == 2


# --- devices ---------------------------------------------------------------------------------------------------------

LEFTOVER = e.DevicesChecked(0, False, "GPU 0: 78 GiB still held", (e.Holder(0, 78 * 2**30, kind="unattributed"),))
OUT = e.DevicesChecked(0, False, "GPU 1 is quarantined: Xid 79", quarantined=(1,))
FOREIGN = e.DevicesChecked(
    0, False, "GPU 0: 20 GiB held by pid 99 (bob, python train.py)", (e.Holder(0, 20 * 2**30, 99, kind="foreign"),)
)


def test_memory_that_does_not_come_back_ends_in_quarantine_with_the_reason() -> None:
    world = healthy()
    world.dirty = LEFTOVER
    world.stop()
    assert world.settle() is State.QUARANTINED
    assert world.facts_now.lifecycle.reason == "not free after 78 s: GPU 0: 78 GiB still held"


def test_memory_that_comes_back_in_time_lets_the_restart_go_on() -> None:
    world = healthy()
    world.dirty = LEFTOVER
    world.tell(e.RestartRequested("ann"))
    world.until(world.now + 20)
    assert world.state is State.RECLAIMING
    world.dirty = None
    world.until(world.now + 6)
    assert world.facts_now.attempt == 2


def test_somebody_elses_memory_holds_a_start_back_without_spending_the_budget() -> None:
    world = World()
    world.dirty = FOREIGN
    world.start()
    world.until(7200)
    assert world.state is State.RECLAIMING
    assert "bob" in world.facts_now.lifecycle.reason
    assert world.facts_now.budget_remaining == SETTINGS.restart.budget
    world.dirty = None
    world.until(7210)
    assert world.state is State.STARTING


def test_who_is_in_the_way_of_a_start_is_an_event_once_for_each() -> None:
    world = World()
    world.dirty = FOREIGN
    world.start()
    world.until(600)
    world.dirty = replace(FOREIGN, reason="GPU 0: 21.5 GiB held by pid 99 (bob, python train.py)")
    world.until(1200)
    world.dirty = e.DevicesChecked(0, False, "port 30000 is held by pid 7 (ann): nginx", ports=("nginx",))
    world.until(1800)
    told = [one for _, one in world.did if isinstance(one, a.Announce) and one.facet == "start"]
    assert [one.reason.partition(";")[0] for one in told] == [
        FOREIGN.reason,
        "port 30000 is held by pid 7 (ann): nginx",
    ]
    assert all("without a limit: end what is in the way" in one.reason for one in told)
    world.stop()
    world.settle()
    world.start()
    world.until(world.now + 60)
    assert len([one for _, one in world.did if isinstance(one, a.Announce) and one.facet == "start"]) == 3


def test_somebody_elses_memory_does_not_hold_a_stop_back() -> None:
    world = healthy()
    world.dirty = FOREIGN
    world.stop()
    assert world.settle() is State.STOPPED


def test_a_start_that_the_policy_refuses_beside_foreign_memory_is_given_up_with_the_reason() -> None:
    world = World()
    world.dirty = replace(FOREIGN, refuse=True)
    world.start()
    assert world.settle() is State.FATAL
    assert "bob" in world.facts_now.lifecycle.reason
    assert world.facts_now.budget_remaining == SETTINGS.restart.budget


def test_a_refusal_does_not_hold_a_stop_back() -> None:
    world = healthy()
    world.dirty = replace(FOREIGN, refuse=True)
    world.stop()
    assert world.settle() is State.STOPPED


def test_the_first_look_at_the_devices_may_take_longer_than_a_servers_own_patience() -> None:
    world = World()
    world.dirty = e.DevicesChecked(0, False, "waiting for the first look at the GPUs", devices=(0, 1), waiting=True)
    world.start()
    world.until(SETTINGS.reclaim.own_limit_s * 3)
    assert world.state is State.RECLAIMING
    assert world.facts_now.lifecycle.reason == "waiting for the first look at the GPUs"
    world.dirty = LEFTOVER
    world.until(world.now + SETTINGS.reclaim.own_limit_s - 5)
    assert world.state is State.RECLAIMING, "the patience begins when something was seen"
    assert world.settle() is State.QUARANTINED


@pytest.mark.parametrize("obstacle", [replace(FOREIGN, refuse=True), OUT])
def test_who_has_removed_the_obstacle_starts_what_had_been_given_up(obstacle: e.DevicesChecked) -> None:
    world = World()
    world.dirty = obstacle
    world.start()
    assert world.settle() in (State.FATAL, State.QUARANTINED)
    world.dirty = None
    world.start()  # it was wanted up all the time
    world.until(world.now + 1)
    assert world.state is State.STARTING


def test_another_servers_memory_is_waited_for_without_end_before_a_start() -> None:
    world = World()
    world.dirty = e.DevicesChecked(0, False, "server glm holds 9 GB", (e.Holder(0, 9 * 2**30, 7, kind="server"),))
    world.start()
    world.until(3600)
    assert world.state is State.RECLAIMING


def test_a_quarantined_device_keeps_a_start_off_it() -> None:
    world = World()
    world.dirty = OUT
    world.start()
    assert world.settle() is State.QUARANTINED
    assert world.facts_now.lifecycle.reason == "GPU 1 is quarantined: Xid 79"
    assert not world.done(a.Spawn)


def test_a_device_put_out_of_use_meanwhile_whose_memory_is_not_back_ends_in_quarantine() -> None:
    world = healthy()
    world.dirty = replace(OUT, holders=LEFTOVER.holders)
    world.stop()
    assert world.settle() is State.QUARANTINED


def test_after_an_end_the_old_devices_are_proven_and_before_a_start_new_ones_are_asked_for() -> None:
    world = healthy(World(replace(SETTINGS, restart=NO_JITTER)))
    world.did.clear()
    world.tell(e.Exited(1, -11))
    world.until(world.now + 8)
    assert world.facts_now.attempt == 2
    assert [check.start for check in world.done(a.CheckDevices)] == [False, True]


def test_a_start_asked_while_the_end_is_being_proven_looks_again() -> None:
    world = healthy()
    world.did.clear()
    world.dirty = LEFTOVER
    world.stop()
    world.until(world.now + 3)
    assert world.state is State.RECLAIMING
    world.dirty = None
    world.start()
    world.until(world.now + 3)
    assert world.facts_now.attempt == 2
    assert [check.start for check in world.done(a.CheckDevices)][-1]


def test_a_blind_feed_does_not_hold_a_start_back_but_is_said() -> None:
    world = World()
    world.silent.add(a.CheckDevices)
    world.start()
    world.tell(e.DevicesChecked(0, None, "GPU feed is blind"))
    assert world.done(a.Spawn)
    assert "blind" in world.facts_now.lifecycle.reason


# --- crashes ---------------------------------------------------------------------------------------------------------


def test_a_crash_while_serving_is_restarted_with_backoff_and_its_evidence_kept() -> None:
    world = healthy(World(replace(SETTINGS, restart=NO_JITTER)))
    world.tell(e.Exited(1, -11))
    crashed = world.now
    world.until(crashed + 1)
    assert world.facts_now.verdict.value == "dead"
    assert "signal 11" in world.facts_now.verdict.reason
    world.until(crashed + 6)
    assert world.facts_now.attempt == 2
    assert world.done(a.KeepEvidence)
    assert world.when(a.Spawn)[-1] == pytest.approx(crashed + 5, abs=0.2)


def test_the_kernels_word_about_memory_outweighs_what_the_log_makes_of_it() -> None:
    world = World(replace(SETTINGS, restart=NO_JITTER))
    world.start()
    world.until(1)
    world.log(*LOADING)
    world.tell(e.HostOomKilled(1, 4711, "python", "kernel log"))
    world.tell(e.HostOomKilled(1, source="memory.events of its cgroup"))
    world.tell(e.Exited(1, 1))
    world.until(2)
    diagnosis = world.facts_now.diagnosis
    assert diagnosis is not None
    assert diagnosis.cause == "host-oom-killed"
    assert diagnosis.evidence == "the kernel's OOM killer ended pid 4711 (python): kernel log"


def test_a_helper_that_the_kernel_killed_long_ago_did_not_end_the_server() -> None:
    world = healthy()
    world.tell(e.HostOomKilled(1, 4711, "nvcc", "kernel log"))
    world.until(world.now + 3600)
    world.tell(e.Exited(1, -11))
    world.until(world.now + 1)
    assert world.facts_now.diagnosis is not None
    assert world.facts_now.diagnosis.cause == "native-crash"


def test_events_of_an_attempt_that_is_over_change_nothing() -> None:
    world = healthy()
    world.tell(e.RestartRequested("ann"))
    world.until(world.now + 3)
    before = world.facts_now
    for late in (e.Exited(1, 0), e.TreeEmptied(1), e.Probed(1, e.ProbeOutcome.OK), e.TreeStuck(1, ())):
        assert world.server.handle(late, world.now) == []
    assert world.facts_now.lifecycle == before.lifecycle


def test_the_same_story_gives_the_same_actions() -> None:
    first = healthy()
    first.tell(e.Exited(1, -11))
    first.until(100)
    second = World()
    for at, event, out in first.history:
        assert second.server.handle(event, at) == out


def test_our_own_kill_is_not_taken_for_the_kernels() -> None:
    """−9 after a stall is ours: it must not be read as an OOM kill that no restart mends."""
    world = World(replace(SETTINGS, deadlines={"weights": PhaseLimit(60, 600)}, restart=NO_JITTER))
    world.ignores_term = True
    world.start()
    world.until(1)
    world.log(*LOADING)
    world.until(100)
    assert world.facts_now.attempt == 2
    world.until(101)
    kept = [snapshot for _, snapshot in world.diagnoses if snapshot is not None]
    assert kept
    assert {diagnosis.cause for diagnosis in kept}.isdisjoint({"host-oom-killed", "external-termination"})


def test_what_happened_is_still_told_after_the_next_start() -> None:
    world = World(replace(SETTINGS, deadlines={"weights": PhaseLimit(60, 600)}, restart=NO_JITTER))
    world.start()
    world.until(1)
    world.log(*LOADING)
    world.until(100)
    assert world.facts_now.attempt == 2
    (incident,) = world.facts_now.incidents
    assert (incident.attempt, incident.phase, incident.evidence_path) == (1, "weights", "/evidence/1")
    assert "stalled in weights" in incident.reason
    assert incident.decision.startswith("backoff: ")
    assert incident.diagnosis is not None
    assert incident.stop is not None
    assert incident.stop.empty_s is not None


def test_only_the_newest_incidents_are_kept() -> None:
    world = World(replace(SETTINGS, restart=RestartSettings(budget=99, same_cause_limit=99, backoff_s=1, jitter=0.0)))
    world.start()
    for _ in range(15):
        world.until(world.now + 400)
        if world.facts_now.attempt in world.leaders:
            world.tell(e.Exited(world.facts_now.attempt, 1))
    told = [incident.attempt for incident in world.facts_now.incidents]
    assert told == list(range(told[-1] - 9, told[-1] + 1))
    assert told[-1] >= world.facts_now.attempt - 1 > 10


def test_evidence_of_a_crash_that_comes_after_the_next_start_finds_its_incident() -> None:
    world = healthy(World(replace(SETTINGS, restart=RestartSettings(backoff_s=0.0, jitter=0.0))))
    world.silent.add(a.KeepEvidence)
    world.tell(e.Exited(1, -11))
    world.until(world.now + 1)
    assert world.facts_now.attempt == 2
    world.tell(e.EvidenceKept(1, "/evidence/late"))
    assert world.facts_now.incidents[0].evidence_path == "/evidence/late"
    assert world.facts_now.evidence_path == ""


@pytest.mark.parametrize("ran", [True, False])
def test_a_record_of_another_attempt_is_no_part_of_the_adopted_ones_story(*, ran: bool) -> None:
    world = World()
    if ran:
        world.start()
        world.until(1)
        world.log(*LOADING)
        world.daemon_dies(1.0)
    before = world.facts_now
    records = LogReader(world.profile, 7).read(LineCutter().feed("".join(f"{line}\n" for line in CAPTURING).encode()))
    assert records
    for record in records:
        world.server.recall(record, world.now)
    assert world.facts_now == before


def test_of_two_moments_that_come_at_once_the_second_is_dropped_when_the_first_ends_the_attempt() -> None:
    """A stall whose probe was due in the same tick must still keep its evidence first."""
    world = World(replace(SETTINGS, deadlines={"launch": PhaseLimit(30, 30)}))
    world.silent.add(a.Probe)
    world.start()
    world.until(29)
    world.now = 31.9  # both the phase's end and a later moment have passed
    world.tell(e.Ticked())
    kinds = [type(action) for at, action in world.did if at > 29 and not isinstance(action, a.Announce)]
    assert kinds == [a.KeepEvidence]


@pytest.mark.parametrize(
    ("wanted_up", "wait_s", "state"),
    [(False, 30, "reclaiming"), (False, 200, "quarantined"), (True, 200, "reclaiming")],
)
def test_looks_that_get_lost_after_a_dirty_one_are_waited_for(wanted_up: bool, wait_s: float, state: str) -> None:
    """At rest as long as the patience lasts; for a start without an end: somebody may still be there."""
    world = World()
    world.dirty = FOREIGN if wanted_up else LEFTOVER
    world.start()
    if not wanted_up:
        world.dirty = None
        world.until(5)
        world.dirty = LEFTOVER
        world.stop()
    world.until(world.now + 12)
    assert world.state is State.RECLAIMING
    world.silent.add(a.CheckDevices)
    world.until(world.now + wait_s)
    assert world.state.value == state


def test_looks_that_are_never_answered_hold_no_start_back() -> None:
    world = World()
    world.silent.add(a.CheckDevices)
    world.start()
    world.until(9)
    assert world.state is State.RECLAIMING
    world.until(11)
    assert world.when(a.Spawn) == [pytest.approx(10.0, abs=0.1)]
    assert "nobody could tell whether the devices are free" in world.facts_now.lifecycle.reason
