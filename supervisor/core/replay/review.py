"""Decides a recorded night anew and lays what is decided now beside what was decided then.

The recorded events are given to a fresh `Server` at their own moments, with ticks at its deadlines in between. As long
as it decides as the recorded one did, the recorded answers are the answers to its own actions. Where it ends an attempt
that went on then, or leaves one alone that was ended, the rest of that attempt tells nothing more: a world in which
everything works shows where its decision would have led, and the review goes on with the next recorded attempt.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from supervisor.actions import (
    Announce,
    AnyAction,
    CheckDevices,
    KeepEvidence,
    KillTree,
    Remember,
    SignalTree,
    Spawn,
    StartRecord,
)
from supervisor.core.lifecycle import ALIVE, RESTING, State
from supervisor.core.replay.comparison import Moment, Row, compare
from supervisor.core.replay.rehearsal import Decision, Obliging, Rehearsal, tick_at
from supervisor.core.server import Server
from supervisor.events import AnyEvent, DevicesChecked, Exited, StartRequested, Ticked, TreeEmptied

SAME_MOMENT_S = 2.0
_TICK_LATE_S = 0.5  # a tick of the daemon's own comes that much after its deadline on a busy host
# Longer than any wait for an answer: with a living attempt and nothing recorded, the daemon itself did not run.
_AWAY_S = 45.0
_LEADS_TO_S = 3600.0
_TURNS = (Spawn, KeepEvidence, SignalTree, KillTree)  # after one that only one of the two took nothing compares
_FIRST = StartRequested("autostart")
_REMEMBERED = ("goal", "lifecycle")  # what a daemon knows from one decision to the next, and a new one does not

MakeServer: TypeAlias = Callable[[float, int, Iterable[StartRecord]], Server]


class Step(msgspec.Struct, frozen=True):
    """One recorded event with the actions that were decided then."""

    at: float  # monotonic
    wall: float
    event: AnyEvent
    then: tuple[AnyAction, ...] = ()


class Section(msgspec.Struct, frozen=True):
    """A part of the record that one server was asked about without interruption."""

    attempt: int
    began: Moment
    rows: tuple[Row, ...]
    note: str = ""  # why it ends here, when the record goes on


def review(steps: Sequence[Step], make: MakeServer) -> Iterator[Section]:
    """All sections of one server's record. `make` answers a server for (now, last attempt, earlier starts)."""
    learned: list[StartRecord] = []
    for run in runs(steps):
        yield from _Review(run, make, tuple(learned)).sections()
        learned += [action.record for step in run for action in step.then if isinstance(action, Remember)]


