"""Finds the cause behind the matches of one attempt's log: the culprit's message, not its victims'."""

from __future__ import annotations

import msgspec

from supervisor.events import LineMatched
from supervisor.profile import Profile, Signature
from supervisor.snapshot import DiagnosisView

_NO_EVIDENCE = "insufficient-evidence"
_KEPT = 400
_VICTIM_PENALTY = 40


class Sighting(msgspec.Struct, frozen=True):
    """A signature seen in the log, at the stage its rank was in."""

    signature: Signature
    match: LineMatched
    stage: str
    cause: str

    @property
    def weight(self) -> int:
        """What it says about the cause."""
        return self.signature.weight - (_VICTIM_PENALTY if self.signature.victim else 0)


class CauseFinder:
    """Collects what points to a cause; `conclude` weighs it."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._signatures = {signature.name: signature for signature in profile.signatures}
        self._sightings: list[Sighting] = []

    def observe(self, match: LineMatched, stage: str = "") -> None:
        """Takes one match in; `stage` is where its rank was."""
        signature = self._signatures.get(match.rule)
        if signature is None or len(self._sightings) >= _KEPT:
            return
        if signature.stages and stage not in signature.stages:
            return
        cause = signature.by_stage.get(stage, signature.cause)
        self._sightings.append(Sighting(signature, match, stage, cause))

    def conclude(self, exit_code: int | None, signals_sent: frozenset[int], alive: bool, stage: str) -> DiagnosisView:
        """The most telling sighting; among equals the first."""
        best = max(self._sightings, key=lambda one: one.weight, default=None)
        if best is None:
            return self._view(_NO_EVIDENCE, 0.1)
        return self._view(best.cause, min(0.99, best.weight / 100), best)

    def _view(self, cause: str, confidence: float, sighting: Sighting | None = None) -> DiagnosisView:
        known = self._profile.cause(cause)
        signature = sighting.signature if sighting else None
        return DiagnosisView(
            cause=cause,
            restart=(signature.restart if signature else "") or (known.restart if known else "maybe"),
            remedy=(signature.remedy if signature else "") or (known.remedy if known else ""),
            evidence_line=sighting.match.line if sighting else 0,
            evidence=sighting.match.text if sighting else "",
            confidence=confidence,
        )
