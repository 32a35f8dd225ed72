"""The tracker: starts of every generation as the fake engine prints them, laggards, bars, time left, readiness."""

from __future__ import annotations

import itertools

import pytest

from supervisor.core.log.grammar import LogReader
from supervisor.core.log.stamps import seconds
from supervisor.core.progress import MAX_RANKS, Movement, PhaseTracker, read_bar
from supervisor.events import LineMatched
from supervisor.lines import LineCutter
from supervisor.profile import facts, load_profile
from supervisor.simulator.options import Options
from supervisor.simulator.render import render
from supervisor.simulator.scenario import parse_scenario
from supervisor.snapshot import StartupView
from tests.core import golden

PROFILE = load_profile("sglang")
OLD_EAGLE = ["verify-graph", "draft-weights", "draft-pool", "draft-graph", "draft-extend-graph"]
NEW_EAGLE = ["draft-weights", "memory-pool", "draft-pool", "verify-graph", "draft-graph", "draft-extend-graph"]


class Start:
    """A start that is told line by line."""

    def __init__(self, command: str = "") -> None:
        self.tracker = PhaseTracker(PROFILE, facts(PROFILE, command.split()))
        self.reader = LogReader(PROFILE, 1)
        self.cutter = LineCutter()
        self.now = 0.0
        self.tracker.begin(0.0)

    def says(self, *lines: str, at: float | None = None):
        self.now = self.now + 1 if at is None else at
        data = "".join(f"{line}\n" for line in lines).encode()
        return [self.tracker.observe(match, self.now) for match in self.reader.read(self.cutter.feed(data))]

    def rank(self, rank: str, *lines: str, at: float | None = None):
        return self.says(*(f"[2026-03-01 10:00:00 {rank}] {line}" for line in lines), at=at)

    @property
    def view(self) -> StartupView:
        return self.tracker.view()


def phases_of(options: Options) -> dict[str, list[str]]:
    """Each rank's phases in the rendered log, repeats in a row counted once."""
    tracker, reader, cutter = PhaseTracker(PROFILE), LogReader(PROFILE, 1), LineCutter()
    seen: dict[str, list[str]] = {}
    for match in reader.read(cutter.feed(b"".join(write.data for write in render(options)))):
        tracker.observe(match, seconds(match.stamp))
    for span in tracker.view().timeline:
        seen.setdefault(span.rank, []).append(span.phase)
    return {rank: [phase for phase, _ in itertools.groupby(phases)] for rank, phases in seen.items() if rank}


@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize(
    ("dialect", "speculative", "between"),
    [
        ("0.5.3", "", ["memory-pool", "target-graph"]),
        ("0.5.9", "", ["memory-pool", "target-graph"]),
        ("0.5.23", "", ["memory-pool", "target-graph"]),
        ("0.5.3", "EAGLE3", ["memory-pool", *OLD_EAGLE]),
        ("0.5.9", "EAGLE3", ["memory-pool", *OLD_EAGLE]),
        ("0.5.23", "EAGLE3", NEW_EAGLE),
    ],
)
def test_first_rank_goes_through_the_phases_of_its_generation(
    dialect: str, speculative: str, between: list[str], tp: int
) -> None:
    more = {"speculative_algorithm": speculative} if speculative else {}
    phases = phases_of(Options(dialect=dialect, tp=tp, **more))
    assert phases["TP0"] == ["launch", "dist-init", "weights", *between, "warmup", "healthy"]
    assert len(phases) == tp
    assert all(way[-1] == "healthy" for way in phases.values())


@pytest.mark.parametrize("path", golden.recorded(), ids=lambda path: path.name.removesuffix(".log.gz"))
def test_a_recorded_start_has_its_phases_and_times(path: golden.Path) -> None:
    expected = path.with_name(path.name.replace(".log.gz", ".phases.txt")).read_text()
    assert golden.phases(path) == expected


