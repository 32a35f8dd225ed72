"""The facets of a server: values with a since and a reason, whose changes are announced once."""

from __future__ import annotations

from supervisor.actions import Announce
from supervisor.snapshot import FacetView

FACETS = ("goal", "lifecycle", "phase", "verdict", "startup", "readiness", "liveness", "maintenance")


class Facets:
    """Current value of each facet."""

    def __init__(self, now: float) -> None:
        self._views = dict.fromkeys(FACETS, FacetView("unknown", now))
        self._views["goal"] = FacetView("down", now)
        self._views["lifecycle"] = FacetView("stopped", now, "never started")
        self._views["phase"] = FacetView("", now)
        self._views["maintenance"] = FacetView("off", now)

    def view(self, facet: str) -> FacetView:
        """The facet's value, since and reason."""
        return self._views[facet]

    def set(self, facet: str, value: str, reason: str, now: float, attempt: int) -> Announce | None:
        """Change a facet. A new value is announced; a new reason alone is only remembered."""
        before = self._views[facet]
        if before.value == value:
            if before.reason != reason:
                self._views[facet] = FacetView(value, before.since, reason)
            return None
        self._views[facet] = FacetView(value, now, reason)
        return Announce(facet, before.value, value, reason, attempt)

    def resume(self, facet: str, value: str, reason: str, since: float) -> None:
        """Take up a value that an earlier daemon has announced already."""
        self._views[facet] = FacetView(value, since, reason)
