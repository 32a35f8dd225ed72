"""Verdicts: what counts as an end, what was outlived, silence, several starts in one file, text that lies."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor import events as e
from supervisor.core.diagnose import CauseFinder
from supervisor.core.log.grammar import LogReader
from supervisor.core.log.stamps import like, seconds, text
from supervisor.core.report import page
from supervisor.core.story import LogStory, Outcome, Verdict
from supervisor.lines import LineCutter
from supervisor.profile import load_profile
from supervisor.simulator.options import Options
from supervisor.simulator.render import render
from supervisor.simulator.scenario import parse_scenario
from supervisor.snapshot import DiagnosisView
from supervisor.units import format_duration
from tests.core.world import World

PROFILE = load_profile("sglang")
READY = "[2026-03-01 10:00:00] The server is fired up and ready to roll!\n"


def tell(log: str | bytes, now: str = "", exit_code: int | None = None) -> Outcome:
    story = LogStory(PROFILE)
    story.read(LineCutter().feed((log.encode() if isinstance(log, str) else log) + b"\n"))
    return story.conclude(seconds(now) if now else None, exit_code)


def rendered(**options: object) -> bytes:
    return b"".join(write.data for write in render(Options(**options)))


def decode(minute: int, running: int = 4) -> str:
    return f"[2026-03-01 10:{minute:02}:00 TP0] Decode batch, #running-req: {running}, #token: 7, token usage: 0.01\n"


CRASHES = [
    "gpu-oom-weights", "gpu-oom-kv-pool", "gpu-oom-graph-capture", "gpu-oom-runtime", "gpu-memory-occupied",
    "host-oom-killed", "host-memory-insufficient", "shm-too-small", "host-limits", "disk-or-cache-unwritable",
    "dist-init-peer-missing", "nccl-init-failure", "nccl-collective-timeout", "peer-rank-death", "port-in-use",
    "model-path-missing", "model-auth-gated", "checkpoint-corrupt", "model-arch-unsupported", "parallelism-invalid",
    "quantization-mismatch", "spec-decode-config", "server-args-invalid", "tokenizer-or-template-error",
    "gpu-arch-unsupported", "driver-or-dependency-mismatch", "jit-compile-failure", "gpu-hardware-fault",
]  # fmt: skip


@pytest.mark.parametrize("dialect", ["0.5.3", "0.5.9", "0.5.23"])
@pytest.mark.parametrize("cause", CRASHES)
def test_the_fake_engines_crashes_are_told_in_every_generation(cause: str, dialect: str) -> None:
    outcome = tell(rendered(dialect=dialect, tp=2, scenarios=(parse_scenario(f"crash:cause={cause}"),)))
    assert (outcome.verdict, outcome.diagnosis.cause) == (Verdict.CRASHED, cause)
    assert outcome.diagnosis.restart != "yes" or outcome.stage == "serving"


@pytest.mark.parametrize("cause", ["nccl-init-hang", "jit-compile-stall"])
def test_a_hang_is_told_by_the_last_words_before_it(cause: str) -> None:
    phase = "dist-init" if cause == "nccl-init-hang" else "target-graph"
    log = rendered(dialect="0.5.9", tp=2, scenarios=(parse_scenario(f"crash:cause={cause},phase={phase}"),))
    assert tell(log).verdict is Verdict.WARMING
    outcome = tell(log, now="2025-11-29 20:00:00")
    assert (outcome.verdict, outcome.diagnosis.cause, outcome.diagnosis.restart) == (Verdict.STALLED, cause, "maybe")


def test_without_a_now_silence_proves_nothing() -> None:
    log = "[2026-03-01 10:00:00 TP0] Init torch distributed begin.\n"
    assert tell(log).verdict is Verdict.WARMING
    assert tell(log, now="2026-03-01 10:01:00").verdict is Verdict.WARMING
    stalled = tell(log, now="2026-03-01 12:00:00")
    assert (stalled.verdict, stalled.silent_s) == (Verdict.STALLED, 7200.0)


def test_an_idle_server_is_not_stalled_and_one_with_requests_is() -> None:
    assert tell(READY, now="2026-03-01 23:00:00").verdict is Verdict.READY
    assert tell(READY + decode(1, running=9), now="2026-03-01 23:00:00").verdict is Verdict.STALLED


def test_a_batch_that_was_begun_and_never_ended_is_a_stall() -> None:
    begun = "[2026-03-01 10:05:00 TP0] Prefill batch. #new-seq: 1, #new-token: 77, #cached-token: 0, #running-req: 0, #queue-req: 0\n"
    assert tell(READY + begun, now="2026-03-01 23:00:00").verdict is Verdict.STALLED
    assert tell(READY + begun + decode(6, running=1), now="2026-03-01 23:00:00").verdict is Verdict.READY


def test_a_full_pool_with_requests_waiting_is_degraded() -> None:
    full = "[2026-03-01 10:05:00 TP0] Decode batch, #running-req: 60, #token: 7, token usage: {}, #queue-req: {}\n"
    outcome = tell(READY + full.format("1.00", 20))
    assert (outcome.verdict, outcome.diagnosis.cause, outcome.diagnosis.restart) == (
        Verdict.DEGRADED,
        "kv-pool-exhausted",
        "no",
    )
    assert tell(READY + full.format("1.00", 0)).verdict is Verdict.READY
    assert tell(READY + full.format("0.80", 20)).verdict is Verdict.READY


@pytest.mark.parametrize(
    ("line", "stage", "cause"),
    [
        (
            "model-00001-of-00163.safetensors:  12%|█▏        | 512M/4.30G [00:30<03:40, 17.2MB/s]",
            "weights",
            "slow-weight-load",
        ),
        ("AUTOTUNE mm(1x4096, 4096x14336)", "graph-capture", "slow-jit-warmup"),
        ("node1:77:99 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>", "dist-init", "healthy"),
        (
            "[2026-03-01 10:00:00 TP0] Setup Custom allreduce failed with CUDART error: peer access is not supported",
            "dist-init",
            "healthy",
        ),
        ("[2026-03-01 10:00:00 TP0] Running FlashInfer autotune...", "graph-capture", "slow-jit-warmup"),
    ],
)
def test_scraps_of_a_slow_start(line: str, stage: str, cause: str) -> None:
    outcome = tell(line)
    assert (outcome.verdict, outcome.stage, outcome.diagnosis.cause) == (Verdict.WARMING, stage, cause)


def test_an_end_that_was_outlived_was_none() -> None:
    trouble = 'Traceback (most recent call last):\n  File "/x/handler.py", line 1, in f\n    g()\nValueError: no\n'
    assert tell(READY + decode(1) + trouble).verdict is Verdict.CRASHED
    assert tell(READY + decode(1) + trouble + decode(5)).verdict is Verdict.READY
    early = "[2026-03-01 09:00:00] ImportError: cannot import name 'x' from 'transformers'\n"
    assert tell(early + READY + decode(2)).verdict is Verdict.READY


def test_the_engines_own_word_of_its_end_stands() -> None:
    said = "[2026-03-01 10:01:00] Received sigquit from a child process. It usually means the child failed.\n"
    assert tell(READY + said + decode(5)).verdict is Verdict.CRASHED


def test_the_culprit_counts_and_not_its_victims() -> None:
    log = (
        "[2026-03-01 10:00:00] Received sigquit from a child process. It usually means the child failed.\n"
        "[2026-03-01 10:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:1\n"
        "[2026-03-01 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/sglang/srt/model_executor/model_runner.py", line 1, in load_model\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        "Killed\n"
    )
    outcome = tell(log)
    assert (outcome.diagnosis.cause, outcome.stage, outcome.diagnosis.evidence_line) == (
        "gpu-oom-weights",
        "weights",
        6,
    )


def test_remedies_carry_the_logs_numbers() -> None:
    log = (
        "[2026-03-01 10:00:00] server_args=ServerArgs(model_path='/m', mem_fraction_static=0.9, tp_size=2)\n"
        "[2026-03-01 10:00:01 TP0] Load weight begin. avail mem=78.50 GB\n"
        "[2026-03-01 10:00:09 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 80.00 GiB of which 1.00 GiB is free.\n"
    )
    remedy = tell(log).diagnosis.remedy
    assert "lower --mem-fraction-static to 0.86" in remedy
    context = (
        "ValueError: Warning: Target model's context_length (32768) is greater than the derived context_length (8192)."
    )
    assert "--context-length 8192" in tell(context).diagnosis.remedy
    taken = "[2026-03-01 10:00:01 TP0] Load weight begin. avail mem=7.00 GB\n" + log.splitlines(keepends=True)[2]
    occupied = tell(
        taken
        + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB"
    )
    assert (occupied.diagnosis.cause, occupied.diagnosis.restart) == ("gpu-memory-occupied", "maybe")
    assert "7.0 GB of 80.00 GiB" in occupied.diagnosis.remedy


def test_the_last_of_several_starts_in_one_file_counts() -> None:
    first = rendered(dialect="0.5.9", tp=2, scenarios=(parse_scenario("crash:cause=checkpoint-corrupt"),))
    second = rendered(dialect="0.5.9", tp=2)
    outcome = tell(first + second)
    assert (outcome.verdict, outcome.attempts) == (Verdict.READY, 2)
    assert tell(second + first).diagnosis.cause == "checkpoint-corrupt"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (-9, "host-oom-killed"),
        (137, "host-oom-killed"),
        (-11, "native-crash"),
        (143, "external-termination"),
        (-3, "insufficient-evidence"),
    ],
)
def test_an_exit_code_tells_what_no_line_does(code: int, cause: str) -> None:
    outcome = tell("[2026-03-01 10:00:00 TP0] Load weight begin. avail mem=78.50 GB\n", exit_code=code)
    assert (outcome.verdict, outcome.diagnosis.cause, outcome.stage) == (Verdict.CRASHED, cause, "weights")


def test_a_kill_after_the_engines_own_word_is_no_oom_kill() -> None:
    said = "[2026-03-01 10:01:00] Received sigquit from a child process. It usually means the child failed.\nKilled\n"
    assert tell(READY + said, exit_code=-9).diagnosis.cause == "insufficient-evidence"


def test_watchdogs_of_one_group_at_once_are_a_collective() -> None:
    one = "[2026-03-01 10:09:00 TP0] Watchdog timeout (self.watchdog_timeout=300)\n"
    two = "[2026-03-01 10:09:01 TP1] Watchdog timeout (self.watchdog_timeout=300)\n"
    assert tell(READY + one).diagnosis.cause == "scheduler-hang"
    assert tell(READY + one + two).diagnosis.cause == "nccl-collective-timeout"


def test_health_checks_that_fail_again_and_again_are_a_hang() -> None:
    failed = "[2026-03-01 10:0{}:00] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.\n"
    assert tell(READY + failed.format(1)).diagnosis.cause == "health-probe-misread"
    outcome = tell(READY + "".join(failed.format(n) for n in range(1, 6)))
    assert (outcome.verdict, outcome.diagnosis.cause) == (Verdict.STALLED, "scheduler-hang")


@pytest.mark.parametrize("hours", [["23:59:00", "00:01:00"], ["10:00:00", "09:00:00"]])
def test_a_clock_that_jumps_back_harms_nothing(hours: list[str]) -> None:
    log = f"[{hours[0]}] Load weight begin.\n[{hours[1]} TP0] Load weight end. type=X\n"
    assert tell(log).verdict is Verdict.WARMING
    assert all((span.end or span.begin) >= span.begin for span in tell(log).view.timeline)


class TestCauseFinder:
    """What the daemon asks of it live."""

    @staticmethod
    def conclude(
        log: str, code: int | None = None, alive: bool = False, stage: str = "weights", signals: tuple[int, ...] = ()
    ) -> DiagnosisView:
        finder, reader = CauseFinder(PROFILE), LogReader(PROFILE, 1)
        for match in reader.read(LineCutter().feed(log.encode() + b"\n")) + reader.finish():
            finder.observe(match, stage)
        return finder.conclude(code, frozenset(signals), alive=alive, stage=stage)

    def test_our_own_signal_explains_an_end_without_words(self) -> None:
        assert self.conclude("", code=-9, signals=(15, 9)).cause == "external-termination"

    def test_a_stall_has_the_cause_of_its_stage_and_may_be_tried_again(self) -> None:
        stalled = self.conclude("", alive=True, stage="dist-init")
        assert (stalled.cause, stalled.restart) == ("nccl-init-hang", "maybe")
        assert self.conclude("", alive=True, stage="weights").restart == "maybe"
        assert self.conclude("", alive=True, stage="serving").restart == "yes"

    def test_a_configuration_error_is_never_restarted(self) -> None:
        found = self.conclude(
            "ValueError: Weight output_partition_size = 8 is not divisible by weight quantization block_n = 128."
        )
        assert (found.cause, found.restart, found.evidence_line) == ("parallelism-invalid", "no", 1)

    def test_nothing_known_is_said_so(self) -> None:
        found = self.conclude("", code=1)
        assert (found.cause, found.restart) == ("insufficient-evidence", "maybe")
        assert found.confidence < 0.2


def test_stamps_of_every_form() -> None:
    assert seconds("2026-03-01 10:00:01") - seconds("2026-02-28 10:00:00") == 86401
    assert seconds("2024-03-01 00:00:00") - seconds("2024-02-28 00:00:00") == 2 * 86400
    assert seconds("10:00:01.250") - seconds("10:00:00") == 1.25
    assert (seconds(""), seconds("2026-13-41 99")) == (0.0, 0.0)
    for stamp in ("2026-02-28 23:59:59", "02-29 12:00:00", "07:08:09"):
        assert text(seconds(stamp), stamp) == stamp
    assert like("2026-03-01 10:00:00", "02-22 14:00:26") == "03-01 10:00:00"
    assert like("2026-03-01 10:00:00", "14:00:26").strip() == "10:00:00"


SCRAPS = [
    b"[2026-03-01 10:00:00 TP0] ",
    b"[2026-03-01 09:00:00] ",
    b"\n[2026-03-01 10:00:01 TP0] Load weight begin. avail mem=78.50 GB\n",
    b"\n[2026-03-01 10:00:09 TP1] Load weight end. type=X, dtype=torch.bfloat16, avail mem=70.00 GB\n",
    b"\n[2026-03-01 10:00:02 TP0] Scheduler hit an exception: Traceback (most recent call last):\n",
    b'  File "/x/a.py", line 1, in load_model\n',
    b"\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    b"\rLoading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.0s/it]",
    b"The server is fired up and ready to roll!\n",
    b"SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n",
    b"\nKilled\n",
    b"\n",
]
SIGQUIT = b"\n[2026-03-01 10:00:41] SIGQUIT received. signum=None, frame=None. It usually means one child failed."


@given(st.lists(st.one_of(st.sampled_from(SCRAPS), st.binary(max_size=60)), max_size=40), st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_no_bytes_break_the_story(parts: list[bytes], ended: int) -> None:
    """Whatever stands around it, the engine's own word of its end is found, and the story stays in order."""
    outcome = tell(b"".join([*parts[:ended], SIGQUIT, b"\n", *parts[ended:]]))
    assert outcome.verdict is Verdict.CRASHED
    assert PROFILE.cause(outcome.diagnosis.cause) is not None
    assert outcome.stage in PROFILE.stages
    assert all((span.end or span.begin) >= span.begin for span in outcome.view.timeline)
    assert tell(b"".join(parts)).stage in PROFILE.stages


