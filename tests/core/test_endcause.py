"""The cause behind an end: the log's, the kernel's word, an exit code, or what we saw ourselves."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor.core.diagnose import CauseFinder
from supervisor.core.endcause import CANNOT_EXECUTE, End, EndKind, end_cause, in_words
from supervisor.core.log.grammar import LogReader
from supervisor.events import HostOomKilled
from supervisor.lines import LineCutter
from supervisor.profile import Profile, load_profile
from supervisor.snapshot import DiagnosisView

PROFILE = load_profile("sglang")
PLAIN = End(EndKind.EXIT, "seen", 1, True, frozenset(), "weights", False, False, None, False)
DEVICE_OOM = (
    "[2026-11-29 10:00:42 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB\n"
    "[2026-11-29 10:00:43] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"
)


def cause(end: End, log: str = "", profile: Profile = PROFILE) -> DiagnosisView:
    finder = CauseFinder(profile)
    for event in LogReader(profile, 1).read(LineCutter().feed(log.encode())):
        finder.observe(event, "weights")
    return end_cause(finder, profile, end)


def stalled(stage: str, *, was_ready: bool = False) -> End:
    return PLAIN._replace(kind=EndKind.STALL, stage=stage, was_ready=was_ready, code=None, exited=False)


# --- what never ran --------------------------------------------------------------------------------------------------


def test_a_command_that_cannot_be_executed_is_the_configurations_affair() -> None:
    view = cause(PLAIN._replace(kind=EndKind.SPAWN, permanent=True, code=None, exited=False))
    assert (view.cause, view.restart, view.evidence, view.confidence) == (CANNOT_EXECUTE, "no", "seen", 1.0)
    assert "command, directory or user" in view.remedy


def test_a_process_that_the_host_refuses_for_now_may_come_later() -> None:
    view = cause(PLAIN._replace(kind=EndKind.SPAWN, permanent=False, code=None, exited=False))
    assert (view.cause, view.restart) == (CANNOT_EXECUTE, "maybe")
    assert "open-file limits" in view.remedy


# --- the kernel's word -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log", ["", DEVICE_OOM])
def test_the_kernels_word_goes_before_the_logs(log: str) -> None:
    view = cause(PLAIN._replace(oom=HostOomKilled(1, 4711, "python", "kernel log")), log)
    assert view.cause == "host-oom-killed"
    assert view.evidence == "the kernel's OOM killer ended pid 4711 (python): kernel log"
    assert 0.9 < view.confidence <= 1.0
    assert "dmesg" in view.remedy


def test_a_cgroup_that_names_nobody_is_believed_as_well() -> None:
    view = cause(PLAIN._replace(oom=HostOomKilled(1, source="memory.events of its cgroup")))
    assert view.evidence == "the kernel's OOM killer ended a process of the server: memory.events of its cgroup"


def test_a_kill_that_looks_like_the_kernels_is_none_when_the_kernel_would_have_said_so() -> None:
    killed = PLAIN._replace(code=-9)
    unheard, heard = cause(killed), cause(killed._replace(kernel_heard=True))
    assert (unheard.cause, heard.cause) == ("host-oom-killed", "external-termination")
    assert unheard.restart == heard.restart == "maybe"
    assert max(unheard.confidence, heard.confidence) < 0.5, "a guess leaves no server down"


# --- what we ended ourselves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "expected", "restart"),
    [
        ("dist-init", "nccl-init-hang", "maybe"),
        ("pd-init", "pd-disaggregation-failure", "maybe"),
        ("graph-capture", "scheduler-hang", "yes"),
        ("weights", "scheduler-hang", "yes"),  # its own class is slow loading, and it stands still
        ("launch", "scheduler-hang", "yes"),
    ],
)
def test_a_stall_without_a_word_is_a_hang_of_its_stage(stage: str, expected: str, restart: str) -> None:
    view = cause(stalled(stage))
    assert (view.cause, view.restart, view.evidence) == (expected, restart, "seen")
    assert view.remedy == (PROFILE.cause(expected) or pytest.fail(expected)).remedy


def test_how_a_stalled_one_ended_under_our_signals_says_nothing_of_its_stall() -> None:
    ended = stalled("dist-init")._replace(code=-9, exited=True, signals=frozenset({15, 9}))
    assert cause(ended) == cause(stalled("dist-init"))
    assert cause(ended, UNBALANCED).cause == "gpu-memory-occupied", "what the log says while it lives counts"


def test_a_server_that_was_ready_hangs_in_serving_whatever_its_start_came_to() -> None:
    assert cause(stalled("dist-init", was_ready=True)).cause == "scheduler-hang"


def test_a_profile_that_knows_no_hangs_still_tells_what_was_seen() -> None:
    view = cause(stalled("weights"), profile=replace(PROFILE, hangs={}))
    assert (view.cause, view.restart, view.remedy, view.evidence) == ("", "maybe", "", "seen")


UNBALANCED = (
    "[2026-11-29 10:00:02 TP0] The memory capacity is unbalanced. Some GPUs may be occupied by other processes.\n"
    "[2026-11-29 10:00:03 TP0] Load weight begin. avail mem=78.00 GB\n"
)
WAITS_FOR_A_LOCK = (
    "[2026-11-29 10:00:02 TP0] waiting for the build lock of another process\n"
    "[2026-11-29 10:00:03 TP0] Load weight begin. avail mem=78.00 GB\n"
)


def test_what_the_log_says_well_enough_explains_a_stall() -> None:
    view = cause(stalled("dist-init"), UNBALANCED)
    assert view.cause == "gpu-memory-occupied"
    assert "unbalanced" in view.evidence


def test_what_the_log_only_hints_at_does_not() -> None:
    view = cause(stalled("dist-init"), WAITS_FOR_A_LOCK)
    assert (view.cause, view.evidence) == ("nccl-init-hang", "seen")


# --- what died under a living leader ---------------------------------------------------------------------------------


def test_our_own_kill_of_what_had_died_is_not_its_cause() -> None:
    dead = PLAIN._replace(kind=EndKind.DEAD, code=-9, signals=frozenset({15, 9}))
    assert cause(dead._replace(death_code=-11)).cause == "native-crash"
    vanished = cause(dead._replace(death_code=None))
    assert vanished.cause == "insufficient-evidence"
    assert vanished.evidence == "seen"
    assert vanished.remedy.startswith("A process of the server vanished without a word")


def test_what_the_log_says_of_a_death_is_its_evidence() -> None:
    view = cause(PLAIN._replace(kind=EndKind.DEAD, death_code=1), DEVICE_OOM)
    assert "CUDA out of memory" in view.evidence


# --- whom we saw end first, and what the survivors say of it -----------------------------------------------------------

RESET = (
    "[2026-11-29 10:00:42 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Read error: Connection reset by peer\n"
    "[2026-11-29 10:00:42 TP3] the line that ends the exception above\n"
)
SIGQUIT = "[2026-11-29 10:00:43] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"
RANK_FIRST = PLAIN._replace(code=-9, death_code=-9, first_death="scheduler TP2 (pid 12)", kernel_heard=True)
LEADER_FIRST = PLAIN._replace(code=-9, kernel_heard=True)


@pytest.mark.parametrize("kind", [EndKind.EXIT, EndKind.DEAD])
@pytest.mark.parametrize("log", [RESET, RESET + SIGQUIT, ""])
def test_a_rank_that_a_signal_ended_first_goes_before_its_survivors_words(kind: EndKind, log: str) -> None:
    view = cause(RANK_FIRST._replace(kind=kind, reason="dead: scheduler TP2 (pid 12) is gone (signal 9)"), log)
    assert (view.cause, view.restart) == ("external-termination", "maybe")
    assert view.remedy.startswith("Somebody's SIGKILL")
    assert not log or view.evidence.startswith("scheduler TP2 (pid 12) ended first, by signal 9")
    assert view.evidence_line == 0, "no line of the log says it"


@pytest.mark.parametrize("log", [RESET, ""])
@pytest.mark.parametrize("child", ["", "scheduler TP2 (pid 12)"])  # seen to end in the same moment, nobody knows how
def test_a_leader_that_a_signal_ended_first_does_so_too(log: str, child: str) -> None:
    view = cause(LEADER_FIRST._replace(first_death=child, together=bool(child)), log)
    assert (view.cause, view.restart) == ("external-termination", "maybe")
    said = f"the leader and {child} ended in one moment, the leader" if child else "the leader ended first,"
    assert not log or view.evidence == f"{said} by signal 9; what the log says came after it"


def test_the_first_ones_signal_names_the_class() -> None:
    assert cause(RANK_FIRST._replace(death_code=-11), RESET).cause == "native-crash"
    assert cause(RANK_FIRST._replace(death_code=-15), RESET).cause == "external-termination"
    assert cause(RANK_FIRST._replace(kernel_heard=False), RESET).cause == "host-oom-killed"
    assert (
        cause(RANK_FIRST._replace(oom=HostOomKilled(1, 12, "python", "kernel log")), RESET).cause == "host-oom-killed"
    )


@pytest.mark.parametrize(
    ("end", "log"),
    [
        (RANK_FIRST._replace(alone=False), RESET + SIGQUIT),  # whom they miss may be of another node
        (RANK_FIRST._replace(death_code=1), RESET),
        (RANK_FIRST._replace(death_code=0), RESET),  # a scheduler's 0 is no success, and no signal either
        (RANK_FIRST._replace(death_code=None), RESET + SIGQUIT),
        (RANK_FIRST._replace(death_code=None), RESET),  # the leader lived on for a while: its end is an echo
        (LEADER_FIRST, RESET + SIGQUIT),  # it kills its tree and itself
        (LEADER_FIRST._replace(signals=frozenset({9})), RESET),
    ],
)
def test_who_may_be_no_more_than_an_echo_leaves_the_survivors_their_word(end: End, log: str) -> None:
    assert cause(end, log).cause == "peer-rank-death"


SEGFAULT = (
    "[2026-11-29 10:00:42 TP0] Capture cuda graph begin.\n"
    "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
    '  File "/venv/sglang/srt/managers/scheduler.py", line 77 in run_batch\n'
    "[2026-11-29 10:00:43 TP0] the line that ends the crash above\n"
)


@pytest.mark.parametrize(
    ("end", "rank"),
    [
        (RANK_FIRST._replace(death_code=-11), ""),  # TP2, by its death; the line bears no prefix of its own
        (RANK_FIRST._replace(death_code=-11, first_death="scheduler TP0 (pid 10)"), "TP0"),
        (RANK_FIRST, "TP0"),  # killed by the engine, perhaps, while it clears up
        (PLAIN._replace(code=-9), "TP0"),
    ],
)
def test_a_crash_is_not_told_of_a_rank_that_only_wrote_before_it(end: End, rank: str) -> None:
    view = cause(end, SEGFAULT)
    assert (view.cause, view.evidence_line, view.evidence_rank) == ("native-crash", 2, rank)


def test_a_culprits_own_words_stand_whoever_is_seen_to_end_first() -> None:
    view = cause(RANK_FIRST, DEVICE_OOM + RESET)
    assert "CUDA out of memory" in view.evidence


# --- in a few words ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        (EndKind.EXIT, -9, "ended by signal 9"),
        (EndKind.EXIT, -1, "ended by signal 1"),
        (EndKind.EXIT, 0, "exited with status 0"),
        (EndKind.EXIT, 1, "exited with status 1"),
        (EndKind.EXIT, None, "ended, exit status unknown"),
        (None, 1, "exited with status 1"),
        (EndKind.OPERATOR, 0, "ended as asked"),
        (EndKind.OPERATOR, None, "ended as asked"),
        (EndKind.OPERATOR, 1, "ended as asked, with status 1"),
        (EndKind.OPERATOR, -9, "ended as asked, by signal 9"),
        (EndKind.STALL, -9, "stalled in weights"),
        (EndKind.DEAD, None, "stalled in weights"),
    ],
)
def test_an_end_is_told_by_its_kind_and_its_code(kind: EndKind | None, code: int | None, words: str) -> None:
    assert in_words(kind, "stalled in weights", code, "") == words
    after = " after TP1 had ended" if kind in (None, EndKind.EXIT) else ""
    assert in_words(kind, "stalled in weights", code, "TP1") == words + after


# --- a signal that somebody had us send -------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "signal"), [(-15, 15), (-9, 9), (0, 15)])
@pytest.mark.parametrize("log", ["", RESET])
def test_whoever_had_us_send_the_signal_is_named(code: int, signal: int, log: str) -> None:
    asked = PLAIN._replace(code=code, signals=frozenset({signal}), asked="SIGTERM asked by uid 7", kernel_heard=True)
    view = cause(asked, log)
    assert (view.cause, view.restart, view.evidence) == ("external-termination", "yes", "SIGTERM asked by uid 7")
    assert "find out who" not in view.remedy.lower()


def test_a_signal_asked_for_explains_no_failure_with_a_word_of_its_own() -> None:
    asked = PLAIN._replace(signals=frozenset({15}), asked="SIGTERM asked by uid 7")
    assert "CUDA out of memory" in cause(asked, DEVICE_OOM).evidence
    assert cause(asked._replace(kind=EndKind.STALL)).cause == "scheduler-hang"
    kernel = asked._replace(oom=HostOomKilled(1, 4711, "python", "kernel log"))
    assert cause(kernel).cause == "host-oom-killed"


# --- what ended by itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "signals", "expected"),
    [
        (-11, (), "native-crash"),
        (-15, (), "external-termination"),
        (-9, (9,), "external-termination"),
        (1, (), "insufficient-evidence"),
        (None, (), "insufficient-evidence"),
    ],
)
def test_an_end_without_a_word_is_told_by_its_exit_code_and_by_our_signals(code, signals, expected: str) -> None:
    view = cause(PLAIN._replace(code=code, signals=frozenset(signals)))
    assert view.cause == expected
    assert 0 < view.confidence < 0.75, "no more than a guess: it alone leaves no server down"


def test_a_status_of_two_before_anything_was_done_is_the_command_lines() -> None:
    view = cause(PLAIN._replace(code=2, stage="launch"))
    assert view.cause == "server-args-invalid"
    assert 0 < view.confidence < 0.5
    assert cause(PLAIN._replace(code=2)).cause == "insufficient-evidence"