def runs(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    """The record of each daemon: one that began anew knows nothing of what its forerunner's facets were.

    Where the forerunner had come to rest its facets are the same ones; then only the start by the daemon itself tells.
    """
    begin = 0
    facets: dict[str, str] = {}
    for index, step in enumerate(steps):
        rebooted = index > begin and step.at < steps[index - 1].at
        begins = step.event == _FIRST and facets.get("lifecycle") == State.STOPPED
        if rebooted or begins or any(_forgot(action, facets) for action in step.then):
            yield steps[begin:index]
            begin = index
            facets.clear()
        facets |= {action.facet: action.after for action in step.then if isinstance(action, Announce)}
    if begin < len(steps):
        yield steps[begin:]


def _forgot(action: AnyAction, facets: dict[str, str]) -> bool:
    if not isinstance(action, Announce) or action.facet not in _REMEMBERED:
        return False
    return facets.get(action.facet, action.before) != action.before


class _Review:
    """One daemon's record of one server."""

    def __init__(self, steps: Sequence[Step], make: MakeServer, earlier: tuple[StartRecord, ...]) -> None:
        self._steps = steps
        self._make = make
        self._earlier = earlier
        self._ticks = _next_ticks(steps)
        self._turns = [(step.at, action) for step in steps for action in step.then if isinstance(action, _TURNS)]
        self._spawns = [
            (index, action.attempt)
            for index, step in enumerate(steps)
            for action in step.then
            if isinstance(action, Spawn)
        ]
        self._offset = 0.0  # wall clock minus monotonic clock
        self._differ_about = 0  # the attempt
        self._then: list[Decision] = []
        self._now: list[Decision] = []
        self._owed: list[Decision] = []  # turns that the record took, not yet compared

    def sections(self) -> Iterator[Section]:
        """From beginning to end. Each one is followed from rest, or from the spawn of an attempt."""
        index, end = 0, len(self._steps)
        if (attempt := _midway(self._steps)) > 0:
            following = self._next_spawn(0, attempt)
            yield Section(attempt, self._moment(0), (), "the record begins in the middle of it; left out")
            index = following
        while index < end:
            server = self._fresh(index)
            begin, note = index, self._follow(server, index)
            attempt = self._differ_about if note else server.snapshot().attempt
            index = self._next_spawn(begin + 1, attempt) if note else end
            self._then = _decided(self._steps[begin:index])
            yield Section(attempt, self._moment(begin), self._compared(), note)

    def _compared(self) -> tuple[Row, ...]:
        rows = compare(self._then, self._now, self._offset)
        self._now, self._owed = [], []
        return rows

    def _moment(self, index: int) -> Moment:
        return Moment(self._steps[index].at, self._steps[index].wall)

    def _next_spawn(self, index: int, attempt: int) -> int:
        """Where the record spawns a later attempt."""
        return next((at for at, number in self._spawns if at >= index and number > attempt), len(self._steps))

    # --- one section ---------------------------------------------------------------------------------------------

    def _fresh(self, index: int) -> Server:
        """A server that stands where the record stands: at rest, or (later) about to spawn and with its answer."""
        step = self._steps[index]
        self._offset = step.wall - step.at
        if index == 0:
            return self._make(step.at, self._first_attempt(), self._earlier)
        remembered = (one.action for one in _decisions(self._steps[:index]))
        learned = [action.record for action in remembered if isinstance(action, Remember)]
        last = next(number for at, number in self._spawns if at == index) - 1
        server = self._make(step.at, last, (*self._earlier, *learned))
        server.handle(StartRequested("replay"), step.at)
        self._now = [Decision(step.at, action) for action in server.handle(DevicesChecked(last, True), step.at)]
        return server

    def _first_attempt(self) -> int:
        """The number of the last attempt before the record."""
        if self._spawns:
            return self._spawns[0][1] - 1
        looks = (action.attempt for step in self._steps for action in step.then if isinstance(action, CheckDevices))
        return next(looks, 0)

    def _follow(self, server: Server, begin: int) -> str:
        """Go on until the two differ in what becomes of an attempt; in what, or "" at the end of the record."""
        for index in range(begin, len(self._steps)):
            step = self._steps[index]
            # What ended then was ended by what was decided then: it is late enough to see whether that is missing now.
            over = isinstance(step.event, Exited | TreeEmptied)
            before = math.inf if over else step.at - SAME_MOMENT_S
            if note := self._ticks_before(server, index) or self._left_out(server, before):
                return note
            self._offset = step.wall - step.at
            self._owed += [one for one in _decisions([step]) if isinstance(one.action, _TURNS)]
            if index == begin and begin > 0:
                continue  # `_fresh` has given it
            if note := self._give(server, step.event, step.at):
                return note
        return self._left_out(server, math.inf)

    def _ticks_before(self, server: Server, index: int) -> str:
        """The ticks that the daemon's loop made before this step, as far as they are not recorded themselves."""
        step, now = self._steps[index], self._steps[max(0, index - 1)].at
        silent_s, tick = step.at - now, self._ticks[index]
        while (deadline := server.deadline()) is not None and deadline < step.at:
            if tick is not None and 0 <= tick - deadline <= _TICK_LATE_S:
                return ""
            if isinstance(step.event, Ticked) and silent_s > _AWAY_S and server.state in ALIVE:
                return ""
            now = tick_at(deadline, now)
            if note := self._give(server, Ticked(), now):
                return note
        return ""

    def _give(self, server: Server, event: AnyEvent, at: float) -> str:
        """One event; in words the turn that it led to and that the record did not take."""
        try:
            made = server.handle(event, at)
        except Exception as bug:  # noqa: BLE001 - a record with holes leads to what no daemon meets: told, and gone on
            self._differ_about = server.snapshot().attempt
            return f"the record cannot be followed here: {type(event).__name__}: {type(bug).__name__}: {bug}"
        self._now += [Decision(at, action) for action in made]
        for action in made:
            if isinstance(action, _TURNS) and not any(_same_turn(one, (at, action)) for one in self._turns):
                self._differ_about = _attempt_before(action)
                self._lead_on(server, at, made)
                return "started at another moment than then" if isinstance(action, Spawn) else "ended now, not then"
        return ""

    def _lead_on(self, server: Server, at: float, made: Sequence[AnyAction]) -> None:
        """What would have followed in a world in which everything works, up to the next start or to rest."""
        rehearsal = Rehearsal(server, at, Obliging())
        for action in made:
            rehearsal.answer(action)
        for decided in rehearsal.until(at + _LEADS_TO_S):
            if server.state in RESTING or any(isinstance(action, Spawn) for action in decided):
                break
        self._now += rehearsal.decisions

    def _left_out(self, server: Server, before: float) -> str:
        """In words the turn that the record took before that moment and the server did not take at its time."""
        while self._owed and self._owed[0].at < before:
            owed = self._owed.pop(0)
            recent = itertools.takewhile(lambda one: one.at >= owed.at - SAME_MOMENT_S, reversed(self._now))  # noqa: B023
            if not any(_same_turn((one.at, one.action), (owed.at, owed.action)) for one in recent):
                self._differ_about = _attempt_before(owed.action)
                return self._spared(server, owed.action)
        return ""

    def _spared(self, server: Server, action: AnyAction) -> str:
        if isinstance(action, Spawn):
            return f"started then, {server.state} now"
        view = server.snapshot()
        if view.deadline is None or view.start is None:
            return f"ended then, {server.state} now"
        until = Moment(view.deadline, view.deadline + self._offset).date
        return f"ended then, not now: without progress {view.start.phase} has until {until}"


def _midway(steps: Iterable[Step]) -> int:
    """The attempt in whose middle the record begins; 0 when it begins at rest."""
    for step in steps:
        attempt = getattr(step.event, "attempt", 0)
        if attempt and not isinstance(step.event, DevicesChecked):
            return int(attempt)
        if any(isinstance(action, Spawn) for action in step.then):
            break
    return 0


def _attempt_before(turn: AnyAction) -> int:
    """The attempt that the turn ends; a spawn ends the wait that came after the one before."""
    return turn.attempt - 1 if isinstance(turn, Spawn) else turn.attempt


def _same_turn(one: tuple[float, AnyAction], other: tuple[float, AnyAction]) -> bool:
    (at, action), (when, wanted) = one, other
    return abs(at - when) <= SAME_MOMENT_S and type(action) is type(wanted) and action.attempt == wanted.attempt


def _decisions(steps: Iterable[Step]) -> list[Decision]:
    return [Decision(step.at, action) for step in steps for action in step.then]


def _decided(steps: Iterable[Step]) -> list[Decision]:
    """Without what a daemon that took over said again of an attempt that it found: nothing had changed."""
    decided: list[Decision] = []
    known: dict[tuple[str, int], str] = {}
    for one in _decisions(steps):
        if isinstance(one.action, Announce):
            facet = (one.action.facet, one.action.attempt)
            if known.get(facet, one.action.before) != one.action.before and known[facet] == one.action.after:
                continue
            known[facet] = one.action.after
        decided.append(one)
    return decided


def _next_ticks(steps: Sequence[Step]) -> list[float | None]:
    """For each step the moment of the first recorded tick from it on."""
    found: list[float | None] = []
    tick: float | None = None
    for step in reversed(steps):
        tick = step.at if isinstance(step.event, Ticked) else tick
        found.append(tick)
    return found[::-1]
