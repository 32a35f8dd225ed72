"""Asks who the processes are that hold device memory, and goes by the last answer when one of them cannot be asked."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.to_thread
import structlog

from supervisor import procstat
from supervisor.devices import ProcessOwner
from supervisor.edge.holders import identify

LIMIT_S = 2.0

log = structlog.get_logger()


class Owners:
    """One for the daemon. `server_of` says whose process it is, "" for none of our servers'."""

    def __init__(self, server_of: Callable[[int], str], limit_s: float = LIMIT_S) -> None:
        self._server_of = server_of
        self._limit_s = limit_s
        self._last: tuple[ProcessOwner, ...] = ()
        self._asking = False
        self._thread = anyio.CapacityLimiter(1)  # one that hangs must not use up the threads that others wait for

    async def of(self, pids: tuple[int, ...]) -> tuple[ProcessOwner, ...]:
        """Who they are; as far as a process stuck in the kernel holds up the answer, who they were at the last one.

        For one without an owner a start waits, but nothing is killed or refused because of it.
        """
        if not self._asking:  # a look that hangs is not joined by another one with every report
            with anyio.move_on_after(self._limit_s):
                self._last = await anyio.to_thread.run_sync(
                    self._ask, pids, abandon_on_cancel=True, limiter=self._thread
                )
                return self._last
            log.warning("memory holders", problem="a process does not say who it is", limit_s=self._limit_s)
        return tuple(owner for owner in self._last if owner.pid in pids and _still(owner))

    def _ask(self, pids: tuple[int, ...]) -> tuple[ProcessOwner, ...]:
        self._asking = True
        try:
            return identify(pids, self._server_of)
        finally:
            self._asking = False


def _still(owner: ProcessOwner) -> bool:
    """Whether it is the same process: this look never blocks."""
    process = procstat.read(owner.pid)
    return process is not None and process.alive and process.start_ticks == owner.start_ticks
