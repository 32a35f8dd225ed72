"""Learns of the deaths of processes with a role through pidfds: no threads, no polling, one task for all of them."""

from __future__ import annotations

import contextlib
import os
import select
from typing import NamedTuple

import anyio

from supervisor.edge.treewatch import proc
from supervisor.events import RoleDied

LEADER_FIRST_S = 0.1  # when a whole tree dies, its leader is seen to end within this: no news of its roles then
LEADER_ENDS_S = 5.0  # for a leader that is ending already, and has much to give back first


class Bearer(NamedTuple):
    """A process that has a role."""

    pid: int
    start_ticks: int
    role: str
    rank: str


class Deaths:
    """One epoll descriptor holds the pidfds of the leader and of everybody with a role; `watch` adds to it any time."""

    def __init__(self, attempt: int, leader: int) -> None:
        self._attempt = attempt
        self._poller = select.epoll()
        self._bearers: dict[int, Bearer] = {}  # by pidfd
        self._watched: dict[tuple[int, int], int] = {}  # pid and start → pidfd, which may be another's after its end
        self._leader_pid = leader
        self._leader: int | None = None
        self.first: RoleDied | None = None  # who ended before the leader and everybody else
        with contextlib.suppress(OSError):  # gone already: the deaths of its children are no news
            self._leader = os.pidfd_open(leader)
            self._poller.register(self._leader, select.EPOLLIN)

    def watch(self, bearer: Bearer) -> None:
        """Watch this one too, or learn its rank. Without a free descriptor nothing happens: call again with the next
        sample."""
        identity = bearer.pid, bearer.start_ticks
        if identity in self._watched:
            self._learn(bearer)
        if identity in self._watched or self._poller.closed:
            return
        try:
            pidfd = os.pidfd_open(bearer.pid)
        except OSError:
            return
        now = proc.stat(bearer.pid)
        if now is None or now.start_ticks != bearer.start_ticks:
            os.close(pidfd)  # it has ended since, and its pid is another's
            return
        self._watched[identity] = pidfd
        self._bearers[pidfd] = bearer
        self._poller.register(pidfd, select.EPOLLIN)

    def _learn(self, bearer: Bearer) -> None:
        pidfd = self._watched[bearer.pid, bearer.start_ticks]
        known = self._bearers.get(pidfd)
        if known is not None and known[:2] == bearer[:2]:
            self._bearers[pidfd] = bearer

    async def next(self) -> list[RoleDied] | None:
        """The next deaths, as long as it takes; None when the leader has ended, for then everybody's end is due."""
        if self._leader is None:
            return None
        await anyio.wait_readable(self._poller.fileno())
        dead, leader_ended = self._take()
        # The order in which ends are seen is not that of the deaths: a leader that is killed takes along whoever asked
        # for it, and is seen to have ended after them. Asked now, it is ending already if theirs is an echo of its own.
        leader_ending = leader_ended or proc.ending(self._leader_pid)
        if dead and not leader_ending and self.first is None:
            self.first = dead[0]
        with anyio.move_on_after(LEADER_ENDS_S if leader_ending else LEADER_FIRST_S):
            while not leader_ended:
                await anyio.wait_readable(self._poller.fileno())
                more, leader_ended = self._take()
                dead += more
        if leader_ended:
            return None
        return dead

    def _take(self) -> tuple[list[RoleDied], bool]:
        ready = [descriptor for descriptor, _ in self._poller.poll(0)]
        ended = [self._drop(pidfd) for pidfd in ready if pidfd in self._bearers]
        return [self._told(one) for one in ended], self._leader in ready

    def _told(self, one: Bearer) -> RoleDied:
        """At once: how it ended is known until its parent reaps it."""
        code = proc.exit_status(one.pid, one.start_ticks)
        return RoleDied(self._attempt, one.pid, one.role, one.rank, code=code)

    def _drop(self, pidfd: int) -> Bearer:
        self._poller.unregister(pidfd)
        os.close(pidfd)
        return self._bearers.pop(pidfd)

    def close(self) -> None:
        """Give back the descriptors; nobody may be in `next`."""
        for pidfd in self._bearers:
            os.close(pidfd)
        if self._leader is not None:
            os.close(self._leader)
        self._bearers, self._leader = {}, None
        self._poller.close()
