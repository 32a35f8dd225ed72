"""Ends a server whose group restarts together, because another one of it has failed: one budget, one pause for all."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.core.desk import Desk
from supervisor.core.ending import Ender
from supervisor.core.lifecycle import GIVEN_UP, State
from supervisor.core.restart import Disposition, Next
from supervisor.events import MateFailed


class Mates:
    """One per server. `claim` begins what a disposition says, from a state of waiting."""

    def __init__(self, desk: Desk, ender: Ender, claim: Callable[[Disposition], None]) -> None:
        self._desk = desk
        self._ender = ender
        self._claim = claim

    def failed(self, event: MateFailed) -> None:
        """Its failure is ours: counted in our budget, and followed by what follows it there.

        What ends by itself just now, or waits for its start already, only learns when there is to be none. While people
        work on a server nobody ends it.
        """
        desk = self._desk
        if not desk.goal_up or desk.paused or desk.state in GIVEN_UP:
            return
        follows = self._disposition(event)
        match desk.state:
            case State.STARTING | State.RUNNING:
                if follows.next is not Next.FATAL:  # as its own failure that no restart follows
                    desk.book.charge(desk.now)
                desk.next = follows
                self._ender.by_mate(follows.reason)
            case State.BACKOFF if follows.next is Next.FATAL:
                self._claim(follows)
            case _ if follows.next is Next.FATAL:
                desk.next = follows
            case _:
                pass

    def _disposition(self, event: MateFailed) -> Disposition:
        reason = f"{event.mate}, with which it restarts together, has failed: {event.reason}"
        if event.delay_s is None:
            return Disposition(Next.FATAL, reason)
        return Disposition(Next.BACKOFF, reason, self._desk.now + event.delay_s)
