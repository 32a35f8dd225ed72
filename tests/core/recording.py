"""A daemon's night in virtual time, recorded as its journal would have it: with late ticks, and without idle ones."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

from supervisor import actions as a
from supervisor import events as e
from supervisor.core.log.grammar import LogReader
from supervisor.core.replay.rehearsal import Obliging, Rehearsal
from supervisor.core.replay.review import MakeServer, Step
from supervisor.core.server import Server
from supervisor.core.settings import PhaseLimit, RestartSettings, Settings
from supervisor.lines import LineCutter
from supervisor.profile import facts, load_profile

PROFILE = load_profile("sglang")
WALL = 1_795_000_000.0
BEGIN = 100.0
LOADING = "[2026-11-29 10:00:02 TP0] Load weight begin. avail mem=78.00 GB"
CAPTURING = "[2026-11-29 10:00:09 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=9.92 GB"
READY = "[2026-11-29 10:00:40] The server is fired up and ready to roll!"
SETTINGS = Settings(
    name="kimi",
    deadlines={"weights": PhaseLimit(100.0, 3600.0), "target-graph": PhaseLimit(100.0, 3600.0)},
    restart=RestartSettings(jitter=0.0, backoff_s=5.0, budget=9),
    history_key="k",
)


def making(settings: Settings) -> MakeServer:
    """Servers with these settings."""
    return lambda now, last, earlier: Server(settings, PROFILE, facts(PROFILE, ()), now, last, earlier)


class Night(Rehearsal):
    """Tell it what happens; `steps` is the record. Ticks come `late_s` after their deadline, as on a busy host."""

    def __init__(
        self,
        settings: Settings = SETTINGS,
        late_s: float = 0.003,
        begin: float = BEGIN,
        last: int = 0,
        earlier: Iterable[a.StartRecord] = (),
    ) -> None:
        self.world = Obliging()
        super().__init__(making(settings)(begin, last, earlier), begin, self.world)
        self.steps: list[Step] = []
        self._late_s = late_s

    def tell(self, event: e.AnyEvent) -> list[a.AnyAction]:
        made = super().tell(event)
        if not isinstance(event, e.LogGrew) and (made or not isinstance(event, e.Ticked)):
            self.steps.append(Step(self.now, WALL + self.now, event, tuple(made)))
        return made

    def until(self, end: float) -> Any:
        for _ in super().until(end):
            pass

    def log(self, *texts: str) -> None:
        """The present attempt writes lines."""
        number = self.server.snapshot().attempt
        lines = LineCutter().feed("".join(f"{text}\n" for text in texts).encode())
        for event in LogReader(PROFILE, number).read(lines):
            self.tell(event)

    def ready(self) -> None:
        """The present attempt answers its probes from now on."""
        self.log(READY)
        self.world.health = e.ProbeOutcome.OK
        self.until(self.now + 1.0)

    def _next(self, end: float) -> tuple[float, e.AnyEvent] | None:
        deadline = self.server.deadline()
        late = deadline + self._late_s if deadline is not None else float("inf")
        if self._queue and self._queue[0][0] <= min(end, late):
            when, _, event = heapq.heappop(self._queue)
            return max(self.now, when), event
        return (max(late, self.now + 1e-3), e.Ticked()) if late <= end else None


def stalled_night(settings: Settings = SETTINGS) -> Night:
    """One attempt that hangs in its weights until it is ended, and one that becomes ready and is stopped."""
    night = Night(settings)
    night.tell(e.StartRequested("autostart"))
    night.until(BEGIN + 5)
    night.log(LOADING)
    night.until(BEGIN + 5 + 100 + 8)
    night.log(LOADING, CAPTURING)
    night.until(night.now + 10)
    night.ready()
    night.until(night.now + 30)
    night.tell(e.StopRequested("root"))
    night.until(night.now + 10)
    return night
