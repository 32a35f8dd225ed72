"""A start of the fake engine: its process tree, its port and its ways to fail, seen from outside."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

import pytest

STALL_IN_CAPTURE = ("--scenario", "stall:phase=target-graph,rank=TP1,after=50%")
DIALECTS = ("0.5.3", "0.5.9", "0.5.23")
READY = b"The server is fired up and ready to roll!"
CAPTURING = b"apture"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_start_becomes_ready_and_its_tree_looks_like_the_real_one(start, dialect):
    engine = start("--tp", "2", "--dialect", dialect)
    engine.until(READY)
    tree = engine.tree()
    root = next(process for process in tree if process.pid == engine.process.pid)
    children = [process for process in tree if process is not root]
    assert "supervisor.simulator" in root.command  # the launcher is never retitled
    assert [child.command for child in children if "resource_tracker" not in child.command] == [
        "sglang::scheduler_TP0",
        "sglang::scheduler_TP1",
        "sglang::detokenizer",
    ]
    assert sum("resource_tracker" in child.command for child in children) == 1
    assert {(process.parent, process.group, process.session) for process in children} == {(root.pid,) * 3}
    assert {child.comm for child in children} >= {"sglang::schedul", "sglang::detoken"}


def test_one_rank_has_neither_prefix_nor_suffix(start):
    engine = start("--tp", "1")
    log = engine.until(READY)
    assert engine.child("sglang::scheduler")
    assert b"TP0]" not in log
    assert b"] Load weight begin." in log


def test_children_hide_behind_multiprocessing_until_their_imports_are_over(start):
    room = "/models/a-name-that-leaves-room-for-the-command-line-of-a-spawned-interpreter-in-the-argument-memory"
    engine = start("--tp", "1", "--model-path", room, "--phase-seconds", "import=100000")
    engine.until(b"chat template")
    while len(young := [process.command for process in engine.tree() if "spawn_main" in process.command]) < 2:
        engine.read(0.05)  # a child is renamed a moment after its fork; the test's own time limit bounds this
    assert all("--multiprocessing-fork" in command for command in young)


def test_data_parallel_schedulers_are_the_controllers_children(start):
    engine = start("--dp", "2", "--tp", "1")
    log = engine.until(READY)
    controller = engine.child("sglang::data_parallel_controller")
    assert {process.command for process in engine.tree() if process.parent == controller} == {
        "sglang::scheduler_DP0",
        "sglang::scheduler_DP1",
    }
    assert b"Launch DP1 starting at GPU #1." in log
    assert log.count(b"max_total_num_tokens=") == 2


def test_the_port_is_refused_until_all_ranks_are_ready(start):
    engine = start("--tp", "2", *STALL_IN_CAPTURE)
    engine.until(CAPTURING)
    assert engine.refuses()
    assert engine.falls_silent()
    assert engine.refuses()
    assert engine.process.poll() is None


def test_a_stopped_rank_stops_its_peers_and_goes_on_when_continued(start):
    engine = start("--tp", "2", "--phase-seconds", "weights=400")
    engine.until(b"Load weight begin")
    stopped = engine.child("sglang::scheduler_TP1")
    os.kill(stopped, signal.SIGSTOP)
    engine.until(b"TP0] Load weight end")
    assert engine.falls_silent()
    os.kill(stopped, signal.SIGCONT)
    engine.until(READY)


def test_a_silent_stall_burns_no_cpu(start):
    engine = start("--tp", "2", "--scenario", "stall:phase=weights,after=10%")
    engine.until(b"Load weight begin")
    engine.falls_silent()
    schedulers = [process.pid for process in engine.tree() if "scheduler" in process.command]
    before = sum(map(cpu_ticks, schedulers))
    engine.read(1.0)
    assert sum(map(cpu_ticks, schedulers)) == before


def test_a_busy_stall_burns_cpu(start):
    engine = start("--tp", "1", "--scenario", "stall:phase=weights,after=10%,busy=1")
    engine.until(b"Load weight begin")
    scheduler = engine.child("sglang::scheduler")
    end = time.monotonic() + 30
    while cpu_ticks(scheduler) < 40:  # a quarter of a second and more: a start costs a scheduler far less
        assert time.monotonic() < end
        engine.read(0.1)
    assert engine.silent_for(0.2)


def cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_exception_in_a_scheduler_ends_the_launcher_with_sigkill(start, dialect):
    engine = start(
        "--tp", "2", "--dialect", dialect, "--scenario", "crash:phase=weights,rank=TP1,cause=gpu-oom-weights"
    )
    assert engine.ended() == -signal.SIGKILL
    assert b"TP1] Scheduler hit an exception: Traceback" in engine.log
    assert b"torch.OutOfMemoryError: CUDA out of memory" in engine.log
    assert b"Received sigquit from a child process. It usually means the child failed." in engine.log
    assert engine.gone()


def test_a_rank_killed_while_loading_is_found_by_number_from_0_5_10_on(start):
    engine = start("--tp", "2", "--dialect", "0.5.23", "--scenario", "oom-kill:phase=weights,rank=TP1")
    assert engine.ended() == 1
    assert b"RuntimeError: Rank 1 scheduler died during initialization (exit code: -9)" in engine.log
    assert engine.gone()


def test_up_to_0_5_9_only_rank_0s_death_is_noticed_while_loading(start):
    engine = start("--tp", "2", "--dialect", "0.5.9", "--scenario", "oom-kill:phase=weights,rank=TP0")
    assert engine.ended() == 1
    assert b"Rank 0 scheduler is dead. Please check if there are relevant logs." in engine.log
    assert b"Exit code: -9" in engine.log
    forgotten = start("--tp", "2", "--dialect", "0.5.9", "--scenario", "oom-kill:phase=weights,rank=TP1")
    forgotten.until(b"TP0] Load weight end")
    assert forgotten.falls_silent(1.0)
    assert forgotten.process.poll() is None


def test_a_native_crash_says_what_python_says_and_sends_nothing(start):
    engine = start("--tp", "1", "--dialect", "0.5.23", "--scenario", "crash:phase=target-graph,cause=native-crash")
    assert engine.ended() == 1
    assert b"Fatal Python error: Segmentation fault" in engine.log
    assert b"(exit code: -11)" in engine.log
    assert b"hit an exception" not in engine.log


@pytest.mark.parametrize(
    ("scenario", "status", "last"),
    [
        ("crash:cause=model-path-missing", 1, b"OSError: Repo id must be in the form"),
        ("exit-on-config", 2, b"error: argument --tp-size"),
    ],
)
@pytest.mark.parametrize("dialect", ["0.5.9", "0.5.23"])
def test_the_launcher_itself_can_fail(start, scenario, status, last, dialect):
    engine = start("--scenario", scenario, "--dialect", dialect)
    assert engine.ended() == status
    assert last in engine.log.splitlines()[-1]


def test_sigterm_in_the_import_window_leaves_orphans(start):
    engine = start("--tp", "2", "--phase-seconds", "import=600")
    engine.until(b"chat template")
    engine.process.send_signal(signal.SIGTERM)
    assert engine.ended() == -signal.SIGTERM
    orphans = [process for process in engine.tree() if "spawn_main" in process.command]
    assert len(orphans) == 3  # two schedulers and the detokenizer
    assert b"SIGTERM" not in engine.log
    # They go on to load, find nobody to report to, and end; the SIGQUIT to the adoptive parent is off by default.
    engine.until(b"BrokenPipeError", patience_s=40.0)


def test_sigterm_after_the_imports_takes_the_children_along(start):
    engine = start("--tp", "2", "--scenario", "stall:phase=weights")
    engine.until(b"Load weight begin")
    engine.process.send_signal(signal.SIGTERM)
    assert engine.ended() == -signal.SIGTERM
    assert engine.gone()


def test_once_spoils_the_first_start_only(start, tmp_path):
    once = tmp_path / "spoilt"
    scenario = ("--tp", "1", "--scenario", f"crash:phase=weights,cause=checkpoint-corrupt,once={once}")
    assert start(*scenario).ended() == -signal.SIGKILL
    assert once.exists()
    start(*scenario).until(READY)


def test_the_environment_gives_the_defaults(start):
    engine = start(
        SGLSUP_SIM_SCENARIO="stall:phase=weights,after=0%;slow:phase=dist-init,factor=2", SGLSUP_SIM_DIALECT="0.5.23"
    )
    log = engine.until(b"Memory baseline taken")
    assert b"Init parallel begin." in log
    assert engine.falls_silent()


def test_a_scenario_that_cannot_happen_is_refused(start):
    engine = start("--scenario", "stall:phase=verify-graph")
    assert engine.ended() == 2
    assert b"cannot play phase 'verify-graph': this run has" in engine.log


def test_orphans_survive_the_sweep_of_the_tree(start):
    engine = start("--tp", "1", "--scenario", "orphans:count=2,life=60s", "--dialect", "0.5.23")
    engine.until(READY)
    escaped = [process for process in engine.tree() if process.session not in (engine.process.pid,)]
    assert len(escaped) == 2
    engine.process.send_signal(signal.SIGINT)
    assert engine.ended() == 0
    for process in escaped:
        os.kill(process.pid, signal.SIGTERM)  # ignored
    assert {process.pid for process in engine.tree()} == {process.pid for process in escaped}


def test_an_orphan_does_not_hide_the_death_of_a_rank(start):
    engine = start("--tp", "2", "--dialect", "0.5.9", "--scenario", "orphans:count=1,life=60s")
    engine.until(READY)
    os.kill(engine.child("sglang::scheduler_TP1"), signal.SIGKILL)
    assert engine.ended() == -signal.SIGKILL
    assert [process.command for process in engine.tree()] == ["sglang::compile_worker"]


def test_a_flood_fills_the_log(start):
    engine = start("--tp", "1", "--scenario", "flood:mb=5,phase=weights")
    engine.until(READY, patience_s=30.0)
    assert len(engine.log) > 5_000_000


def test_ranks_tell_how_much_gpu_memory_they_hold(start, tmp_path):
    engine = start("--tp", "2", "--gpu-dir", str(tmp_path), "--base-gpu-id", "4")
    engine.until(READY)
    files = sorted(tmp_path.glob("[0-9]*"))
    assert [int(path.name) for path in files] == [
        engine.child("sglang::scheduler_TP0"),
        engine.child("sglang::scheduler_TP1"),
    ]
    assert [path.read_text()[:14] for path in files] == ['{"device": 4, ', '{"device": 5, ']


def test_help_costs_less_than_a_tenth_of_a_second_of_cpu():
    assert min(cpu_of_help() for _ in range(5)) < 0.1


def cpu_of_help() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "supervisor.simulator", "--help"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_nothing_but_the_standard_library_is_imported():
    code = "import sys, supervisor.simulator.launcher, supervisor.simulator.render; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-S", "-c", code], check=True, capture_output=True, text=True)
    tops = {name.partition(".")[0] for name in run.stdout.split()}
    assert tops - set(sys.stdlib_module_names) <= {"supervisor", "__main__", "sitecustomize"}


def test_an_idle_engine_sleeps(start):
    engine = start("--tp", "2", "--dialect", "0.5.9")
    engine.until(READY)
    pids = [process.pid for process in engine.tree()]
    before = sum(cpu_ticks(pid) for pid in pids)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        engine.read(end - time.monotonic())
    assert sum(cpu_ticks(pid) for pid in pids) - before <= 3


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_live_start_prints_what_render_prints(start, dialect):
    arguments = ["--tp", "2", "--dialect", dialect, "--shards", "4", "--speculative-algorithm", "EAGLE3"]
    engine = start(*arguments)
    live = engine.until(READY)
    command = [sys.executable, "-m", "supervisor.simulator", "render", "--port", str(engine.port), *arguments]
    rendered = subprocess.run(command, check=True, capture_output=True).stdout
    for prefix in (" TP0", " TP1", ""):
        assert messages(live, prefix) == messages(rendered, prefix)


def messages(log: bytes, prefix: str) -> list[bytes]:
    """Records of one process in its order, without clock, pid and client port."""
    found = re.findall(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d" + prefix.encode() + rb"\] ([^\r\n]*)", log)
    records = [re.split(rb"\[\d{4}-", message)[0] for message in found]
    return [re.sub(rb"process \[\d+\]|:503\d\d ", b"", record) for record in records]


def test_a_rank_that_stalls_in_the_load_holds_its_weights(start, tmp_path):
    engine = start("--tp", "1", "--gpu-dir", str(tmp_path), "--scenario", "stall:phase=weights,after=10%")
    engine.until(b"Load weight begin")
    (path,) = tmp_path.glob("[0-9]*")
    assert json.loads(path.read_text())["bytes"] > 20 << 30
