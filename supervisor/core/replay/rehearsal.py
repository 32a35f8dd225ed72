"""Plays one server in virtual time: scripted events, ticks at its deadlines, the answers of an obliging world."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import msgspec

from supervisor.actions import (
    AnyAction,
    AskCanary,
    CheckDevices,
    KeepEvidence,
    KillTree,
    Probe,
    SignalTree,
    Spawn,
)
from supervisor.core.server import Server
from supervisor.events import (
    AnyEvent,
    CanaryAnswered,
    DevicesChecked,
    EvidenceKept,
    Exited,
    Listener,
    Probed,
    ProbeOutcome,
    Spawned,
    Ticked,
    TreeEmptied,
)

_LEAST_STEP_S = 1e-3
_PID = 1


class Decision(msgspec.Struct, frozen=True):
    """One action and the moment at which it was decided."""

    at: float
    action: AnyAction


# What the world makes of an action: events, each after a delay in seconds.
Answers: TypeAlias = Callable[[AnyAction], Iterable[tuple[float, AnyEvent]]]


class Obliging:
    """A world in which everything that is asked for works at once; `health` is what probes see."""

    def __init__(self, health: ProbeOutcome = ProbeOutcome.REFUSED) -> None:
        self.health = health

    def __call__(self, action: AnyAction) -> Iterator[tuple[float, AnyEvent]]:
        """The answers to one action."""
        match action:
            case Spawn():
                yield 0.0, Spawned(action.attempt, _PID)
            case Probe():
                yield 0.0, Probed(action.attempt, self.health, listener=Listener.OURS)
            case CheckDevices():
                yield 0.0, DevicesChecked(action.attempt, True)
            case KeepEvidence():
                yield 0.2, EvidenceKept(action.attempt, "")
            case SignalTree():
                yield 0.5, Exited(action.attempt, -action.signal)
            case KillTree():
                yield 0.1, TreeEmptied(action.attempt)
            case AskCanary():
                yield 0.1, CanaryAnswered(action.attempt, True)
            case _:
                return


class Rehearsal:
    """One server and its clock. What is due at the same moment comes in the order in which it was told."""

    def __init__(self, server: Server, now: float, answers: Answers) -> None:
        self.server = server
        self.now = now
        self.decisions: list[Decision] = []
        self._answers = answers
        self._queue: list[tuple[float, int, AnyEvent]] = []
        self._order = itertools.count()

    def at(self, when: float, event: AnyEvent) -> None:
        """Script an event for later."""
        heapq.heappush(self._queue, (when, next(self._order), event))

    def tell(self, event: AnyEvent) -> list[AnyAction]:
        """Deliver an event now; the decisions it led to."""
        made = self.server.handle(event, self.now)
        for action in made:
            self.decisions.append(Decision(self.now, action))
            self.answer(action)
        return made

    def answer(self, action: AnyAction) -> None:
        """Let the world answer an action that was decided elsewhere."""
        for delay_s, event in self._answers(action):
            self.at(self.now + delay_s, event)

    def until(self, end: float) -> Iterator[list[AnyAction]]:
        """Let time pass up to `end`; the decisions of each event. Stop asking, and time stands still there."""
        while (step := self._next(end)) is not None:
            self.now, event = step
            yield self.tell(event)
        self.now = max(self.now, end)

    def _next(self, end: float) -> tuple[float, AnyEvent] | None:
        """What comes next. What has happened goes before what is due, as in the daemon's loop."""
        deadline = self.server.deadline()
        if self._queue and self._queue[0][0] <= (end if deadline is None else min(end, deadline)):
            when, _, event = heapq.heappop(self._queue)
            return max(self.now, when), event
        if deadline is None or deadline > end:
            return None
        return tick_at(deadline, self.now), Ticked()


def tick_at(deadline: float, now: float) -> float:
    """When its tick comes: a deadline that has passed without being answered must not hold the clock."""
    return deadline if deadline > now else now + _LEAST_STEP_S
