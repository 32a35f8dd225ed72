"""When the next probe is made, and how thoroughly."""

from __future__ import annotations

from supervisor.actions import Probe
from supervisor.core.settings import ReadinessSettings
from supervisor.events import ProbeOutcome
from supervisor.pace import until_shared


class ProbePlan:
    """Of one attempt's probes, in their order."""

    def __init__(self, attempt: int, settings: ReadinessSettings) -> None:
        self._attempt = attempt
        self._settings = settings
        self._made = 0
        self._warming_delay_s = settings.warming_interval_s

    def next(self, *, ready: bool) -> Probe:
        """The probe to make now; while starting every good answer is identified, later every few."""
        self._made += 1
        identify = not ready or self._made % self._settings.reidentify_every == 0
        return Probe(self._attempt, self._settings.timeout_s, identify)

    def delay_s(self, last: ProbeOutcome, now: float, *, ready: bool) -> float:
        """How long to wait before the next probe, by what the last one saw.

        Servers are asked at moments that they share, so that one wake-up of the daemon serves them all. Only a 503 of a
        warming server comes at once and ends within seconds, so it is asked ten times a second at first; the delay
        grows, since each answer costs the engine a line in its log.
        """
        if ready:
            return until_shared(self._settings.interval_s, now)
        if last is not ProbeOutcome.UNAVAILABLE:
            return until_shared(self._settings.refused_interval_s, now)
        delay = self._warming_delay_s
        self._warming_delay_s = min(self._settings.warming_interval_max_s, delay * 1.15)
        return delay
