"""One attempt's process tree: its exit, its signals, its members, its proven end."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable
from typing import Protocol

import anyio

from supervisor import procstat
from supervisor.edge.process import exits, scan
from supervisor.edge.process.record import Recorder, recorded
from supervisor.events import Exited, Spawned, StuckProcess, TreeEmptied, TreeStuck
from supervisor.procstat import Identity, Process
from supervisor.threads import Threads

SCAN_LIMIT_S = 2.0
REPORTED_STUCK = 32
_scans = Threads("a process", 32)


class Cgroup(Protocol):
    """What a tree needs of its cgroup (`edge.cgroup.ServerCgroup` is one)."""

    path: str

    def pids(self) -> tuple[int, ...]: ...
    def kill(self) -> None: ...
    def remove(self) -> bool: ...
    async def empty(self, limit_s: float) -> bool: ...


class Tree:
    """Made by `spawn` or `adopt`. `close()` it when it is empty and nobody waits for its exit any more."""

    def __init__(
        self,
        spawned: Spawned,
        server: str,
        marker: str,
        pidfd: int | None,
        cgroup: Cgroup | None,
        recorder: Recorder | None = None,
        ended: exits.Status | None = None,
    ) -> None:
        self.spawned = spawned
        self.server = server
        self.marker = marker
        self.cgroup = cgroup
        self.known_pids: set[int] = {spawned.pid}  # everyone ever seen in it, for what they leave behind
        self._pidfd = pidfd  # None: the leader had ended before we adopted its tree
        self.recorder = recorder
        if ended is None and pidfd is None and recorder is None:
            ended = exits.Status(None)
        self._status: exits.Status | None = ended
        self._watched = False
        self._watch_over = anyio.Event()
        self._strays: Callable[[], list[Process]] = list
        self._leave: Callable[[], None] = lambda: None
        self._traces = scan.Traces(
            start_ticks=spawned.start_ticks,
            marker=f"{scan.MARKER_NAME}={marker}\0".encode(),
            # Without a leader its session's number proves nothing: it may have been given to a stranger since.
            sessions={spawned.pid} if pidfd is not None else set(),
            seen={spawned.pid: spawned.start_ticks},
        )

    @property
    def attempt(self) -> int:
        return self.spawned.attempt

    @property
    def pid(self) -> int:
        return self.spawned.pid

    @property
    def pidfd(self) -> int | None:
        """The leader's, open as long as the tree is; None when it had ended before we adopted its tree."""
        return self._pidfd

    async def exited(self) -> Exited:
        """Wait, as long as it takes, for the leader's end. Several tasks may wait; all get the same answer."""
        while self._status is None:
            if self._watched:  # the loop knows one reader a descriptor; the others wait for that one
                await self._watch_over.wait()
            else:
                await self._watch()
        return Exited(self.attempt, self._status.code)

    async def _watch(self) -> None:
        self._watched = True
        try:
            if self._pidfd is not None:
                await anyio.wait_readable(self._pidfd)
            if self._status is None:  # `kill` may have reaped it meanwhile
                self._settle(await self._how_it_ended())
        finally:
            self._watched = False
            self._watch_over.set()
            self._watch_over = anyio.Event()

    async def _how_it_ended(self) -> exits.Status:
        told = await recorded(self.recorder, self._pidfd) if self.recorder is not None else None
        if told is None and self._pidfd is not None:
            told = await exits.status(self._pidfd)
        return told or exits.Status(None)

    def _settle(self, status: exits.Status) -> None:
        """The first who reaps learns the code; who comes second must not overwrite it with "nobody could tell"."""
        if self._status is None or self._status.code is None:
            self._status = status

    def signal(self, number: int) -> bool:
        """Signal the leader alone. False when it has ended; PermissionError when it is not ours to signal."""
        return self._pidfd is not None and self._status is None and exits.send_signal(self._pidfd, number)

    def leader_alive(self) -> bool:
        """Whether the leader runs; a zombie does not."""
        process = procstat.read(self.pid)
        return process is not None and process.start_ticks == self.spawned.start_ticks and process.alive

    async def members(self, *, thorough: bool = False) -> list[Process]:
        """Every living process of the tree. With a cgroup that is whom the cgroup lists: some 40 small reads.

        Without one, or `thorough` (who left the cgroup?), all of /proc is read, in a thread. Calling it now and then
        also strengthens the fallback: who was seen once is remembered, whatever he does to his traces.
        """
        listed = _alive(self.cgroup.pids()) if self.cgroup else []
        self.known_pids.update(process.pid for process in listed)
        if self.cgroup and not thorough:
            return listed
        found = {process.pid: process for process in listed + await self._scan({process.pid for process in listed})}
        return [process for process in found.values() if process.alive]

    async def _scan(self, listed: set[int]) -> list[Process]:
        try:
            seen = await _scans.run(self._look_everywhere, listed, limit_s=SCAN_LIMIT_S, thing=self.server)
        except TimeoutError:
            # A process stuck in the kernel holds up the read of its environ: do without environments this time.
            seen = scan.members(self._traces, listed, read_environment=False)
        self._traces.remember(seen)
        self.known_pids.update(process.pid for process in seen.processes)
        return seen.processes

    def _look_everywhere(self, listed: set[int]) -> scan.Sighting:
        seen = scan.members(self._traces, listed)
        return scan.Sighting(seen.processes + self._strays(), seen.sessions)

    def knows(self, process: Process) -> bool:
        """Whether the process was seen in this tree before, or is in a session of it."""
        return self._traces.match(process)

    def join(self, strays: Callable[[], list[Process]], leave: Callable[[], None]) -> None:
        """Become part of a household: `strays` finds members that carry no trace, `leave` is called by `close`."""
        self._strays, self._leave = strays, leave

    async def kill(self, limit_s: float = 20.0) -> TreeEmptied | TreeStuck:
        """SIGKILL every process of the tree until none is left, or name those that survive after `limit_s`."""
        began = time.monotonic()
        victims: set[Identity] = set()
        if self.cgroup:
            victims.update(process.identity for process in _alive(self.cgroup.pids()))
            self.cgroup.kill()
            await self.cgroup.empty(limit_s)
        left = await self._sweep(victims, began + limit_s)
        self.known_pids.update(pid for pid, _ in victims)
        self._reap_leader()
        self._reap_orphans()
        if left:
            return TreeStuck(self.attempt, tuple(_describe(process) for process in left[:REPORTED_STUCK]))
        if self.cgroup:
            self.cgroup.remove()
        return TreeEmptied(self.attempt, killed=len(victims), took_s=time.monotonic() - began)

    async def _sweep(self, victims: set[Identity], until: float) -> list[Process]:
        """Kill whom the scan finds until it finds nobody; the living that remain when the time is over.

        With a cgroup one empty look is enough: it is there for who left the cgroup. Without one, a chain of processes
        that each fork and end can slip through a reading of /proc. Its links end as zombies of ours (subreaper), so
        the tree is empty when two looks in a row find nobody alive and nobody newly dead.
        """
        quiet, pause_s, before = 0, 0.002, frozenset[Identity]()
        while True:
            left, dead = await self._look()
            quiet = 0 if left or not dead <= before else quiet + 1
            if quiet >= (1 if self.cgroup else 2) or (left and time.monotonic() > until):
                return left
            before = dead
            _kill_all(left, victims, self._traces.sessions)
            self._reap_leader()
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.05)

    async def _look(self) -> tuple[list[Process], frozenset[Identity]]:
        """The living members, and who died lately and may have been one."""
        try:
            alive = await self.members(thorough=True)
            orphans = [] if self.cgroup else scan.orphans()
        except OSError as problem:  # no descriptor left to look with: not knowing is not being empty
            return [_unseen(problem)], frozenset()
        return alive, frozenset(process.identity for process in orphans if not process.alive)

    def _reap_orphans(self) -> None:
        """The tree's dead that were handed to us (subreaper). Not before the end: the sweeps count them."""
        for process in scan.orphans(exempt=[self.pid]):
            if not process.alive and self.knows(process):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)

    def _reap_leader(self) -> None:
        if self._pidfd is not None and (status := exits.reap(self._pidfd)):
            self._settle(status)

    def close(self) -> None:
        """Give back the descriptor. The tree must not be used afterwards."""
        self._leave()
        if self.recorder is not None:  # one that has not come to its end yet is reaped by the household
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.recorder.pid, os.WNOHANG)
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _alive(pids: tuple[int, ...]) -> list[Process]:
    return [process for process in map(procstat.read, pids) if process and process.alive]