@pytest.mark.parametrize("dialect", ["0.5.9", "0.5.23"])
@pytest.mark.parametrize("phase", ["dist-init", "weights", "memory-pool"])
def test_a_stalled_rank_holds_the_start_in_its_phase(dialect: str, phase: str) -> None:
    tracker, reader = PhaseTracker(PROFILE), LogReader(PROFILE, 1)
    options = Options(dialect=dialect, tp=4, scenarios=(parse_scenario(f"stall:phase={phase},rank=TP2"),))
    for match in reader.read(LineCutter().feed(b"".join(write.data for write in render(options)))):
        tracker.observe(match, seconds(match.stamp))
    assert tracker.view().phase == phase


def test_the_laggard_is_named() -> None:
    start = Start()
    for rank in range(8):
        start.rank(f"TP{rank}", "Init torch distributed begin.", "Init torch distributed ends.", "Load weight begin.")
    for rank in (0, 1, 2, 3, 4, 6, 7):
        start.rank(f"TP{rank}", "Load weight end. type=X", "KV Cache is allocated. #tokens: 7")
    assert start.view.laggard == "TP5 still in weights; 7 ranks wait in memory-pool"
    assert start.view.lagging == ("TP5",)
    assert (start.view.phase, start.view.stage) == ("weights", "weights")
    start.rank("TP5", "Load weight end. type=X", "KV Cache is allocated. #tokens: 7")
    assert (start.view.phase, start.view.laggard, start.view.lagging) == ("memory-pool", "", ())


def test_a_launchers_phase_is_over_once_a_rank_is_beyond_it() -> None:
    """It never says that it has ended, and would be drawn until the server is healthy."""
    start = Start()
    start.says("[2026-03-01 10:00:00] Using default HuggingFace chat template with detected content format", at=2.0)
    assert [(span.phase, span.end) for span in start.view.timeline if not span.rank][-1] == ("tokenizer", None)
    start.rank("TP0", "Init torch distributed begin.", at=2.6)
    start.rank("TP0", "Init torch distributed ends.", "Load weight begin.", at=9.0)
    launcher = [(span.phase, span.begin, span.end) for span in start.view.timeline if not span.rank]
    assert launcher == [("launch", 0.0, 2.0), ("tokenizer", 2.0, 2.6)]
    start.says("[2026-03-01 10:01:00] The server is fired up and ready to roll!", at=60.0)
    assert ("tokenizer", 2.0, 2.6) in [(span.phase, span.begin, span.end) for span in start.view.timeline]


def test_all_laggards_are_listed_however_few_the_words_name() -> None:
    start = Start()
    for rank in range(12):
        start.rank(f"TP{rank}", "Init torch distributed begin.", "Init torch distributed ends.", "Load weight begin.")
    for rank in (0, 3, 5, 7, 9):
        start.rank(f"TP{rank}", "Load weight end. type=X", "KV Cache is allocated. #tokens: 7")
    assert start.view.laggard == "TP1, TP2, TP4, TP6 and 3 more still in weights; 5 ranks wait in memory-pool"
    assert start.view.lagging == ("TP1", "TP2", "TP4", "TP6", "TP8", "TP10", "TP11")


def test_ranks_that_a_version_keeps_silent_hold_nobody_up() -> None:
    start = Start()
    start.rank("TP0", "Init torch distributed begin.", "Load weight begin.", "Load weight end. type=X")
    for rank in range(4):
        start.rank(f"TP{rank}", "KV Cache is allocated. #tokens: 7")
    start.rank("TP0", "Memory pool end.", "Capture cuda graph begin.")
    assert (start.view.phase, start.view.laggard, start.view.lagging) == ("target-graph", "", ())


def test_lines_of_the_first_rank_alone_make_no_laggards() -> None:
    start = Start("--speculative-algorithm EAGLE3")
    for rank in ("TP0", "TP1"):
        start.rank(rank, "Load weight begin.", "Load weight end. type=X", "Capture target verify CUDA graph begin.")
        start.rank(rank, "Capture target verify CUDA graph end.")
    start.rank("TP0", "Capture draft decode CUDA graph begin.")
    assert (start.view.phase, start.view.laggard, start.view.lagging) == ("draft-graph", "", ())


