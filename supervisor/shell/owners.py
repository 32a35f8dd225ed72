"""Asks who the processes are that hold device memory, and goes by the last answer when one of them cannot be asked."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from supervisor import procstat
from supervisor.devices import ProcessOwner
from supervisor.edge.holders import identify
from supervisor.threads import Threads

LIMIT_S = 2.0

log = structlog.get_logger()


class Owners:
    """One for the daemon. `server_of` says whose process it is, "" for none of our servers'."""

    def __init__(self, server_of: Callable[[int], str], limit_s: float = LIMIT_S) -> None:
        self._server_of = server_of
        self._limit_s = limit_s
        self._last: tuple[ProcessOwner, ...] = ()
        self._threads = Threads("a process that holds device memory")

    async def of(self, pids: tuple[int, ...]) -> tuple[ProcessOwner, ...]:
        """Who they are; as far as a process stuck in the kernel holds up the answer, who they were at the last one.

        For one without an owner a start waits, but nothing is killed or refused because of it.
        """
        if not self._threads.hang():  # told once, not with every report
            try:
                self._last = await self._threads.run(identify, pids, self._server_of, limit_s=self._limit_s)
            except TimeoutError:
                log.warning("memory holders", problem="a process does not say who it is", limit_s=self._limit_s)
            else:
                return self._last
        return tuple(owner for owner in self._last if owner.pid in pids and _still(owner))


def _still(owner: ProcessOwner) -> bool:
    """Whether it is the same process: this look never blocks."""
    process = procstat.read(owner.pid)
    return process is not None and process.alive and process.start_ticks == owner.start_ticks
