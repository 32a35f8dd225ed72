"""Counts what the kernel's OOM killer has ended in one server's cgroup.

The kernel's log names the processes, but is not always open to us.
"""

from __future__ import annotations

from supervisor.edge.process import Tree
from supervisor.events import HostOomKilled
from supervisor.shell.host import Host


class OomCount:
    """One server's."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._kills = 0

    @property
    def counted(self) -> bool:
        """Whether the server's cgroup tells of OOM kills."""
        return self._host.cgroups is not None and "memory" in self._host.cgroups.controllers

    def begin(self, tree: Tree) -> None:
        """A tree begins to be watched; those of earlier attempts stay in the count."""
        self._kills = self._count(tree)

    def news(self, tree: Tree) -> HostOomKilled | None:
        """What has come since."""
        kills = self._count(tree) - self._kills
        if kills <= 0:
            return None
        self._kills += kills
        return HostOomKilled(tree.attempt, source=f"memory.events of its cgroup counts {kills}")

    def _count(self, tree: Tree) -> int:
        if tree.cgroup is None or self._host.cgroups is None:
            return 0
        return self._host.cgroups.server(tree.server).oom_kills() or 0
