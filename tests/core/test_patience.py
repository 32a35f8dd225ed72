"""When a start has stood still for too long, by which rule, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from supervisor.actions import PhaseRecord, StartRecord
from supervisor.config import PhaseDeadline, ServerConfig
from supervisor.core.budgets import Budgets
from supervisor.core.history import History
from supervisor.core.patience import Deadline, Patience
from supervisor.core.resolve import resolve
from supervisor.core.settings import PhaseLimit, Settings
from supervisor.core.vitals import Vitals
from supervisor.events import ProcessSample, TreeSampled
from supervisor.profile import CommandFacts, facts, load_profile, profile_names
from supervisor.snapshot import RankView, StartupView

WEIGHTS = PhaseLimit(stall_s=300.0, limit_s=1200.0, idle_s=60.0)
SETTINGS = Settings(name="kimi", deadlines={"weights": WEIGHTS}, blind_idle_s=600.0, history_key="k")
VIEW = StartupView(phase="weights", stage="weights", since=100.0, last_progress=150.0)


class Start:
    """One in its weights, launched at 0."""

    def __init__(
        self, *, log_level: str = "info", view: StartupView = VIEW, earlier: Sequence[StartRecord] = ()
    ) -> None:
        self.view = view
        self.vitals = Vitals()
        facts = CommandFacts(port=30000, host="", log_level=log_level)
        budgets = Budgets(SETTINGS, History(earlier))
        self.patience = Patience(0.0, SETTINGS, budgets, facts, self.vitals, lambda: self.view)

    def looked_at(self, cpu_s: float, now: float) -> None:
        self.vitals.tree(TreeSampled(1, cpu_s=cpu_s, read_bytes=0, write_bytes=0, processes=()), now)


def test_silence_is_counted_from_the_last_progress() -> None:
    start = Start()
    assert start.patience.stall_at() == Deadline(450.0, "weights", "stall", 300.0)
    start.view = replace(VIEW, last_progress=200.0)
    assert start.patience.last_progress() == 200.0
    assert start.patience.stall_at().at == 500.0


def test_before_the_first_line_it_is_counted_from_the_launch() -> None:
    start = Start(view=replace(VIEW, since=-5.0, last_progress=-5.0))
    assert start.patience.last_progress() == 0.0
    assert start.patience.stall_at().at == 300.0


def test_whoever_goes_on_for_ever_meets_the_limit_of_the_phase() -> None:
    start = Start(view=replace(VIEW, last_progress=1299.0))
    assert start.patience.stall_at() == Deadline(1300.0, "weights", "limit", 1200.0)
    assert start.patience.stall_reason(1300.0) == "stalled in weights: not done after 1200 s, 1200 s are allowed"


def test_processes_that_do_nothing_shorten_the_patience() -> None:
    start = Start()
    start.looked_at(10.0, 160.0)
    start.looked_at(30.0, 180.0)  # a core's worth
    assert start.patience.stall_at() == Deadline(240.0, "weights", "idle", 60.0)
    reason = "stalled in weights: no progress for 90 s and the processes are idle, 60 s are allowed"
    assert start.patience.stall_reason(240.0) == reason


def test_the_reason_says_who_holds_the_others_up() -> None:
    said = "stalled in weights: no progress for 300 s, 300 s are allowed"
    ranks = tuple(RankView(rank=f"TP{n}", stage="weights", phase="weights", since=100.0) for n in range(2))
    assert Start(view=replace(VIEW, ranks=ranks)).patience.stall_reason(450.0) == f"{said}; all 2 ranks are in it"
    assert Start(view=replace(VIEW, ranks=ranks[:1])).patience.stall_reason(450.0) == said
    lag = "TP1 still in weights; 1 rank waits in memory-pool"
    assert Start(view=replace(VIEW, ranks=ranks, laggard=lag)).patience.stall_reason(450.0) == f"{said}; {lag}"


def test_the_reason_names_a_rank_that_stands_still_though_all_ranks_look_alike_in_the_log() -> None:
    """Seen with real ranks in a capture, whose bar the first one prints for all."""
    ranks = tuple(RankView(rank=f"TP{n}", stage="weights", phase="weights", since=100.0) for n in range(2))
    start = Start(view=replace(VIEW, ranks=ranks))
    processes = (ProcessSample(7, "D", "scheduler", "TP0"), ProcessSample(8, "T", "scheduler", "TP1"))
    look = TreeSampled(1, cpu_s=1.0, read_bytes=0, write_bytes=0, processes=processes)
    start.vitals.tree(look, 280.0)
    stopped = "scheduler TP1 (pid 8) is stopped (T)"
    assert start.patience.stall_reason(450.0).endswith(f"; all 2 ranks are in it; {stopped}")
    start.vitals.tree(look, 470.0)
    stuck = "scheduler TP0 (pid 7) is stuck in the kernel (D)"
    assert start.patience.stall_reason(470.0).endswith(f"; {stuck}, {stopped}"), "no disk read takes that long"


def test_what_a_few_starts_teach_is_told_and_does_not_act() -> None:
    earlier = [StartRecord("k", 120.0, (PhaseRecord("weights", 60.0, silence_s),)) for silence_s in (20.0, 24.0)]
    start = Start(earlier=earlier)
    assert start.patience.stall_at().at == 450.0
    assert start.patience.observed_stall_at() == 150.0 + 3 * 48.0, "nobody knows yet how slow this host is"
    start = Start(view=replace(VIEW, phase="launch"), earlier=earlier)
    start.view = VIEW
    start.patience.progress(100.0)
    assert start.patience.observed_stall_at() == 150.0 + 48.0
    assert Start().patience.observed_stall_at() is None


@pytest.mark.parametrize("level", ["warning", "WARN", "error", "critical", "fatal"])
def test_a_log_without_markers_leaves_the_processes_alone_to_speak(level: str) -> None:
    start = Start(log_level=level)
    assert start.patience.blind == f"the command hides the log's markers: log level {level}"
    assert start.patience.stall_at() == Deadline(math.inf, "weights", "idle", math.inf)
    assert start.patience.observed_stall_at() is None
    for now in (140.0, 160.0):
        start.looked_at(10.0, now)
    assert start.patience.stall_at() == Deadline(750.0, "weights", "idle", 600.0)
    assert start.patience.stall_reason(750.0).startswith(f"blind ({start.patience.blind}): no progress for 600 s and")


def test_a_log_with_its_markers_is_not_blind_until_it_cannot_be_read() -> None:
    start = Start()
    assert start.patience.blind == ""
    start.patience.blind = "permission denied"
    assert start.patience.stall_at().rule == "idle"


def test_the_phases_it_went_through_are_measured() -> None:
    start = Start(view=replace(VIEW, phase="launch"))
    start.patience.progress(30.0)
    start.view = VIEW
    start.patience.progress(100.0)
    assert [(one.phase, one.seconds) for one in start.patience.phases(160.0)] == [("launch", 100.0), ("weights", 60.0)]


@pytest.mark.parametrize("engine", profile_names())
def test_the_idle_deadline_follows_from_stall_as_the_page_about_the_configuration_says(engine: str) -> None:
    profile = load_profile(engine)
    config = ServerConfig("kimi", ("serve",), deadlines={"weights": PhaseDeadline(stall_s=7200.0)})
    deadlines = resolve(config, profile, facts(profile, config.command)).deadlines
    for rule in profile.phases:
        limit = deadlines[rule.name]
        if rule.stage in ("launch", "dist-init") or not rule.stall_s:
            assert limit.idle_s == math.inf, rule.name
        else:
            assert limit.idle_s == max(limit.stall_s / 2, min(rule.floor_s, limit.stall_s)), rule.name
            assert 60 <= rule.floor_s <= 300, rule.name
    assert deadlines["weights"].idle_s == 3600.0
