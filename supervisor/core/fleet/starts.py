"""Decides whose start is next: needs first, then a start slot by priority and by order of asking.

Nothing is held while something else is waited for. A server asks before it looks at its devices; the slot it gets is
taken back as soon as the look finds something in its way, and then it looks first and asks for the slot afterwards. So
no slot waits for a device, and no device (the shell gives the lease back meanwhile) waits for a slot. Once it has to
wait for a slot nobody looks any more: then it has its place in line again, by when it asked first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from supervisor.config.groups import Ties
from supervisor.core.fleet.forecast import Expected, forecast
from supervisor.core.fleet.member import Member
from supervisor.core.fleet.needs import Admission, Go, Refuse, Wait, in_vain, needs
from supervisor.core.lifecycle import State
from supervisor.units import format_duration

# A question may be older than the wish to start: whoever asks after a stop gets no place, and is told so.
_NOT_WANTED = Wait("nobody wants it started any more")
_ORDINALS = ("next", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


class Rules(msgspec.Struct, frozen=True):
    """What the configuration says: slots (0: no limit), priorities, ties."""

    slots: int = 0
    priorities: dict[str, int] = {}
    ties: dict[str, Ties] = {}


class Place(msgspec.Struct):
    """One server that wants to start. `in_line`: it needs nothing but a slot. `blocked`: its devices are in the way."""

    number: int
    asked: float
    claim: float  # since when it claims: a later claim is another one
    in_line: bool = False
    blocked: bool = False
    has_slot: bool = False


class Fleet:
    """Who waits for a start; the servers themselves are told anew with every question, and never asked."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.held: set[str] = set()  # about to be ended: nobody may count on them
        self._places: dict[str, Place] = {}
        self._asked = 0

    def ask(self, name: str, members: Mapping[str, Member], now: float) -> Admission:
        """Whether the server may look at its devices in order to start. Go may take a slot for it."""
        self._sweep(members)
        if _asks_late(members.get(name)):
            return _NOT_WANTED
        place = self._place(name, members, now)
        answer = needs(self._ties(name), members, self.held, now - place.asked)
        place.in_line = isinstance(answer, Go)
        if not place.in_line:
            place.has_slot = False
            return answer
        answer = self._slot(name, place, members, now, take=not place.blocked)
        if isinstance(answer, Wait):
            place.blocked = False  # nobody looks meanwhile, and what was in its way may go: it has its place in line
        return answer

    def looked(self, name: str, members: Mapping[str, Member], now: float, *, free: bool) -> Admission:
        """What the look at its devices found, nothing in the way or something: whether it may start now."""
        self._sweep(members)
        if _asks_late(members.get(name)):
            return _NOT_WANTED if free else Go()
        place = self._place(name, members, now)
        place.blocked = not free
        if free:
            return self._slot(name, place, members, now, take=True)
        place.has_slot = False
        return Go()

    def may_be_asked_again(self, name: str, members: Mapping[str, Member]) -> bool:
        """Whether one that was refused for want of another would be so no longer."""
        one = members[name]
        return one.state is State.FATAL and one.wanted and not in_vain(self._ties(name), members)

    def line(self, members: Mapping[str, Member]) -> list[str]:
        """Those who wait for nothing but a slot, the first one first."""
        self._sweep(members)
        waiting = [(name, place) for name, place in self._places.items() if self._waits(name, place, members)]
        return [name for name, _ in sorted(waiting, key=lambda one: self._rank(*one))]

    def starting(self, members: Mapping[str, Member], now: float) -> list[str]:
        """Those who have a slot: in the heavy phases and not stuck there, or about to begin."""
        self._sweep(members)
        return [name for name, one in members.items() if self._heavy(name, one, now)]

    def waiting(self, members: Mapping[str, Member], now: float) -> list[str]:
        """Those who are to start and have no slot: the line first, then whoever waits for something else."""
        line, starting = self.line(members), self.starting(members, now)
        return [*line, *(name for name, one in members.items() if one.claiming and name not in (*line, *starting))]

    def forecast(self, members: Mapping[str, Member], now: float) -> dict[str, Expected]:
        """When each of those who are to start will begin and be ready, as far as earlier starts tell."""
        starting, waiting = self.starting(members, now), self.waiting(members, now)
        blocked = [name for name, place in self._places.items() if place.blocked]
        return forecast(self.rules.slots, self.rules.ties, members, starting, waiting, now, blocked)

    # --- slots -------------------------------------------------------------------------------------------------------

    def _slot(self, name: str, place: Place, members: Mapping[str, Member], now: float, *, take: bool) -> Admission:
        if place.has_slot or not self.rules.slots:
            place.has_slot = place.has_slot or take
            return Go()
        taken = {self._unit(other): other for other in self.starting(members, now)}
        ahead = self._ahead(name, place, members, taken)
        if self._unit(name) not in taken and len(taken) + len(ahead) >= self.rules.slots:
            return Wait(self._why(name, list(taken.values()), len(ahead), members, now))
        place.has_slot = take
        return Go()

    def _ahead(self, name: str, place: Place, members: Mapping[str, Member], taken: Mapping[str, str]) -> list[str]:
        """Units that come first, and want a slot of their own."""
        own = self._rank(name, place)
        before = (other for other in self.line(members) if self._rank(other, self._places[other]) < own)
        units = dict.fromkeys(self._unit(other) for other in before)
        return [unit for unit in units if unit not in taken and unit != self._unit(name)]

    def _heavy(self, name: str, one: Member, now: float) -> bool:
        if one.state is State.STARTING:
            return not one.stuck(now)
        return one.claiming and name in self._places and self._places[name].has_slot

    def _waits(self, name: str, place: Place, members: Mapping[str, Member]) -> bool:
        return place.in_line and not place.blocked and not place.has_slot and name in members

    def _unit(self, name: str) -> str:
        """What counts for one slot: a server, or a group whose members may wait for each other within their start."""
        gang = self._ties(name).gang
        return f"g:{gang}" if gang else name

    def _rank(self, name: str, place: Place) -> tuple[int, int]:
        return -self.rules.priorities.get(name, 0), place.number

    # --- who is there ------------------------------------------------------------------------------------------------

    def _place(self, name: str, members: Mapping[str, Member], now: float) -> Place:
        if name not in self._places:
            self._asked += 1
            self._places[name] = Place(self._asked, now, members[name].since if name in members else now)
        return self._places[name]

    def _sweep(self, members: Mapping[str, Member]) -> None:
        """Forget whoever does not want to start any more, or has started since he asked."""
        self._places = {name: place for name, place in self._places.items() if _claims(members.get(name), place)}

    def _ties(self, name: str) -> Ties:
        return self.rules.ties.get(name, Ties())

    # --- words -------------------------------------------------------------------------------------------------------

    def _why(self, name: str, starting: Iterable[str], ahead: int, members: Mapping[str, Member], now: float) -> str:
        names = [*starting]
        who = f": {', '.join(names)} {'is' if len(names) == 1 else 'are'} starting" if names else ""
        place = _ORDINALS[ahead] if ahead < len(_ORDINALS) else f"number {ahead + 1}"
        expected = self.forecast(members, now).get(name)
        soon = f", {about(expected.begin - now)}" if expected is not None and expected.begin is not None else ""
        return f"waits for a start slot{who}; {place} in line{soon}"


def _asks_late(one: Member | None) -> bool:
    """Of one that is not among the servers nobody knows better."""
    return one is not None and not one.claiming


def _claims(one: Member | None, place: Place) -> bool:
    return one is not None and one.claiming and one.since == place.claim


def about(seconds: float) -> str:
    """In whole minutes, so that the text does not change all the time."""
    if seconds < 60:
        return "less than a minute"
    return f"about {format_duration(round(seconds / 60) * 60)}"


__all__ = ["Admission", "Fleet", "Go", "Place", "Refuse", "Rules", "Wait", "about"]
