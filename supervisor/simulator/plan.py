"""Holds the values of a run's script: what each process writes at which second, and how it leaves the script."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from supervisor.simulator.dialect import Dialect
from supervisor.simulator.layout import Rank
from supervisor.simulator.options import Options
from supervisor.simulator.scenario import Scenario

MAIN = "main"
PEER_LOST_S = 0.6  # measured: a rank killed at capture is noticed by its peers after 0.6 s
# No collective is under way in these: ranks go through them alone and meet at their end.
LOCAL_PHASES = ("launch", "weights", "draft-weights", "memory-pool", "draft-pool", "ready")


class Emission(NamedTuple):
    """One write of one process at this unscaled second."""

    at_s: float
    source: str  # `main` or a rank's name
    phase: str
    text: str
    prefix: str = ""
    raw: bool = False
    stdout: bool = False
    repeat: int = 1

    def line(self, stamp: str) -> bytes:
        """The bytes of one write; `stamp` is what the clock says then."""
        text = self.text if self.raw else f"[{stamp}{self.prefix}] {self.text}\n"
        return text.encode("utf-8", "surrogateescape")


class FateKind(Enum):
    """How a process leaves its script."""

    STALL = "stall"
    CRASH = "crash"
    KILLED = "killed"


class Fate(NamedTuple):
    """The moment and the way in which a process leaves its script, and what it writes then."""

    kind: FateKind
    at_s: float
    busy: bool = False
    signal_number: int = 0
    emissions: tuple[Emission, ...] = ()
    exit_code: int = 0


class StepPlan(NamedTuple):
    """A rank's share of one step."""

    phase: str
    begin_s: float
    end_s: float
    held_gb: float
    emissions: tuple[Emission, ...]
    fate: Fate | None = None


class RankPlan(NamedTuple):
    """All that one scheduler does until it reports ready."""

    rank: Rank
    steps: tuple[StepPlan, ...]

    @property
    def fate(self) -> Fate | None:
        return next((step.fate for step in self.steps if step.fate), None)


class Plan(NamedTuple):
    """A whole start. `main_fate` is how the launcher leaves it; `ready_s` is when the last rank reports."""

    options: Options
    dialect: Dialect
    spawn_s: float
    main: tuple[Emission, ...]
    main_fate: Fate | None
    warmup_fate: Fate | None
    ranks: tuple[RankPlan, ...]
    ready_s: float
    bring_up: tuple[Emission, ...]
    serving: tuple[Scenario, ...]

    @property
    def fork_s(self) -> float:
        """The launcher's own last line comes after the fork: it is written beside the children's imports."""
        return self.spawn_s - 0.2
