"""What comes before a serving server is asked to end: it leaves its routers, and its running requests are waited for.

Without a router the signal comes first: the engine's own 503 is then all that tells clients to go elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.actions import CountRequests, LeaveRouters
from supervisor.core.desk import REPLY_SLACK_S, Desk
from supervisor.core.lifecycle import State
from supervisor.core.timers import Timer
from supervisor.events import RequestsCounted, RoutersLeft
from supervisor.saved import SavedDrain
from supervisor.snapshot import DrainView

LEAVE, REQUESTS = "leave", "requests"
_RECOUNT_S = 0.5
# What a router had chosen a server for before it let go may still be on its way: two looks must find nothing.
_CALM_LOOKS = 2
_UNKNOWN_LOOKS = 3  # a full engine may miss one


class Drainer:
    """One per server. `terminate` is called with the grace that is left, once, when nothing more is waited for."""

    def __init__(self, desk: Desk, terminate: Callable[[float], None]) -> None:
        self._desk = desk
        self._terminate = terminate
        self._plan = SavedDrain(False, 0.0, 0.0)
        self._requests: int | None = None
        self._note = ""
        self._calm = 0
        self._unknown = 0

    def begin(self, grace_s: float, *, wait: bool) -> None:
        """The server is to end. `wait`: not before its running requests have, as far as the grace allows."""
        self._plan = SavedDrain(wait, grace_s, self._desk.now + grace_s)
        self._requests, self._note, self._calm, self._unknown = None, "", 0, 0
        if self._desk.settings.stop.leave_limit_s:
            self._leave()
        else:
            self._terminate(grace_s)

    def _leave(self) -> None:
        desk = self._desk
        limit_s = desk.settings.stop.leave_limit_s
        desk.current().stop.begins(LEAVE, desk.now)
        desk.timers.clear()
        desk.after(Timer.LEAVE, limit_s + REPLY_SLACK_S)
        desk.do(LeaveRouters(desk.number, limit_s))

    def left(self, event: RoutersLeft) -> None:
        """No new requests come any more, or nobody can say so."""
        if not self._is_at(LEAVE):
            return
        self._note = event.problem
        if self._plan.wait:
            self._desk.current().stop.begins(REQUESTS, self._desk.now)
            self._desk.timers.clear()
            self._desk.timers.set(Timer.DRAINED, self._plan.until)
            self.count()
        else:
            self._terminate(self._plan.grace_s)

    def unanswered(self) -> None:
        """Nobody has said whether the routers were left."""
        self.left(RoutersLeft(self._desk.number, "nobody said whether the routers let go"))

    def count(self) -> None:
        """Look once; a look that is never answered is made again."""
        self._desk.after(Timer.COUNT, REPLY_SLACK_S)
        self._desk.do(CountRequests(self._desk.number))

    def counted(self, event: RequestsCounted) -> None:
        """The engine's own word."""
        if not self._is_at(REQUESTS):
            return
        self._requests = event.requests
        self._calm = self._calm + 1 if event.requests == 0 else 0
        self._unknown = self._unknown + 1 if event.requests is None else 0
        if self._unknown >= _UNKNOWN_LOOKS:
            self._note = f"running requests are not known: {event.reason}"
        if self._calm >= _CALM_LOOKS or self._unknown >= _UNKNOWN_LOOKS:
            self.over()
        else:
            self._desk.after(Timer.COUNT, _RECOUNT_S)

    def over(self) -> None:
        """Nothing is running, nobody can tell, or the time is over: now the engine is asked to end."""
        stop = self._desk.settings.stop
        self._terminate(max(self._plan.until - self._desk.now, stop.startup_grace_s))

    def hurry(self, grace_s: float | None) -> bool:
        """Asked again: a plain stop waits for no requests. False when the signal has been sent before."""
        desk = self._desk
        grace = desk.settings.stop.grace_s if grace_s is None else grace_s
        until = min(self._plan.until, desk.now + grace)
        wait = self._plan.wait and grace_s is not None
        if self._is_at(LEAVE):
            self._plan = SavedDrain(wait, min(grace, self._plan.grace_s), until)
        elif self._is_at(REQUESTS):
            self._plan = SavedDrain(wait, self._plan.grace_s, until)
            desk.timers.set(Timer.DRAINED, until if wait else desk.now)
        else:
            return False
        return True

    def _is_at(self, stage: str) -> bool:
        desk = self._desk
        return desk.state is State.DRAINING and desk.attempt is not None and desk.attempt.stop.stage == stage

    # --- what others may know ------------------------------------------------------------------------------------

    def view(self) -> DrainView | None:
        """What is left to do, while it drains."""
        desk = self._desk
        if desk.state is not State.DRAINING or desk.attempt is None:
            return None
        until = desk.timers.at(Timer.GRACE)
        if until is None:
            until = self._plan.until
        known = self._requests if self._requests is not None else desk.attempt.vitals.requests()
        return DrainView(known, until, self._note)

    def save(self) -> SavedDrain | None:
        """What the next daemon must know, unless the signal has been sent."""
        return self._plan if self._is_at(LEAVE) or self._is_at(REQUESTS) else None

    def resume(self, saved: SavedDrain) -> None:
        """Nobody knows what the routers have done meanwhile: they are left once more."""
        self._plan = saved
        self._leave()
