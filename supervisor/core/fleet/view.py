"""Who starts, who waits for a start, and when all that can be foretold will be ready."""

from __future__ import annotations

import msgspec

from supervisor.core.fleet.member import Member
from supervisor.core.fleet.starts import Fleet
from supervisor.core.lifecycle import State


class FleetView(msgspec.Struct, frozen=True):
    """The fleet at one moment. `ready_at`: when the last of those who are to start will be ready; None: nobody starts,
    or nothing tells. `unknown`: of these nothing tells; those of them that are `overdue` are known from earlier starts.
    """

    slots: int = 0
    starting: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    ready_at: float | None = None
    unknown: tuple[str, ...] = ()
    overdue: tuple[str, ...] = ()


def view(fleet: Fleet, members: dict[str, Member], now: float) -> FleetView:
    """Those who wait for a slot come first in `waiting`, in their order."""
    starting = fleet.starting(members, now)
    stuck = [name for name, one in members.items() if one.state is State.STARTING and name not in starting]
    expected = fleet.forecast(members, now)
    known = [one.ready for one in expected.values() if one.ready is not None]
    return FleetView(
        slots=fleet.rules.slots,
        starting=(*starting, *stuck),
        waiting=tuple(fleet.waiting(members, now)),
        ready_at=max(known, default=None),
        unknown=(*(name for name, one in expected.items() if one.ready is None), *stuck),
        overdue=tuple(name for name in (*starting, *stuck) if name in stuck or members[name].overdue),
    )
