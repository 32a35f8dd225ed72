"""When servers that wait will begin and be ready: the usual lengths of their starts laid onto the slots."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import msgspec

from supervisor.config.groups import Ties
from supervisor.core.fleet.ends import by_need
from supervisor.core.fleet.member import Member
from supervisor.core.lifecycle import State


class Expected(msgspec.Struct, frozen=True):
    """None: nothing tells, because one that comes before it (or it itself) has never started."""

    begin: float | None
    ready: float | None


def forecast(
    slots: int,
    ties: Mapping[str, Ties],
    members: Mapping[str, Member],
    starting: Sequence[str],
    waiting: Sequence[str],
    now: float,
    blocked: Collection[str] = (),
) -> dict[str, Expected]:
    """Of those who start and of those who wait for it, in the order in which they get a slot.

    `blocked`: something is in the way of their devices or ports, for as long as somebody likes; they hold no slot.
    """
    ready = {name: _ready(members[name], now) for name in starting}
    begin = dict.fromkeys(starting, now)
    free = sorted([*ready.values(), *[now] * (slots - len(starting))]) if slots else []
    for name in by_need(ties, waiting):
        if name in blocked:
            begin[name] = ready[name] = math.inf
            continue
        slot = free.pop(0) if free else now
        begin[name] = max([slot, *(_there(members, ready, one, now) for one in ties.get(name, Ties()).before)])
        ready[name] = begin[name] + _usual_s(members[name])
        free = sorted([*free, ready[name]]) if slots else []
    return {name: Expected(_known(begin[name]), _known(ready[name])) for name in ready}


def _there(members: Mapping[str, Member], ready: Mapping[str, float], name: str, now: float) -> float:
    """When it is no longer waited for. Of a stuck start and of one after a pause nothing is known."""
    if name in ready:
        return ready[name]
    unknown = name in members and members[name].state in (State.STARTING, State.BACKOFF)
    return math.inf if unknown else now


def _ready(one: Member, now: float) -> float:
    if one.overdue:
        return math.inf
    if one.ready_at is not None:
        return one.ready_at
    begun = one.since if one.alive else now
    return max(now, begun + _usual_s(one))


def _usual_s(one: Member) -> float:
    return math.inf if one.usual_s is None else one.usual_s


def _known(moment: float) -> float | None:
    return moment if math.isfinite(moment) else None
