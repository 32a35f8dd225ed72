"""Talks to systemd in the daemon's name: ready, reloading, alive, and a line that sums the servers up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import anyio

from supervisor.edge.notify import Notifier
from supervisor.shell import clock
from supervisor.shell.loop import ServerLoop

STATUS_EVERY_S = 5.0
LOOP_HUNG_S = 10.0
UPGRADE_WATCHDOG_S = 60.0  # a new code that is read from a cold disk


class Service:
    """`fed` is called whenever the watchdog has been fed."""

    def __init__(self, notifier: Notifier, loops: Callable[[], Iterable[ServerLoop]], fed: Callable[[], None]) -> None:
        self._notifier = notifier
        self._loops = loops
        self._fed = fed

    @property
    def active(self) -> bool:
        """Whether systemd listens."""
        return self._notifier.active

    async def run(self) -> None:
        """The watchdog is fed only while every decision loop turns."""
        if not self._notifier.active:
            return
        watchdog_s = self._notifier.watchdog_s
        period_s = min(STATUS_EVERY_S, watchdog_s / 3) if watchdog_s else STATUS_EVERY_S
        while True:
            if not any(loop.overdue_s() > LOOP_HUNG_S for loop in self._loops()):
                self._notifier.send(WATCHDOG="1", STATUS=self.summary())
                self._fed()
            await anyio.sleep(period_s)

    def summary(self) -> str:
        """How many servers are in which state."""
        counts = Counter(str(loop.server.state) for loop in self._loops())
        return ", ".join(f"{number} {state}" for state, number in sorted(counts.items())) or "no servers"

    def ready(self) -> None:
        """The start, or a reload, is over."""
        self._notifier.send(READY="1", STATUS=self.summary())

    def reloading(self) -> None:
        """`systemctl reload` waits for the READY that follows."""
        self._notifier.send(RELOADING="1", MONOTONIC_USEC=_now_usec())

    def makes_way(self) -> None:
        """Other code takes over, which may take longer than the watchdog's patience."""
        self._notifier.send(RELOADING="1", MONOTONIC_USEC=_now_usec(), WATCHDOG="1")
        if watchdog_s := self._notifier.watchdog_s:
            self._notifier.send(WATCHDOG_USEC=_usec(max(watchdog_s, UPGRADE_WATCHDOG_S)))

    def took_over(self) -> None:
        """The other code is there: the watchdog's patience is as configured again."""
        if watchdog_s := self._notifier.watchdog_s:
            self._notifier.send(WATCHDOG="1", WATCHDOG_USEC=_usec(watchdog_s))

    def stopping(self) -> None:
        """The daemon ends."""
        self._notifier.send(STOPPING="1")


def _usec(seconds: float) -> str:
    return str(int(seconds * 1e6))


def _now_usec() -> str:
    return _usec(clock.monotonic())
