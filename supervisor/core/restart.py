"""Whether, when and how an ended attempt is followed by another: budget, backoff, cause."""

from __future__ import annotations

import enum
from zlib import crc32

import msgspec

from supervisor.core.settings import RestartSettings
from supervisor.snapshot import DiagnosisView


class Next(enum.StrEnum):
    """What follows the end of an attempt."""

    REST = "rest"
    RELAUNCH = "relaunch"
    BACKOFF = "backoff"
    FATAL = "fatal"
    QUARANTINE = "quarantine"


class Disposition(msgspec.Struct, frozen=True):
    """The decision about what follows, with the moment it is due and its reason in words."""

    next: Next
    reason: str
    due: float = 0.0


class Ending(msgspec.Struct, frozen=True):
    """How one attempt ended, as the policy needs it."""

    attempt: int
    at: float
    diagnosis: DiagnosisView
    serving_s: float = 0.0  # how long it had been ready; 0 = never
    stage_order: int = 0  # how far the start came, later stages being larger
    permanent: bool = False  # the command cannot even be executed
    summary: str = ""  # "exit -9", "stalled in verify-graph", ...


class RestartBook:
    """Memory of the failures of one server: budget within the window, length of the losing streak, repeated cause."""

    def __init__(self, name: str, settings: RestartSettings) -> None:
        self._name = name
        self._settings = settings
        self._failures: list[float] = []
        self._streak = 0
        self._cause = ""
        self._same_cause = 0
        self._furthest = -1
        self.total = 0

    def forgive(self) -> None:
        """An operator took over: start with a full budget and no streak."""
        self._failures.clear()
        self._streak = 0
        self._same_cause = 0
        self._cause = ""
        self._furthest = -1

    def remaining(self, now: float) -> int:
        """How many restarts the budget still allows within the window."""
        self._forget(now)
        return max(0, self._settings.budget - len(self._failures))

    def decide(self, end: Ending) -> Disposition:
        """What follows a failure. Counts it; call once per ended attempt that nobody asked to end."""
        self._count(end)
        cause = end.diagnosis.cause
        if end.permanent:
            return Disposition(Next.FATAL, end.summary)
        if self._cannot_help(end):
            remedy = f": {end.diagnosis.remedy}" if end.diagnosis.remedy else ""
            return Disposition(Next.FATAL, f"{cause}: a restart cannot help{remedy}")
        if self._same_cause >= self._settings.same_cause_limit:
            return Disposition(
                Next.QUARANTINE, f"{cause or end.summary} {self._same_cause} times without getting further"
            )
        if self._settings.budget == 0:
            return Disposition(Next.FATAL, f"{end.summary}; restarts are switched off")
        if len(self._failures) > self._settings.budget:
            window = f"{self._settings.window_s:.0f} s"
            return Disposition(
                Next.FATAL, f"{self._settings.budget} restarts within {window} spent; last: {end.summary}"
            )
        delay = self.delay_s(end.attempt)
        self.total += 1
        return Disposition(Next.BACKOFF, f"{end.summary}; restart {len(self._failures)}", end.at + delay)

    def delay_s(self, attempt: int) -> float:
        """Exponential backoff with a jitter that depends on name and attempt alone: a replay gives the same."""
        s = self._settings
        exponent = min(max(0, self._streak - 1), 32)
        base = min(s.backoff_max_s, s.backoff_s * s.factor**exponent)
        spread = crc32(f"{self._name}:{attempt}".encode()) / 0xFFFFFFFF * 2 - 1
        return max(0.0, min(s.backoff_max_s, base * (1 + s.jitter * spread)))

    def _count(self, end: Ending) -> None:
        if end.serving_s >= self._settings.reset_after_s:
            self.forgive()
        self._forget(end.at)
        self._failures.append(end.at)
        self._streak += 1
        further = end.stage_order > self._furthest or end.serving_s > 0
        same = end.diagnosis.cause == self._cause and bool(self._cause) and not further
        self._same_cause = self._same_cause + 1 if same else 1
        self._cause = end.diagnosis.cause
        self._furthest = max(self._furthest, end.stage_order)

    def _cannot_help(self, end: Ending) -> bool:
        # Confidence guards against a fatal verdict on a guess: a wrong "no" leaves a server down all night.
        return end.diagnosis.restart == "no" and end.diagnosis.confidence >= 0.7 and end.serving_s == 0

    def _forget(self, now: float) -> None:
        self._failures = [at for at in self._failures if now - at < self._settings.window_s]