def _unseen(problem: OSError) -> Process:
    return Process(0, 0, 0, 0, 0, "?", f"cannot look for processes: {problem.strerror}")


def _kill_all(processes: list[Process], victims: set[Identity], sessions: set[int]) -> None:
    """Groups first: the kernel signals a group at one stroke, so that no fork within it gets away.

    Only in the tree's own sessions: in anybody else's, a member shares its group with strangers.
    """
    for group in {process.group for process in processes if process.session in sessions} - {0}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for process in processes:
        if process.pid:
            victims.add(process.identity)
            _kill_process(process)


def _kill_process(process: Process) -> None:
    """SIGKILL this very process: its pid may be somebody else's by now, which the pidfd and a second look rule out.

    One that we may not signal (not root, and it changed its user) stays, and is reported as stuck.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError as problem:
            if problem.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            return  # the next sweep tries again
        try:
            now = procstat.read(process.pid)
            if now and now.identity == process.identity:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def _describe(process: Process) -> StuckProcess:
    """From `stat` and `wchan` alone: `cmdline` needs the memory lock that a stuck process may hold."""
    now = procstat.read(process.pid) or process
    return StuckProcess(now.pid, now.state, scan.wait_channel(now.pid), now.name)


def adopt(
    spawned: Spawned,
    server: str,
    marker: str,
    cgroup: Cgroup | None = None,
    recorder: Recorder | None = None,
    kept: int | None = None,
) -> Tree:
    """Take over the tree of an earlier daemon. When its leader has ended, `exited()` answers at once: what its recorder
    has written, what the kernel tells whoever has had its pidfd meanwhile (`kept`, which stays the caller's), or None.
    """
    pidfd = None
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(spawned.pid)
        now = procstat.read(spawned.pid)
        if now is None or now.start_ticks != spawned.start_ticks:
            os.close(pidfd)
            pidfd = None
    told = exits.told_by_kernel(kept) if kept is not None and pidfd is None else exits.Status(None)
    return Tree(spawned, server, marker, pidfd, cgroup, recorder, told if told.code is not None else None)
