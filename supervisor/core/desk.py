"""What the parts of one server's decisions share: its state, its timers, its facets, and the answer being written."""

from __future__ import annotations

import math
from collections import deque

from supervisor.actions import AnyAction
from supervisor.core.attempt import Attempt
from supervisor.core.facets import Facets
from supervisor.core.lifecycle import Standing, State, Trigger
from supervisor.core.restart import Disposition, Next, RestartBook
from supervisor.core.settings import Settings
from supervisor.core.timers import Timer, Timers
from supervisor.snapshot import IncidentView

# An action whose answer is that much later than its own limit is lost; so is one that never had to be answered.
REPLY_SLACK_S = 10.0
CATCH_UP_S = 5.0  # after an absence of ours: what the server did meanwhile has been read by then
INCIDENTS_KEPT = 10


class Desk:
    """One per server. Only the server's own parts write it, and only while an event is handled."""

    def __init__(self, settings: Settings, now: float, last_attempt: int) -> None:
        self.settings = settings
        self.now = now
        self.out: list[AnyAction] = []
        self.timers = Timers()
        self.facets = Facets(now)
        self.standing = Standing()
        self.attempt: Attempt | None = None
        self.number = last_attempt
        self.tree_alive = False
        self.goal_up = False
        self.next = Disposition(Next.REST, "stopped on request")  # what follows the present attempt
        self.book = RestartBook(settings.name, settings.restart)
        self.incidents: deque[IncidentView] = deque(maxlen=INCIDENTS_KEPT)
        self.paused = False  # people work on the server: nothing is killed or started by itself
        self.late_until = -math.inf  # we were away ourselves: nothing is called late before this moment

    @property
    def state(self) -> State:
        """The lifecycle state."""
        return self.standing.state

    def do(self, action: AnyAction) -> None:
        """Add an action to the answer."""
        self.out.append(action)

    def move(self, trigger: Trigger, reason: str) -> None:
        """Fire a trigger of the table and announce the new state."""
        self.set("lifecycle", self.standing.move(trigger), reason)

    def set(self, facet: str, value: str, reason: str) -> None:
        """Change a facet; a new value is announced."""
        if announcement := self.facets.set(facet, value, reason, self.now, self.number):
            self.do(announcement)

    def after(self, timer: Timer, delay_s: float) -> None:
        """Name a moment from now on; an endless delay names none."""
        if math.isfinite(delay_s):
            self.timers.set(timer, self.now + delay_s)

    def current(self) -> Attempt:
        """The attempt that an event belongs to; before the first spawn there can be none."""
        if self.attempt is None:
            raise AssertionError("an event of an attempt came before the first spawn")
        return self.attempt
