"""Knows whose orphan is whose: what the kernel hands to the daemon as subreaper is reaped, or found by its tree.

Needed only where there is no cgroup, and for zombies in a container whose PID 1 does not reap. A process that is
double-forked, in a session of its own and has wiped its environment carries no trace of its tree; that it has become
our child still says that it came from *some* tree. It counts as a member of a tree when no other could have made it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable

import anyio

from supervisor.edge.process import scan
from supervisor.edge.process.tree import Tree
from supervisor.procstat import Identity, Process

SETTLED_S = 0.2  # a helper between fork and exec looks like an orphan, for a millisecond
REAP_PERIOD_S = 2.0


class Household:
    """The living trees of one daemon. Make it before the first helper process is started: helpers inherit its mark."""

    def __init__(self) -> None:
        self._trees: set[Tree] = set()
        self.reaped = 0  # dead orphans that nobody else waited for
        self._mark = f"{os.getpid()}:{secrets.token_hex(8)}"
        os.environ[scan.HELPER_NAME] = self._mark

    def add(self, tree: Tree) -> None:
        """From now on the tree's sweeps look at our orphans too, until it is closed."""
        self._trees.add(tree)
        tree.join(strays=lambda: self.strays(tree), leave=lambda: self._trees.discard(tree))

    def strays(self, tree: Tree) -> list[Process]:
        """Traceless orphans that only this tree can have made. Blocks for a moment when there are any: for a thread."""
        first = {orphan.identity for orphan in self._traceless() if self._makers(orphan) == [tree]}
        if not first:
            return []
        time.sleep(SETTLED_S)
        return [orphan for orphan in self._traceless() if orphan.identity in first]

    def _makers(self, orphan: Process) -> list[Tree]:
        """A tree with a cgroup needs no guessing, and nobody is older than what made him."""
        trees = (tree for tree in list(self._trees) if tree.cgroup is None)
        return [tree for tree in trees if tree.spawned.start_ticks <= orphan.start_ticks]

    def _traceless(self) -> list[Process]:
        trees, recorders = list(self._trees), self._recorders()
        return [
            process
            for process in self._orphans()
            if process.alive
            and process.pid not in recorders
            and not any(tree.knows(process) for tree in trees)
            and not self._has_trace(process)
        ]

    def _orphans(self) -> list[Process]:
        return scan.orphans(exempt=[tree.pid for tree in list(self._trees)])

    def _recorders(self) -> set[int]:
        """They are children of ours, and not of the tree: they end with its leader."""
        return {tree.recorder.pid for tree in list(self._trees) if tree.recorder is not None}

    def _has_trace(self, process: Process) -> bool:
        """A tree's marker, or the mark that our helpers inherit from us; unreadable counts as a trace: spare it."""
        try:
            with open(f"/proc/{process.pid}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            return True
        return (
            scan.MARKER_NAME.encode() + b"=" in environment
            or f"{scan.HELPER_NAME}={self._mark}".encode() in environment
        )

    async def reap_forever(self, period_s: float = REAP_PERIOD_S) -> None:
        """Reap dead orphans until cancelled. Our other children are left to who started them."""
        before: set[Identity] = set()
        while True:
            dead = {one.identity for one in self._orphans() if not one.alive} if _anybody_dead() else set()
            # Seen dead twice: whoever started it himself has had his time to take its status.
            self.reaped += _reap(pid for pid, _ in dead & before)
            before = dead
            await anyio.sleep(period_s)


def _anybody_dead() -> bool:
    """Whether any child of ours waits to be reaped: one call, where a look at each of them is eight."""
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def _reap(pids: Iterable[int]) -> int:
    reaped = 0
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            reaped += os.waitpid(pid, os.WNOHANG)[0] == pid
    return reaped
