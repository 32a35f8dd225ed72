"""Lets the ranks of a group meet in collectives, and notices that one of them is gone as gloo does."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Sequence

from supervisor.simulator.clock import Clock
from supervisor.simulator.plan import PEER_LOST_S
from supervisor.simulator.wires import Wires


class PeerLostError(Exception):
    """A collective failed because another rank is gone."""


class Meetings:
    """One rank's view of its group. While `in_collective`, a lost peer raises PeerLostError from every wait."""

    def __init__(self, mine: Wires, group: Sequence[Wires], clock: Clock) -> None:
        self.in_collective = False
        self._mine = mine
        self._peers = [peer for peer in group if peer is not mine]
        self._clock = clock
        self._expected = 0
        self._lost_at: float | None = None
        self._poll = select.poll()
        for peer in self._peers:
            self._poll.register(peer.life_read, 0)  # only POLLHUP, which poll reports unasked

    def hear_launcher(self, wanted: bool) -> None:
        """Whether look() also reports the launcher's messages."""
        if wanted:
            self._poll.register(self._mine.scheduler_end, select.POLLIN)
        else:
            self._poll.unregister(self._mine.scheduler_end)

    def wait_until(self, moment: float) -> None:
        while (left := moment - self._clock.now()) > 0:
            self.look(left)

    def look(self, timeout_s: float | None) -> list[int]:
        """Wait for the timeout (None: without limit, for a peer or the launcher decides); returns ready descriptors."""
        if self._lost_at is not None and self.in_collective:
            left = self._lost_at - self._clock.now()
            if left <= 0:
                raise PeerLostError
            timeout_s = left if timeout_s is None else min(left, timeout_s)
        ready = []
        for descriptor, event in self._poll.poll(None if timeout_s is None else timeout_s * 1000):
            if any(peer.life_read == descriptor for peer in self._peers):
                self._poll.unregister(descriptor)
                self._lost_at = self._lost_at or self._clock.now() + self._clock.real(PEER_LOST_S)
            elif event:
                ready.append(descriptor)
        return ready

    def meet(self, patience_s: float | None = None, bark: Callable[[], None] | None = None) -> None:
        """Every rank tells every other, and nobody goes on before all have told: a stopped rank stops them all.

        After patience_s (unscaled) of waiting bark is called once, and the waiting goes on.
        """
        self._expected += len(self._peers)
        for peer in self._peers:
            with contextlib.suppress(BrokenPipeError):  # that peer is dead: its life pipe tells, in due time
                os.write(peer.arrivals_write, b".")
        arrivals = self._mine.arrivals_read
        self._poll.register(arrivals, select.POLLIN)
        bark_at = None if patience_s is None else self._clock.now() + self._clock.real(patience_s)
        while self._expected > 0:
            left = None if bark_at is None else max(0.0, bark_at - self._clock.now())
            if arrivals in self.look(left):
                self._expected -= len(os.read(arrivals, self._expected))
            elif bark and bark_at is not None and self._clock.now() >= bark_at:
                bark_at = None
                bark()
        self._poll.unregister(arrivals)
