"""What must hold between the servers of a host: slots, needs, mates, rollings. docs/testing.md lists it.

As the bystander it judges by what is seen: who is healthy when, who is spawned, who is asked to end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from supervisor import actions as a
from supervisor import events as e
from supervisor.config import Config, ServerConfig
from supervisor.config.groups import Ties, ties
from supervisor.core.fleet.member import member
from supervisor.core.lifecycle import GIVEN_UP, State
from supervisor.core.rolling import MemberState, Roll, RollState
from tests.fleet.invariants import SPAWN_LIMIT_S, hold

if TYPE_CHECKING:
    from tests.fleet.fleet import Seat

# What a start needs is asked before its devices are looked at and its hooks run, which takes some seconds.
_LAG_S = 10.0
_MATES_END_S = 5.0
_SETTLED = (State.RUNNING, State.STOPPED, State.FATAL, State.QUARANTINED)
_PRESENT = (State.STARTING, State.RUNNING)
_FAILED = (State.FATAL.value, State.QUARANTINED.value)


class Debt(msgspec.Struct):
    """A mate that has to end, because another one has failed."""

    name: str
    attempt: int
    failed: str
    until: float


class Overseer:
    """One for the host: it outlives daemons."""

    def __init__(self, config: Config, seats: Sequence[Seat], now: Callable[[], float]) -> None:
        self._slots = config.daemon.start_slots
        self.ties = ties(config)
        self._seats = {seat.name: seat for seat in seats}
        self._now = now
        self._healthy_until: dict[str, float] = {}
        self._settled_until: dict[str, float] = {}
        self._turns: set[str] = set()  # who has been given a start and is starting
        self._debts: list[Debt] = []
        self._there_at = 0.0  # when the daemon of the moment has taken up all servers
        self._out: dict[str, int] = {}  # whom a rolling has taken out and not brought back, and its attempt then
        self._before: dict[str, ServerConfig] = {}  # the configurations when the rolling began
        self._tried: set[str] = set()  # whose start has come to a spawn since a rolling took it out
        self._coming_back: set[str] = set()  # who was stopped only to be started again
        self._answered = 0.0  # when the last rolling began of which people were told
        self._cancelled = 0.0
        self.broken = ""  # found where the shell asks, which takes what is raised for a bug of its own
        self.trusts = True  # answers come once, as the shell gives them

    # --- after every event -------------------------------------------------------------------------------------------

    def told(self, seat: Seat, event: e.AnyEvent, out: Sequence[a.AnyAction]) -> None:
        """An event has been handled."""
        if any(isinstance(action, a.Spawn) for action in out):
            self._starts(seat, event)
        if out:
            self.look_at(seat)
        if self._debts:
            self._mates_end()

    def look_at(self, seat: Seat) -> None:
        """Note that it is healthy, and settled, or until when it was; and whether it is starting still."""
        if seat.server.state is not State.STARTING:
            self._turns.discard(seat.name)
        self._note(self._healthy_until, seat.name, _healthy(seat))
        self._note(self._settled_until, seat.name, seat.server.state in _SETTLED)
        if _healthy(seat) and seat.watch.number > self._out.get(seat.name, seat.watch.number):
            del self._out[seat.name]

    def _note(self, book: dict[str, float], name: str, holds: bool) -> None:
        """inf while it holds, else until when it did."""
        if holds:
            book[name] = math.inf
        elif book.get(name) == math.inf:
            book[name] = self._now()

    # --- starts ------------------------------------------------------------------------------------------------------

    def _starts(self, seat: Seat, event: e.AnyEvent) -> None:
        """A look that nobody has answered is no reason not to start, and then nobody has been asked either."""
        if not isinstance(event, e.DevicesChecked) or not self.trusts:
            return
        now, mine = self._now(), self.ties.get(seat.name, Ties())
        self._turns.add(seat.name)
        units = {self._unit(name) for name in self._turns if not self._stuck(self._seats[name], now)}
        hold(not self._slots or len(units) <= self._slots, f"more starts than slots: {sorted(self._turns)}")
        for other in mine.requires:
            late = now - self._healthy_until.get(other, -math.inf) > _LAG_S
            hold(not late, f"{seat.name} starts without {other}, which it requires")
        for other in mine.after:
            late = now - self._settled_until.get(other, -math.inf) > _LAG_S
            hold(not late, f"{seat.name} starts before {other} is healthy or given up")

    def _stuck(self, seat: Seat, now: float) -> bool:
        return seat.seated and member(seat.snapshot(), now).stuck(now)

    def _unit(self, name: str) -> str:
        return self.ties.get(name, Ties()).gang or name

    # --- mates -------------------------------------------------------------------------------------------------------

    def announced(self, seat: Seat, change: a.Announce) -> None:
        """A lifecycle has changed."""
        mates = self.ties.get(seat.name, Ties()).mates
        if not mates or not _concerned(seat) or not _failed(seat, change):
            return
        for name in mates:
            mate = self._seats[name]
            if _owes(mate, mate.watch.number):
                limit_s = _MATES_END_S + (SPAWN_LIMIT_S * 2 if mate.watch.spawning else 0.0)
                self._debts.append(Debt(name, mate.watch.number, seat.name, self._all_there() + limit_s))

    def _mates_end(self) -> None:
        self._debts = [debt for debt in self._debts if _owes(self._seats[debt.name], debt.attempt)]
        for debt in self._debts:
            hold(self._now() <= debt.until, f"{debt.name} goes on without {debt.failed}, which has failed")

    def daemon_came_back(self, take_up_s: float) -> None:
        """What the dead one had to do is the next one's, once all servers are taken up."""
        self._there_at = self._now() + take_up_s
        for debt in self._debts:
            debt.until = self._there_at + _MATES_END_S

    def _all_there(self) -> float:
        return max(self._now(), self._there_at)

    # --- rollings ----------------------------------------------------------------------------------------------------

    def answered(self, roll: Roll) -> None:
        """People were told that it has begun."""
        self._answered = roll.begun

    def cancelled(self, roll: Roll | None) -> None:
        """People were told that nobody will be touched any more."""
        self._cancelled = roll.begun if roll is not None else 0.0

    def knows(self, roll: Roll | None) -> None:
        """What a new daemon has read."""
        begun = roll.begun if roll is not None else 0.0
        hold(begun >= self._answered, "a rolling that was answered is known to the next daemon")
        over = roll is None or roll.state is not RollState.RUNNING or bool(roll.cancelled_by)
        hold(over or begun != self._cancelled, "a cancel that was answered is known to the next daemon")

    def tried(self, name: str) -> None:
        """A start has come to a spawn, or nobody has answered one."""
        self._tried.add(name)

    def comes_back(self, names: Collection[str]) -> None:
        """These are about to be stopped, and to be started again."""
        self._coming_back |= set(names)

    def came_back(self, names: Collection[str]) -> None:
        """They have been, or cannot be."""
        self._coming_back -= set(names)

    def all_taken_up(self) -> None:
        """By a new daemon: whom the one before had stopped only to start it again is wanted up."""
        for name in self._coming_back:
            seat = self._seats[name]
            wanted = seat.facts["goal"] == "up" or seat.server.state in GIVEN_UP
            hold(wanted, f"{name} was stopped to be started again, and the daemon died")
        self._coming_back.clear()

    def taken_out(self, name: str, by: str) -> None:
        """A rolling is about to have a server ended."""
        if "rolling" not in by:
            return
        together = {name, *self.ties.get(name, Ties()).mates}
        others = {other for other in self._out if other not in together and _wanted(self._seats[other])}
        if others:
            self.broken = f"a rolling takes {name} out while {', '.join(sorted(others))} has not come back"
        if _wanted(self._seats[name]):
            self._out[name] = self._seats[name].watch.number
        self._tried -= together

    def rolling(self, server: str, before: str, after: str, reason: str) -> None:
        """A rolling has said something of itself, or of one server."""
        if not server and not before:
            self._before = {name: seat.config for name, seat in self._seats.items()}
            self._out.clear()
        if server and after == MemberState.FAILED:
            self._blamed(server, reason)
        if server and after == MemberState.ROLLED_BACK:
            for name in (server, *self.ties.get(server, Ties()).mates):
                if self._seats[name].config != self._before[name]:
                    self.broken = f"{name} has not its old configuration again after a roll-back of {server}"
        if not server and after != RollState.RUNNING:
            self._out.clear()

    def _blamed(self, server: str, reason: str) -> None:
        if "bug of the daemon" in reason:
            self.broken = reason
        alone = not self.ties.get(server, Ties()).mates
        last = reason.rpartition("with its old configuration: ")[2]
        if last.startswith("its start failed") and alone and server not in self._tried:
            self.broken = f"a rolling says of {server}, whose start has not come to a spawn: {reason}"


def _healthy(seat: Seat) -> bool:
    return seat.server.state is State.RUNNING and seat.facts["readiness"] == "success"


def _concerned(seat: Seat) -> bool:
    """While people work on a server, or want it down, its failure is nobody else's, and nobody's is its own."""
    return seat.facts["goal"] == "up" and seat.facts["maintenance"] != "on"


def _owes(seat: Seat, attempt: int) -> bool:
    return seat.server.state in _PRESENT and seat.watch.number == attempt and _concerned(seat)


def _failed(seat: Seat, change: a.Announce) -> bool:
    """Whether it has ended without anybody asking."""
    incidents = seat.server.snapshot().incidents
    over = change.after == State.RECLAIMING and change.before in (State.STOPPING, State.STARTING)
    own = bool(incidents) and incidents[-1].attempt == change.attempt
    return change.after in _FAILED or (over and own)


def _wanted(seat: Seat) -> bool:
    return seat.facts["goal"] == "up" and seat.server.state not in (State.FATAL, State.QUARANTINED)
