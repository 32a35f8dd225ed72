"""What the probes say about a server: startup, readiness and liveness, with thresholds and holds.

One probe is one voice: nothing here kills. Refused and 503 while starting are warming, never failure, since an engine
binds its port only after its whole load and answers 503 until its own warm-up request is done.
"""

from __future__ import annotations

import enum

import msgspec

from supervisor.core.settings import ReadinessSettings
from supervisor.events import Listener, Probed, ProbeOutcome

_BEFORE = "was ready before; the next probe tells whether it is"


class Health(enum.StrEnum):
    """The field's three answers plus `held`: we know why it says no, and it is no failure."""

    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"
    HELD = "held"


class Opinion(msgspec.Struct, frozen=True):
    """The probes' opinion in one line each."""

    startup: Health = Health.UNKNOWN
    readiness: Health = Health.UNKNOWN
    liveness: Health = Health.UNKNOWN
    reason: str = "not probed yet"


class HealthBook:
    """Opinion about one attempt, from its probes in order."""

    def __init__(self, settings: ReadinessSettings, *models: str) -> None:
        self._settings = settings
        self._models = tuple(filter(None, models))  # any name by which it may answer
        self._failures = 0
        self._ready = False
        self._failing_since: float | None = None
        self._outcome = ProbeOutcome.UNKNOWN
        self.opinion = Opinion()

    @property
    def last_outcome(self) -> ProbeOutcome:
        """What the last probe saw."""
        return self._outcome

    @property
    def failing_since(self) -> float | None:
        """When the current run of failures began; None while there is none."""
        return self._failing_since

    def serve(self) -> None:
        """It has been found ready before: from now on failures count."""
        self._ready = True
        self.opinion = Opinion(Health.SUCCESS, Health.SUCCESS, Health.SUCCESS, _BEFORE)

    def observe(self, probed: Probed, now: float, *, draining: bool = False) -> Opinion:
        """Take one probe's outcome in and return the opinion it leads to."""
        self._outcome = probed.outcome
        if draining:
            self.opinion = Opinion(self.opinion.startup, Health.HELD, Health.HELD, "draining: 503 is its own answer")
        elif probed.outcome is ProbeOutcome.UNKNOWN:
            self.opinion = msgspec.structs.replace(self.opinion, reason=f"probe could not be made: {probed.detail}")
        elif self._ready:
            self.opinion = self._serving(probed, now)
        else:
            self.opinion = self._starting(probed)
        return self.opinion

    def _starting(self, probed: Probed) -> Opinion:
        doubt = _contradiction(probed, self._models)
        match probed.outcome:
            case ProbeOutcome.OK if not doubt:
                self._ready = True
                return Opinion(Health.SUCCESS, Health.SUCCESS, Health.SUCCESS, "readiness probe answered 200")
            case ProbeOutcome.OK:
                return Opinion(reason=doubt)
            case ProbeOutcome.REFUSED:
                return Opinion(reason="port not open yet")
            case ProbeOutcome.UNAVAILABLE:
                return Opinion(reason="503: warming up")
            case ProbeOutcome.TIMEOUT:
                return Opinion(reason=f"accepts, but no answer within {self._settings.timeout_s:.0f} s")
            case _:
                return Opinion(reason=f"unexpected answer {probed.status or probed.detail}")

    def _serving(self, probed: Probed, now: float) -> Opinion:
        doubt = _contradiction(probed, self._models)
        if probed.outcome is ProbeOutcome.OK and not doubt:
            self._failures = 0
            self._failing_since = None
            return Opinion(Health.SUCCESS, Health.SUCCESS, Health.SUCCESS, "readiness probe answered 200")
        self._failures += 1
        self._failing_since = now if self._failing_since is None else self._failing_since
        failed = "a probe failed" if self._failures == 1 else f"{self._failures} probes failed in a row"
        reason = f"{failed}: {doubt or _words(probed)}"
        if self._failures < self._settings.failure_threshold:
            return msgspec.structs.replace(self.opinion, reason=reason)
        long = now - self._failing_since >= self._settings.liveness_stall_s
        return Opinion(Health.SUCCESS, Health.FAILURE, Health.FAILURE if long else Health.UNKNOWN, reason)


def _contradiction(probed: Probed, models: tuple[str, ...]) -> str:
    """Why a 200 is not this server's answer; "" when nothing speaks against it."""
    if probed.listener is Listener.FOREIGN:
        return "the port belongs to a process of somebody else" + (f": {probed.detail}" if probed.detail else "")
    if models and probed.model and probed.model not in models:
        return f"another model answers: {probed.model}, not {models[0]}"
    return ""


def _words(probed: Probed) -> str:
    match probed.outcome:
        case ProbeOutcome.UNAVAILABLE:
            return "503"
        case ProbeOutcome.REFUSED:
            return "connection refused"
        case ProbeOutcome.TIMEOUT:
            return "no answer in time"
        case _:
            return f"{probed.outcome} {probed.status or ''} {probed.detail}".strip()
