"""Waits until what a server needs of the host is free: its devices' memory and its ports, or that they are back."""

from __future__ import annotations

import re
from collections.abc import Callable

from supervisor.actions import Announce, CheckDevices
from supervisor.core.claims import Answer, weigh
from supervisor.core.desk import REPLY_SLACK_S, Desk
from supervisor.core.lifecycle import State, Trigger
from supervisor.core.timers import Timer
from supervisor.events import DevicesChecked

_WITHOUT_LIMIT = "it starts when that is free, without a limit: end what is in the way, or stop this server"
_NUMBER = re.compile(r"[0-9.]+")


class Claimer:
    """Asks, again and again, and calls `proceed(note)` when the way is free or nobody can tell."""

    def __init__(self, desk: Desk, wants_start: Callable[[], bool], proceed: Callable[[str], None]) -> None:
        self._desk = desk
        self._wants_start = wants_start
        self._proceed = proceed
        self._since = 0.0
        self.asking = False  # a look is on its way
        self.dirty = ""  # why the last answer was no
        self._delay_s = 0.0
        self._told = ""  # who is in the way, as the last event said
        self.asked_to_start = False  # whether the last look was for a start
        self.force = False  # somebody wants it started whatever the preflight finds, until he asks for something else

    def look(self) -> None:
        """Begin the wait."""
        self._since = self._desk.now
        self._told = ""
        self._delay_s = self._desk.settings.reclaim.recheck_s
        self.ask()

    def ask(self) -> None:
        """Look once."""
        self.asking = True
        self.asked_to_start = self._wants_start()
        self._desk.after(Timer.CHECK_LOST, REPLY_SLACK_S)
        self._desk.do(CheckDevices(self._desk.number, self.asked_to_start, self.force and self.asked_to_start))

    def answered(self, event: DevicesChecked) -> None:
        """The look's answer."""
        desk = self._desk
        if desk.state is not State.RECLAIMING or not self.asking:
            return
        self.asking = False
        self.dirty = event.reason if event.clean is False else ""
        desk.timers.cancel(Timer.CHECK_LOST)
        match weigh(event, starting=self._wants_start(), waited_long=self._waited_long()):
            case Answer.PROCEED:
                if event.clean and event.devices and desk.attempt:
                    desk.attempt.stop.memory_back(desk.now)
                self._proceed(event.reason)
            case Answer.WAIT:
                self._later(event.reason)
            case Answer.WAIT_FOR_OTHERS if event.waiting:
                self._since = desk.now
                self._later(event.reason, event.again_s)
            case Answer.WAIT_FOR_OTHERS:
                self._since = desk.now
                self._wait_for(f"{event.reason}; {_WITHOUT_LIMIT}", event.again_s)
            case Answer.GIVE_UP:
                desk.move(Trigger.GIVE_UP, event.reason)
            case Answer.ISOLATE:
                waited = f"not free after {desk.now - self._since:.0f} s: " if not event.quarantined else ""
                desk.move(Trigger.ISOLATE, f"{waited}{event.reason}")

    def _wait_for(self, reason: str, again_s: float | None) -> None:
        """Somebody who is none of ours is in the way, for as long as he likes: an event tells who, once for each."""
        who = _NUMBER.sub("", reason)  # how much he holds changes with every look
        if who != self._told:
            self._told = who
            self._desk.do(Announce("start", "", "waiting", reason, self._desk.number))
        self._later(reason, again_s)

    def unanswered(self) -> None:
        """No answer at all. What was dirty is not taken for clean; else not knowing is no reason to wait."""
        self.asking = False
        reason = f"{self.dirty}; the last look was not answered"
        if self.dirty and not self._wants_start() and self._waited_long():
            self._desk.move(Trigger.ISOLATE, reason)
        elif self.dirty:
            self._later(reason)
        else:
            self._proceed("nobody could tell whether the devices are free")

    def _waited_long(self) -> bool:
        return self._desk.now - self._since >= self._desk.settings.reclaim.own_limit_s

    def _later(self, reason: str, again_s: float | None = None) -> None:
        desk = self._desk
        desk.set("lifecycle", desk.state, reason)
        if again_s is not None:
            desk.after(Timer.CHECK, again_s)
            return
        desk.after(Timer.CHECK, self._delay_s)
        self._delay_s = min(desk.settings.reclaim.recheck_max_s, self._delay_s * 1.5)