def test_a_jit_session_nests_and_gives_its_phase_back() -> None:
    start = Start()
    start.rank("TP0", "Load weight begin.", "Load weight end.", "Capture cuda graph begin.")
    start.rank("TP0", "Entering DeepGEMM JIT Pre-Compile session. It may take a long time")
    assert (start.view.phase, start.view.stage) == ("jit", "graph-capture")
    start.rank("TP0", "Capture cuda graph end.")
    assert start.view.phase == "target-graph"
    start.says("[2026-03-01 10:00:00] INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)")
    start.rank("TP0", "Entering DeepGEMM JIT Pre-Compile session. It may take a long time")
    assert (start.view.phase, start.view.stage) == ("jit", "warmup")


def test_listening_and_ready_are_hints_and_nothing_moves_afterwards() -> None:
    start = Start()
    start.rank("TP0", "Load weight begin.")
    (up,) = start.says("[2026-03-01 10:00:00] INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)")
    assert (up.listening, up.ready, up.phase_changed, start.view.phase) == (True, False, True, "warmup")
    (ready,) = start.says("[2026-03-01 10:00:00] The server is fired up and ready to roll!")
    assert (ready.ready, start.view.ready_seen, start.view.stage) == (True, True, "serving")
    (late,) = start.rank("TP0", "Load weight begin. avail mem=7.00 GB")
    assert (late.movement, late.phase_changed) == (Movement.ACTIVITY, False)
    assert start.view.phase == "healthy"


def test_what_tells_of_an_end_is_told_from_what_does_not() -> None:
    start = Start()
    for line, fatal in (
        ("SIGQUIT received. signum=None, frame=None. It usually means one child failed.", True),
        ("Load weight begin.", False),
        ("SIGTERM received. signum=15 frame=None. Draining requests and shutting down...", False),
    ):
        said = start.rank("TP0", line) + [start.tracker.observe(match, start.now) for match in start.reader.finish()]
        assert any(one.fatal for one in said) is fatal, line


def test_a_bar_is_the_last_that_its_rank_has_said() -> None:
    start = Start()
    start.rank("TP0", "Load weight begin. avail mem=138.31 GB")
    start.says("Multi-thread loading shards:  38% Completed | 3/8 [00:00<00:00, 2.00it/s]")
    assert "3/8" in start.view.ranks[0].last_line


def test_serving_is_progress_by_its_batches_not_by_its_probes() -> None:
    start = Start()
    start.says("[2026-03-01 10:00:00] The server is fired up and ready to roll!", at=10)
    (probe,) = start.says('[2026-03-01 10:00:00] INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK', at=20)
    assert probe.movement is Movement.NOTHING
    assert start.view.last_progress == 10
    start.rank("TP0", "Decode batch, #running-req: 7, #token: 9, token usage: 0.01", at=30)
    assert start.view.last_progress == 30


def test_a_bar_counts_as_progress_only_when_it_moves() -> None:
    start = Start()
    start.rank("TP0", "Load weight begin. avail mem=138.31 GB", at=1)
    bar = "Multi-thread loading shards:  38% Completed | 3/8 [00:00<00:00, {}it/s]"
    (first,) = start.says(bar.format("2.00"), at=2)
    (same,) = start.says(bar.format("1.00"), at=9)
    assert (first.movement, same.movement) == (Movement.PROGRESS, Movement.ACTIVITY)
    assert start.view.last_progress == 2
    (rank,) = start.view.ranks
    assert rank.progress is not None
    assert (rank.progress.done, rank.progress.total, rank.progress.unit) == (3, 8, "shards")
    assert (rank.progress.rate_per_s, rank.progress.eta_s) == (1.0, 5.0)
    assert rank.memory_left_gb == 138.31


