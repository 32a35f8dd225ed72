"""Connects the processes of a run: the launcher with each scheduler, and the schedulers of a group with each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from supervisor.simulator.layout import Rank


class Wires:
    """All descriptors of one scheduler, made by the launcher before it forks.

    `arrivals` carries one byte from each peer per collective; `life` is held open by the scheduler alone, so that its
    end is seen by the others as end of file, as gloo sees a closed connection.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.launcher_end, self.scheduler_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.arrivals_read, self.arrivals_write = os.pipe()
        self.life_read, self.life_write = os.pipe()

    def keep_launcher_side(self) -> None:
        self.scheduler_end.close()
        for descriptor in (self.arrivals_read, self.arrivals_write, self.life_read, self.life_write):
            os.close(descriptor)


def keep_scheduler_side(mine: Wires, everyone: Sequence[Wires]) -> None:
    """Close what belongs to the launcher and to the others; what peers write to stays open."""
    for wires in everyone:
        wires.launcher_end.close()
        if wires is mine:
            continue
        wires.scheduler_end.close()
        os.close(wires.arrivals_read)
        os.close(wires.life_write)
        if wires.rank.group != mine.rank.group:
            os.close(wires.arrivals_write)
            os.close(wires.life_read)


def keep_nothing(everyone: Sequence[Wires]) -> None:
    """For the processes that have no part in it."""
    for wires in everyone:
        wires.launcher_end.close()
        wires.keep_launcher_side()
