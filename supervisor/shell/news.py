"""Tells what has happened, in the events that people follow and in the daemon's own log."""

from __future__ import annotations

import structlog

from supervisor import __version__
from supervisor.actions import Announce
from supervisor.shell import clock
from supervisor.shell.eventlog import EventLog
from supervisor.shell.hub import Hub
from supervisor.shell.upgrade.handover import Handover
from supervisor.snapshot import RouterView

log = structlog.get_logger()

_ALL_WRITTEN = "all that the next daemon must know is on disk again"
_LOGGED = ("lifecycle", "verdict", "phase", "goal")  # facets whose changes are worth a line of the daemon's log


class News:
    """One for the daemon. It wakes whoever waits for a change; for a server's own the server's loop does."""

    def __init__(self, events: EventLog, hub: Hub) -> None:
        self._events = events
        self._hub = hub

    def server(self, name: str, change: Announce) -> None:
        """A facet of a server has changed."""
        self._events.add(clock.now(), name, change.facet, change.before, change.after, change.reason, change.attempt)
        if change.facet in _LOGGED:
            log.info(change.facet, server=name, **{"from": change.before, "to": change.after}, reason=change.reason)

    def router(self, server: str, before: RouterView, now: RouterView) -> None:
        """A router has taken a server, let go of it, or cannot be asked any more."""
        self._events.add(clock.now(), server, f"router {now.name}", before.state, now.state, now.reason, 0)
        log.info("router", server=server, router=now.name, **{"from": before.state, "to": now.state}, reason=now.reason)
        self._hub.publish()

    def rolling(self, server: str, before: str, after: str, reason: str) -> None:
        """A rolling restart or update has come further, which has a log line of its own."""
        self._events.add(clock.now(), server, "rolling", before, after, reason, 0)
        self._hub.publish()

    def state(self, problem: str) -> None:
        """The disk of the state directory refuses or does not answer; "": all is written again."""
        if problem:
            log.warning("state", problem=problem)
        else:
            log.info("state", reason=_ALL_WRITTEN)
        written = "unwritten" if problem else "written"
        self._events.add(clock.now(), "", "state", "", written, problem or _ALL_WRITTEN, 0)
        self._hub.publish()

    def upgrade(self, left: Handover) -> None:
        """This code has taken over from another one, or goes on because the other one could not be executed."""
        if left.problem:
            log.error("upgrade failed", problem=left.problem, by=left.by)
        else:
            log.info("upgraded", before=left.before, after=__version__, by=left.by)
        self._events.add(clock.now(), "", "upgrade", left.before, __version__, left.problem or left.by, 0)
