"""The JSON about several servers: groups, and who starts and waits for a start."""

from __future__ import annotations

import msgspec

from supervisor.api.control import Clock
from supervisor.api.wire.moments import seconds
from supervisor.core.fleet.view import FleetView


class Group(msgspec.Struct, frozen=True):
    """Servers under one name. `order` is "any" or "listed"; `together`: when one dies all are started again."""

    name: str
    members: tuple[str, ...]
    order: str
    together: bool


class Groups(msgspec.Struct, frozen=True):
    """All groups in the order of the configuration."""

    groups: tuple[Group, ...]


class Starts(msgspec.Struct, frozen=True):
    """Who starts, who waits for a start (the next first), and in how many seconds the last of them will be ready.

    `slots` is 0 without a limit. Nothing can be foretold of `unknown`: they, or those they wait for, have never started
    or are `overdue` (stalled, dead, standing still, or far later than usual); `ready_s` is that of the others, null
    when there are none.
    """

    slots: int
    starting: tuple[str, ...]
    waiting: tuple[str, ...]
    ready_s: float | None
    unknown: tuple[str, ...]
    overdue: tuple[str, ...]


def starts(fleet: FleetView, clock: Clock) -> Starts | None:
    """None while nobody starts or waits for it."""
    if not fleet.starting and not fleet.waiting:
        return None
    ready_s = None if fleet.ready_at is None else seconds(fleet.ready_at - clock.monotonic)
    return Starts(fleet.slots, fleet.starting, fleet.waiting, ready_s, fleet.unknown, fleet.overdue)
