"""How long a start may go without progress, and what is said of it when it has gone too long."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from supervisor.actions import PhaseRecord
from supervisor.core.budgets import Budgets
from supervisor.core.history import PhaseClock
from supervisor.core.settings import Settings
from supervisor.core.vitals import Vitals
from supervisor.profile import CommandFacts
from supervisor.snapshot import StartupView

_QUIET_LEVELS = ("warning", "warn", "error", "critical", "fatal")


class Deadline(NamedTuple):
    """A moment, the phase it is about, the rule behind it (stall, idle, limit) and the patience that it stands for."""

    at: float
    phase: str
    rule: str
    allowed_s: float


class Patience:
    """One per attempt. `view` tells the start's phases as the log has them now."""

    def __init__(
        self,
        begun: float,
        settings: Settings,
        budgets: Budgets,
        facts: CommandFacts,
        vitals: Vitals,
        view: Callable[[], StartupView],
    ) -> None:
        self.blind = _hidden(facts)  # why the log tells no phases, "" when it does
        self._begun = begun
        self._settings = settings
        self._budgets = budgets
        self._vitals = vitals
        self._view = view
        self._clock = PhaseClock(view().phase, begun)
        self._pace = self._clock.pace(budgets.usual_s)

    def progress(self, now: float) -> None:
        """Something has moved, in the log or besides it."""
        self._clock.progress(self._view().phase, now)
        self._pace = self._clock.pace(self._budgets.usual_s)

    def last_progress(self) -> float:
        """The last recognised progress, of the log or besides it; the launch at the earliest."""
        return max(self._begun, self._view().last_progress, self._vitals.side_progress_at() or 0.0)

    def phases(self, now: float) -> tuple[PhaseRecord, ...]:
        """How long each phase took so far, for the starts after this one."""
        return self._clock.records(now)

    def stall_at(self) -> Deadline:
        """When the start is called stalled, and by which rule: the earliest of silence, idle silence and the limit."""
        view, moved = self._view(), self.last_progress()
        if self.blind:
            return self._blind_deadline(view.phase, moved)
        limit = self._budgets.limit(view.phase, self._pace)
        candidates = [
            Deadline(moved + limit.stall_s, view.phase, "stall", limit.stall_s),
            Deadline(max(self._begun, view.since) + limit.limit_s, view.phase, "limit", limit.limit_s),
        ]
        if self._vitals.known:
            quiet = max(moved, self._vitals.active_at() or self._begun)
            candidates.append(Deadline(quiet + limit.idle_s, view.phase, "idle", limit.idle_s))
        return min(candidates, key=lambda one: one.at)

    def _blind_deadline(self, phase: str, moved: float) -> Deadline:
        """Without a log nobody knows the phase or its progress: only processes that do nothing for long speak."""
        if not self._vitals.known:
            return Deadline(math.inf, phase, "idle", math.inf)
        idle_s = self._settings.blind_idle_s
        return Deadline(max(moved, self._vitals.active_at() or self._begun) + idle_s, phase, "idle", idle_s)

    def observed_stall_at(self) -> float | None:
        """When a learned deadline that does not act yet would have called the start stalled."""
        if self.blind:
            return None
        stall_s = self._budgets.observed_stall_s(self._view().phase, self._pace)
        return None if stall_s is None else self.last_progress() + stall_s

    def stall_reason(self, now: float) -> str:
        """Phase, for how long, how long is allowed and usual, what the processes do, which ranks hold the others up.

        A log tells of those that print. Who is stopped or stuck may be another one, and is the first to look at.
        """
        due, view = self.stall_at(), self._view()
        if due.rule == "limit":
            what = f"not done after {now - max(self._begun, view.since):.0f} s, {due.allowed_s:.0f} s are allowed"
        else:
            silent = f"no progress for {now - self.last_progress():.0f} s"
            idle = " and the processes are idle" if due.rule == "idle" else ""
            what = f"{silent}{idle}, {due.allowed_s:.0f} s are allowed"
        who = view.laggard or (f"all {len(view.ranks)} ranks are in it" if len(view.ranks) > 1 else "")
        where = f"blind ({self.blind})" if self.blind else f"stalled in {due.phase}"
        parts = (f"{where}: {what}", self._budgets.usual(due.phase), who, self._standing_still())
        return "; ".join(part for part in parts if part)

    def _standing_still(self) -> str:
        """Who is stopped, or has been in the kernel for longer than any disk read takes."""
        stuck_s = self._settings.serving.stuck_s
        still = (one for one in self._vitals.standstills() if one.process.state != "D" or one.lasted_s >= stuck_s)
        return ", ".join(one.words for one in still)


def _hidden(facts: CommandFacts) -> str:
    """Why the log will tell no phases; "" when it will. All of an engine's markers are information lines."""
    if facts.log_level.lower() in _QUIET_LEVELS:
        return f"the command hides the log's markers: log level {facts.log_level}"
    return ""