# --- silence that nobody judges, and what `why` says of the same log -------------------------------------------------

HUNG = "[2026-03-01 10:00:00 TP0] Init torch distributed begin.\n"


def paper(outcome: Outcome) -> str:
    return page(outcome, "sglang", "start.log", 1, 160, colour=False)


def test_a_start_of_which_nothing_is_known_is_not_called_healthy() -> None:
    outcome = tell(HUNG)
    assert "Silence is judged only with --now" in outcome.diagnosis.remedy
    assert "healthy" not in paper(outcome)
    assert "Nothing to do" not in paper(outcome)
    assert "not judged without --now" in paper(outcome)


def test_how_much_silence_is_left_is_said() -> None:
    outcome = tell(HUNG, now="2026-03-01 10:00:50")
    assert outcome.verdict is Verdict.WARMING
    assert "it has been silent for 50 s" in outcome.diagnosis.remedy
    assert format_duration(outcome.allowed_s or 0.0) in outcome.diagnosis.remedy
    assert "without --now" not in paper(outcome)


def test_only_a_server_with_requests_owes_us_lines() -> None:
    assert "without --now" not in paper(tell(READY))
    assert "without --now" in paper(tell(READY + decode(1, running=9)))


@pytest.mark.parametrize("code", [2, 1, 0, -9, 137, -15, -11])
@pytest.mark.parametrize(
    "log",
    [
        "sim: cannot play cause 'typo': known are gpu-oom-weights host-oom-killed native-crash",
        "sim: error: choose from Killed, exit code -9",
        "kernel: Out of memory: Killed process 77 (python3) total-vm:1kB",
        "nothing of interest",
    ],
)
def test_why_and_diagnose_say_the_same_of_one_log(log: str, code: int) -> None:
    world = World()
    world.start()
    world.until(1)
    world.log(log)
    world.tell(e.Exited(1, code))
    world.until(world.now + 1)
    (incident,) = world.facts_now.incidents
    theirs = tell(log + "\n", exit_code=code).diagnosis
    assert incident.diagnosis is not None
    assert (incident.diagnosis.cause, incident.diagnosis.remedy) == (theirs.cause, theirs.remedy)


def test_a_class_named_in_passing_is_no_clue() -> None:
    assert not tell("sim: known are host-oom-killed oom-killers post-oom-kill\n").clues
