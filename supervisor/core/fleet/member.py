"""What matters of a server for the starts and ends of the others."""

from __future__ import annotations

import msgspec

from supervisor.core.lifecycle import ALIVE, State
from supervisor.core.outlook import overdue, ready_at, usual
from supervisor.snapshot import ServerSnapshot

_LATE_FACTOR = 3.0  # later than usual by this, and by that: something is wrong with this start
_LATE_S = 600.0
_LATE_UNKNOWN_S = 3600.0  # of a start that nothing is known about


class Member(msgspec.Struct, frozen=True):
    """One server at one moment. `usual_s`: a usual start; `ready_at`: when the present one will be ready; `overdue`: it
    does not go as usual, and nobody knows when."""

    name: str
    state: State
    since: float = 0.0
    wanted: bool = False
    healthy: bool = False
    stalled: bool = False
    reason: str = ""
    usual_s: float | None = None
    ready_at: float | None = None
    overdue: bool = False

    @property
    def alive(self) -> bool:
        """Whether it has processes."""
        return self.state in ALIVE

    @property
    def claiming(self) -> bool:
        """Whether it waits until it may start; also while what it had is proven free for the next start."""
        return self.state is State.RECLAIMING and self.wanted

    @property
    def ending(self) -> bool:
        """Whether its processes are about to be gone."""
        return self.state in (State.DRAINING, State.STOPPING)

    def stuck(self, now: float) -> bool:
        """Whether its start has stalled, or takes longer than usual by far."""
        if self.state is not State.STARTING:
            return False
        limit_s = max(self.usual_s * _LATE_FACTOR, self.usual_s + _LATE_S) if self.usual_s else _LATE_UNKNOWN_S
        return self.stalled or now - self.since > limit_s


def member(snapshot: ServerSnapshot, now: float) -> Member:
    """What a snapshot says of it."""
    bars = usual(snapshot)
    return Member(
        name=snapshot.name,
        state=State(snapshot.lifecycle.value),
        since=snapshot.lifecycle.since,
        wanted=snapshot.goal == "up",
        healthy=snapshot.healthy,
        stalled=snapshot.verdict.value == "stalled",
        reason=snapshot.lifecycle.reason,
        usual_s=bars[-1].end_s if bars else None,
        ready_at=ready_at(snapshot, now),
        overdue=overdue(snapshot, now),
    )
