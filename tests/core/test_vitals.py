"""What moves besides the log, and what only burns energy."""

from __future__ import annotations

from supervisor.core.vitals import Vitals
from supervisor.events import DeviceMemorySampled, EngineSampled, ProcessSample, TreeSampled

MB = 10**6


def tree(cpu_s: float = 0.0, read: int = 0, written: int = 0, *processes: ProcessSample, compilers: int = 0):
    return TreeSampled(1, cpu_s, read, written, processes, compilers)


def rank(state: str, pid: int = 7) -> ProcessSample:
    return ProcessSample(pid, state, "scheduler", "TP1")


def test_one_look_tells_nothing() -> None:
    vitals = Vitals()
    vitals.tree(tree(100.0), 10.0)
    assert not vitals.known
    assert vitals.active_at() is None


def test_a_tree_that_burns_cpu_is_active_and_makes_no_progress() -> None:
    vitals = Vitals()
    vitals.tree(tree(100.0), 10.0)
    vitals.tree(tree(104.0), 12.0)
    assert vitals.cores == 2.0
    assert vitals.active_at() == 12.0
    assert vitals.side_progress_at() is None


def test_reading_fast_without_a_word_is_progress() -> None:
    vitals = Vitals()
    vitals.tree(tree(), 10.0)
    vitals.tree(tree(read=4000 * MB), 12.0)
    assert vitals.side_progress_at() == 12.0


def test_a_trickle_of_reads_is_activity_alone() -> None:
    vitals = Vitals()
    vitals.tree(tree(), 10.0)
    vitals.tree(tree(read=4 * MB), 12.0)
    assert vitals.active_at() == 12.0
    assert vitals.side_progress_at() is None


def test_an_idle_tree_is_neither() -> None:
    vitals = Vitals()
    vitals.tree(tree(100.0), 10.0)
    vitals.tree(tree(100.1), 12.0)
    assert vitals.known
    assert vitals.active_at() is None


def test_sums_that_shrink_are_no_activity() -> None:
    vitals = Vitals()
    vitals.tree(tree(100.0, 50 * MB), 10.0)
    vitals.tree(tree(10.0, 0), 12.0)
    assert (vitals.cores, vitals.active_at()) == (0.0, None)


def test_a_compiler_at_work_is_progress_however_silent() -> None:
    vitals = Vitals()
    vitals.tree(tree(compilers=3), 10.0)
    assert vitals.side_progress_at() == 10.0


def test_device_memory_counts_in_steps() -> None:
    vitals = Vitals()
    for at, held in ((1.0, 0), (2.0, 2**20), (3.0, 2**30), (4.0, 2**30 + 2**20)):
        vitals.device_memory(DeviceMemorySampled(1, held), at)
    assert vitals.device_at == 3.0


def test_tokens_and_finished_requests_are_progress_queues_are_not() -> None:
    vitals = Vitals()
    vitals.engine(EngineSampled(1, tokens=10, requests=1, running=2, queued=5), 1.0)
    vitals.engine(EngineSampled(1, tokens=10, requests=1, running=2, queued=9), 2.0)
    assert vitals.tokens_at is None
    vitals.engine(EngineSampled(1, tokens=11, requests=1, running=2, queued=9), 3.0)
    assert vitals.tokens_at == 3.0
    assert vitals.busy_since == 1.0


def test_a_break_between_requests_starts_the_busy_clock_anew() -> None:
    vitals = Vitals()
    for at, running in ((1.0, 2.0), (2.0, 0.0), (3.0, 1.0)):
        vitals.engine(EngineSampled(1, tokens=1, running=running, queued=0), at)
    assert vitals.busy_since == 3.0


def test_a_stopped_rank_is_known_since_the_first_look_and_forgotten_when_it_runs() -> None:
    vitals = Vitals()
    vitals.tree(tree(0, 0, 0, rank("T")), 10.0)
    vitals.tree(tree(0, 0, 0, rank("T")), 15.0)
    (still,) = vitals.standstills()
    assert still.since == 10.0
    assert still.words == "scheduler TP1 (pid 7) is stopped (T)"
    vitals.tree(tree(0, 0, 0, rank("S")), 20.0)
    assert vitals.standstills() == ()


def test_processes_without_a_role_may_stand_still() -> None:
    vitals = Vitals()
    vitals.tree(tree(0, 0, 0, ProcessSample(9, "T")), 10.0)
    assert vitals.standstills() == ()


def test_votes_name_every_signal_and_unknown_is_not_still() -> None:
    votes = {vote.source: vote.says for vote in Vitals().votes(100.0)}
    assert votes == dict.fromkeys(("cpu", "io", "gpu", "engine"), "unknown")
    vitals = Vitals()
    vitals.tree(tree(0.0), 96.0)
    vitals.tree(tree(8.0), 100.0)
    votes = {vote.source: (vote.says, vote.text) for vote in vitals.votes(100.0)}
    assert votes["cpu"] == ("moving", "2.0 cores")
    assert votes["io"] == ("still", "0 MB/s read")


def test_a_rank_that_sleeps_in_the_kernel_is_told_from_one_that_was_stopped() -> None:
    vitals = Vitals()
    vitals.tree(tree(0, 0, 0, rank("D")), 10.0)
    assert [still.words for still in vitals.standstills()] == ["scheduler TP1 (pid 7) is stuck in the kernel (D)"]


def test_bytes_written_are_activity_and_no_loading() -> None:
    vitals = Vitals()
    for at, written in ((10.0, 500 * MB), (12.0, 900 * MB)):
        vitals.tree(tree(100.0, 0, written), at)
    assert vitals.active_at() == 12.0
    assert vitals.side_progress_at() is None
    vitals.tree(tree(100.0, 0, 900 * MB), 14.0)
    assert vitals.active_at() == 12.0, "nothing more was written"
    vitals.tree(tree(100.0, 0, 100 * MB), 16.0)
    assert vitals.active_at() == 12.0, "a writer that has gone takes his sum along"


def test_running_and_queued_requests_are_counted_together_and_unknown_is_not_none() -> None:
    vitals = Vitals()
    assert vitals.requests() is None
    for running, queued, together in ((2.0, 5.0, 7), (0.0, 0.0, 0), (3.0, None, 3), (None, 4.0, None)):
        vitals.engine(EngineSampled(1, tokens=1, running=running, queued=queued), 1.0)
        assert vitals.requests() == together


def test_the_engines_vote_tells_its_requests() -> None:
    def words(running: float | None, queued: float | None) -> str:
        vitals = Vitals()
        vitals.engine(EngineSampled(1, tokens=1, running=running, queued=queued), 1.0)
        return next(vote.text for vote in vitals.votes(2.0) if vote.source == "engine")

    assert words(2.0, 5.0) == "2 running, 5 queued"
    assert words(None, None) == "0 running, 0 queued"
    assert [vote.text for vote in Vitals().votes(2.0) if vote.source == "engine"] == [
        "no counters (its /metrics is off)"
    ]


def test_two_looks_right_after_each_other_are_compared_by_the_time_between_them() -> None:
    vitals = Vitals()
    vitals.tree(tree(100.0), 10.0)
    vitals.tree(tree(101.0), 10.5)
    assert vitals.cores == 2.0
