"""Passes on what the kernel's log says about our servers and GPUs: processes killed for memory, Xids."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

from supervisor.devices import XidSeen
from supervisor.edge.hostwatch import KernelFact, LogLost, OomKill, XidReported, kernel_facts, open_kernel_log
from supervisor.edge.process import Tree
from supervisor.events import HostOomKilled
from supervisor.shell import clock
from supervisor.shell.devices import Devices

log = structlog.get_logger()


class Owner(Protocol):
    """A server that may have a tree, and can be told (`shell.effects.Effects` is one)."""

    @property
    def tree(self) -> Tree | None: ...

    async def tell(self, event: HostOomKilled) -> None: ...


class HostNews:
    """One for the daemon. Where the kernel's log may not be read (not root, a container) it says so."""

    def __init__(
        self,
        servers: Callable[[], Iterable[Owner]],
        devices: Devices,
        open_log: Callable[[], int | None] = open_kernel_log,
        heard: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._servers = servers
        self._devices = devices
        self._open_log = open_log
        self._heard = heard
        self._told: deque[int] = deque(maxlen=64)  # pids; the kernel tells of each in two lines

    async def run(self) -> None:
        """Read until cancelled."""
        descriptor = self._open_log()
        if descriptor is None:
            log.info("kernel log", readable=False, lost="names of processes killed for memory, second source of Xids")
            return
        self._heard(True)
        try:
            async for fact in kernel_facts(descriptor):
                await self.take(fact)
        finally:
            os.close(descriptor)

    async def take(self, fact: KernelFact) -> None:
        """One fact, to whom it concerns."""
        match fact:
            case OomKill():
                await self._killed(fact)
            case XidReported():
                device = self._devices.device_at(fact.device)
                await self._devices.take(XidSeen(clock.monotonic(), device, fact.number))
            case LogLost():
                log.warning("kernel log", problem="it went faster than it could be read; what was lost is unknown")

    async def _killed(self, kill: OomKill) -> None:
        for server in self._servers():
            tree = server.tree
            if tree is None or kill.pid in self._told or not _belongs(kill, tree):
                continue
            self._told.append(kill.pid)
            log.warning("killed for memory", server=tree.server, pid=kill.pid, process=kill.name, limit=kill.limited)
            where = f"the limit of {kill.limited}" if kill.limited else "the host's memory"
            await server.tell(HostOomKilled(tree.attempt, kill.pid, kill.name, f"kernel log, {where} was used up"))


def _belongs(kill: OomKill, tree: Tree) -> bool:
    """By the cgroup that the kernel names, else by what was seen in the tree before (its process is gone by now)."""
    inside = tree.cgroup is not None and kill.cgroup not in ("", "/") and tree.cgroup.path.endswith(kill.cgroup)
    return inside or kill.pid in tree.known_pids
