"""Lets people work on a server: while it is paused nothing is killed or started by itself; what would be is counted.

A request of a person is carried out all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from supervisor.core.desk import Desk
from supervisor.core.lifecycle import State, Trigger
from supervisor.core.restart import Disposition, Next
from supervisor.core.watching import Watcher
from supervisor.saved import SavedServer

FACET = "maintenance"
_COUNTED = re.compile(r"; restart \d+$")  # of a restart that does not come


class Maintenance:
    """One per server. `relaunch(reason)` begins the start that was held back."""

    def __init__(self, desk: Desk, watcher: Watcher, relaunch: Callable[[str], None]) -> None:
        self._desk = desk
        self._watcher = watcher
        self._relaunch = relaunch

    def pause(self, by: str) -> None:
        """From now on; a start that is due after a pause of its own is held back as well."""
        desk, reason = self._desk, f"pause asked by {by}"
        desk.paused = True
        desk.set(FACET, "on", reason)
        if desk.state is State.BACKOFF:
            desk.timers.clear()
            desk.move(Trigger.CANCEL, f"{reason}; before: {desk.facets.view('lifecycle').reason}")

    def resume(self, by: str, *, wanted_up: bool) -> None:
        """Judge again, after a moment in which news are taken in; start what was held back."""
        desk, reason = self._desk, f"resume asked by {by}"
        if not desk.paused:
            return
        desk.paused = False
        desk.set(FACET, "off", reason)
        self._watcher.judge_again()
        if desk.state is State.STOPPED and wanted_up:
            self._relaunch(reason)

    def restore(self, saved: SavedServer, now: float) -> None:
        """As it was before the daemon came back."""
        self._desk.paused = saved.paused
        if saved.paused:
            self._desk.facets.resume(FACET, "on", saved.paused_reason, saved.paused_since or now)


def held(desk: Desk, decision: Disposition) -> Disposition:
    """What follows a failure while paused: the start that the policy wants is left to `resume`."""
    if not desk.paused or not (decision.next is Next.BACKOFF or decision.by_itself):
        return decision
    return Disposition(Next.REST, f"paused, so not started again: {_COUNTED.sub('', decision.reason)}", desk.now)
