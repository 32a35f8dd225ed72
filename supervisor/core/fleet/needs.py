"""Whether those are there whom a server's start needs: healthy, given up, or ended with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

import msgspec

from supervisor.config.groups import Ties
from supervisor.core.fleet.member import Member
from supervisor.core.lifecycle import GIVEN_UP, State

# Whoever is asked for along with it may be told a moment later: one request follows the other.
SETTLE_S = 0.5


class Go(msgspec.Struct, frozen=True):
    """It may start."""


class Wait(msgspec.Struct, frozen=True):
    """It may not start yet; the reason names whom it waits for."""

    reason: str


class Refuse(msgspec.Struct, frozen=True):
    """It cannot start, and waiting does not help."""

    reason: str


Admission: TypeAlias = Go | Wait | Refuse


def needs(ties: Ties, members: Mapping[str, Member], held: Collection[str], waited_s: float) -> Admission:
    """`held`: who is about to be ended. `waited_s`: for how long the start has been wanted."""
    for name in ties.mates:
        if name in held or (name in members and members[name].ending):
            return Wait(f"waits for the end of {name}: group {ties.group} restarts together")
    for name in ties.requires:
        answer = _required(name, members.get(name), name in held)
        if not isinstance(answer, Go):
            return answer
    for name in ties.after:
        if name not in members:
            return Wait(f"waits for {name}, which is not there yet")
        if why := _not_settled(members[name], name in held, waited_s):
            return Wait(why)
    return Go()


def in_vain(ties: Ties, members: Mapping[str, Member]) -> bool:
    """Whether one that it requires has been given up: whatever else it waits for, its start comes to nothing."""
    return any(members[name].state in GIVEN_UP for name in ties.requires if name in members)


def _required(name: str, other: Member | None, held: bool) -> Admission:
    if other is None:
        return Wait(f"waits for {name}, which it requires and which has been removed")
    if held:
        return Wait(f"waits for {name}, which it requires and which is about to end")
    if other.healthy:
        return Go()
    if other.state in GIVEN_UP:
        return Refuse(f"not started: it requires {name}, which is {other.state}: {other.reason}")
    if not other.wanted:
        return Wait(f"waits for {name}, which it requires and which nobody wants up")
    return Wait(f"waits for {name}, which it requires and which is {_now(other)}")


def _not_settled(other: Member, held: bool, waited_s: float) -> str:
    """Why the other is neither healthy nor given up, "" when it is."""
    if held:
        return f"waits for {other.name}, which is about to end"
    if other.state in (State.RUNNING, *GIVEN_UP):
        return ""
    if other.state is State.STOPPED and (waited_s >= SETTLE_S or other.wanted):
        return ""  # it will not start by itself
    return f"waits for {other.name}, which is {_now(other)}"


def _now(other: Member) -> str:
    """In our own words: why it is so is told with the other one."""
    if other.claiming:
        return "not started yet"
    return "running, but not ready" if other.state is State.RUNNING else str(other.state)
