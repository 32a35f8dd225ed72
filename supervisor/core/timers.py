"""Named moments at which a server wants to be asked again; the earliest is its deadline."""

from __future__ import annotations

import enum


class Timer(enum.StrEnum):
    """What a moment is for. At most one of each kind is set."""

    SPAWN = "spawn"  # the answer to Spawn is overdue
    PROBE = "probe"  # the next probe is due
    PROBE_LOST = "probe_lost"  # the answer to Probe is overdue
    PHASE = "phase"  # the current phase has had no progress for too long
    OBSERVED = "observed"  # a learned deadline that does not act yet
    CANARY = "canary"  # an idle server is due for a small real request
    FATAL_LINE = "fatal_line"  # the engine has said that it dies, and still lives
    EVIDENCE = "evidence"  # the answer to KeepEvidence is overdue
    LEAVE = "leave"  # the answer to LeaveRouters is overdue
    COUNT = "count"  # the running requests are counted again
    DRAINED = "drained"  # running requests have had their time
    GRACE = "grace"  # the leader had its time after TERM
    KILL = "kill"  # the answer to KillTree is overdue, or a stuck tree is tried again
    CHECK = "check"  # look at the devices again
    CHECK_LOST = "check_lost"  # the answer to CheckDevices is overdue
    BACKOFF = "backoff"  # the delay before a restart is over


class Timers:
    """A small set of named moments."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: dict[Timer, float] = {}

    def set(self, timer: Timer, at: float) -> None:
        """Name the moment, replacing an earlier one of this kind."""
        self._at[timer] = at

    def cancel(self, *timers: Timer) -> None:
        """Forget moments; those that are not set do not matter."""
        for timer in timers:
            self._at.pop(timer, None)

    def clear(self) -> None:
        """Forget all moments."""
        self._at.clear()

    def at(self, timer: Timer) -> float | None:
        """When this moment is, if it is set."""
        return self._at.get(timer)

    def earliest(self) -> float | None:
        """The next moment of all."""
        return min(self._at.values(), default=None)

    def pop_due(self, now: float) -> Timer | None:
        """Take out the earliest moment that has come. One at a time: what it leads to may cancel the others."""
        ripe = [(at, timer) for timer, at in self._at.items() if at <= now]
        if not ripe:
            return None
        timer = min(ripe)[1]
        del self._at[timer]
        return timer
