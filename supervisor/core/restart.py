"""Whether, when and how an ended attempt is followed by another: budget, backoff, cause."""

from __future__ import annotations

import enum
from zlib import crc32

import msgspec

from supervisor.config import CauseAction
from supervisor.core.clues import NO_EVIDENCE
from supervisor.core.settings import CauseRule, RestartSettings
from supervisor.saved import SavedBook
from supervisor.snapshot import DiagnosisView

_SURE = 0.7
_LEAST_REFUSED_S = 1.0  # what is tried without end is not tried without pause, whatever the backoff


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
    by_itself: bool = False  # a start that the policy has decided upon and that nobody has asked for


class Ending(msgspec.Struct, frozen=True):
    """How one attempt ended, as the policy needs it."""

    attempt: int
    at: float
    diagnosis: DiagnosisView
    serving_s: float = 0.0  # how long it had been ready; 0 = never
    stage_order: int = 0  # how far the start came, later stages being larger
    permanent: bool = False  # the command cannot even be executed
    host_refused: bool = False  # the host could not start it for now: nothing of the server ran
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

    def save(self) -> SavedBook:
        """For the next daemon."""
        return SavedBook(tuple(self._failures), self._streak, self._cause, self._same_cause, self._furthest, self.total)

    def restore(self, saved: SavedBook) -> None:
        """Go on counting where an earlier daemon stopped."""
        self._failures = list(saved.failures)
        self._streak, self._cause, self._same_cause = saved.streak, saved.cause, saved.same_cause
        self._furthest, self.total = saved.furthest, saved.total

    def forgive(self) -> None:
        """An operator took over: start with a full budget and no streak."""
        self._failures.clear()
        self._streak = 0
        self._same_cause = 0
        self._cause = ""
        self._furthest = -1

    def charge(self, now: float) -> None:
        """A failure of another server that this one restarts together with."""
        self._failures.append(now)
        self.total += 1

    def remaining(self, now: float) -> int:
        """How many restarts the budget still allows within the window."""
        self._forget(now)
        return max(0, self._settings.budget - len(self._failures))

    def decide(self, end: Ending) -> Disposition:
        """What follows a failure. Counts it; call once per ended attempt that nobody asked to end."""
        self._count(end)
        return self._refusal(end) or self._by_cause(end) or self._by_budget(end) or self._again(end)

    def _refusal(self, end: Ending) -> Disposition | None:
        if end.permanent:
            return Disposition(Next.FATAL, end.summary)
        if self._settings.budget == 0:
            return Disposition(Next.FATAL, f"{end.summary}; restarts are switched off")
        return None

    def _by_cause(self, end: Ending) -> Disposition | None:
        """The rule of the class, and the same class again and again without getting further."""
        cause, rule = end.diagnosis.cause, self._rule(end)
        remedy = f": {end.diagnosis.remedy}" if end.diagnosis.remedy else ""
        match rule.action:
            case CauseAction.FATAL:
                return Disposition(Next.FATAL, f"{cause}: a restart cannot help{remedy}")
            case CauseAction.QUARANTINE:
                return Disposition(Next.QUARANTINE, f"{cause}{remedy}")
            case _ if self._same_cause >= self._settings.same_cause_limit:
                what = cause or end.summary
                return Disposition(Next.QUARANTINE, f"{what} {self._same_cause} times without getting further{remedy}")
            case _:
                return None

    def _rule(self, end: Ending) -> CauseRule:
        rule = self._settings.rules.get(end.diagnosis.cause, CauseRule())
        if rule.told:
            return rule
        # The answer may differ from its class (port taken: a race, or a second server). Confidence guards against a
        # fatal verdict on a guess: a wrong "no" leaves a server down all night.
        hopeless = end.diagnosis.restart == "no" and end.diagnosis.confidence >= _SURE and end.serving_s == 0
        return CauseRule(CauseAction.FATAL if hopeless else CauseAction.RETRY, rule.backoff_factor)

    def _by_budget(self, end: Ending) -> Disposition | None:
        s = self._settings
        if len(self._failures) <= s.budget:
            return None
        return Disposition(Next.FATAL, f"{s.budget} restarts within {s.window_s:.0f} s spent; last: {end.summary}")

    def _again(self, end: Ending) -> Disposition:
        self.total += 1
        delay_s = min(self._settings.backoff_max_s, self.delay_s(end.attempt) * self._rule(end).backoff_factor)
        if end.host_refused:
            due = end.at + max(_LEAST_REFUSED_S, delay_s)
            return Disposition(Next.BACKOFF, f"{end.summary}; tried again, however often", due)
        cause = f" ({end.diagnosis.cause})" if end.diagnosis.cause not in ("", NO_EVIDENCE) else ""
        reason = f"{end.summary}{cause}; restart {len(self._failures)}"
        return Disposition(Next.BACKOFF, reason, end.at + delay_s)

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
        self._streak += 1
        if end.host_refused:
            return  # a full disk or a lack of processes says nothing about the server, and must not leave it down
        self._failures.append(end.at)
        further = end.stage_order > self._furthest or end.serving_s > 0
        same = end.diagnosis.cause == self._cause and bool(self._cause) and not further
        self._same_cause = self._same_cause + 1 if same else 1
        self._cause = end.diagnosis.cause
        self._furthest = max(self._furthest, end.stage_order)

    def _forget(self, now: float) -> None:
        self._failures = [at for at in self._failures if now - at < self._settings.window_s]