@pytest.mark.parametrize(
    ("rate", "expected"), [("1.25s/it", 1 / 1.25), ("22.90it/s", 22.9), ("?it/s", None), ("0.00s/it", None)]
)
def test_rates_of_both_forms(rate: str, expected: float | None) -> None:
    start = Start()
    start.says(f"Multi-thread loading shards:  38% Completed | 3/8 [00:00<00:00, {rate}]")
    (rank,) = start.view.ranks
    assert rank.progress is not None
    assert rank.progress.rate_per_s == (None if expected is None else pytest.approx(expected))


def test_a_turning_warning_is_activity_and_no_progress() -> None:
    start = Start()
    start.rank("TP0", "Load weight begin.", at=1)
    for at in range(2, 50):
        (said,) = start.rank("TP0", "sglang is using nccl==2.27", at=at)
        assert said.movement is Movement.ACTIVITY
    assert start.view.last_progress == 1


def test_replicas_of_pure_data_parallelism_are_ranks_of_their_own() -> None:
    start = Start()
    for rank in ("DP0 TP0", "DP1 TP0"):
        start.rank(rank, "Init torch distributed begin.")
    start.rank("DP0 TP0", "Init torch distributed ends.", "Load weight begin.")
    assert start.view.laggard == "DP1 TP0 still in dist-init; 1 rank waits in weights"


def test_without_any_line_the_start_is_in_its_launch() -> None:
    view = Start().view
    assert (view.phase, view.stage, view.ready_seen) == ("launch", "launch", False)


def test_unknown_matches_are_only_signs_of_life() -> None:
    tracker = PhaseTracker(PROFILE)
    tracker.begin(5)
    assert tracker.observe(LineMatched(1, 1, "no-such-rule"), 6).movement is Movement.ACTIVITY
    assert tracker.view().last_progress == 5


def test_ranks_that_somebody_makes_up_are_bounded() -> None:
    start = Start()
    start.rank("TP0", "Load weight begin.")
    for number in range(MAX_RANKS + 50):
        start.rank(f"TP{number}", "Init torch distributed begin.")
    assert len(start.view.ranks) <= MAX_RANKS
    start.rank("TP0", "Load weight end. type=Llama, avail mem=1.00 GB, mem usage=2.00 GB.")
    assert start.view.ranks[0].memory_left_gb == 1.0, "those who are known are still heard"


@pytest.mark.parametrize(
    ("done", "total", "rate", "eta_s"),
    [
        ("1", "4", "2.0", 1.5),
        ("4", "4", "2.0", 0.0),
        ("5", "4", "2.0", 0.0),  # it counts on beyond its own end
        ("4", "4", "", 0.0),
        ("1", "4", "", None),
        ("0", "4", "0", None),
    ],
)
def test_the_time_left_is_the_rest_by_the_bars_own_rate(done: str, total: str, rate: str, eta_s: float | None) -> None:
    bar = next(rule for rule in PROFILE.rules if rule.bar)
    view = read_bar(
        bar, LineMatched(1, 1, bar.name, fields={"done": done, "total": total, "rate": rate, "per": "it/s"})
    )
    assert view is not None
    assert (view.done, view.total, view.eta_s) == (int(done), int(total), eta_s)


@pytest.mark.parametrize(("done", "total"), [("", "4"), ("1", ""), ("1", "0"), ("", "")])
def test_a_bar_without_its_numbers_is_none(done: str, total: str) -> None:
    bar = next(rule for rule in PROFILE.rules if rule.bar)
    assert read_bar(bar, LineMatched(1, 1, bar.name, fields={"done": done, "total": total})) is None


def test_a_phase_that_says_more_has_not_begun_anew() -> None:
    start = Start()
    start.rank("TP0", "Load weight begin.", at=3)
    start.says("Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.0s/it]", at=9)
    assert (start.view.phase, start.view.since) == ("weights", 3)
    start.rank("TP0", "Capture cuda graph begin. This can take up to several minutes.", at=12)
    assert (start.view.phase, start.view.since) == ("target-graph", 12)
