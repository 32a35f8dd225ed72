"""Finds the processes of a tree in /proc, whatever they did to sessions, parents and titles.

A process belongs to a tree when its environment carries the tree's marker, or it is in a session of the tree, or its
parent belongs to it, or it was seen in it before. A member does not make its session the tree's: somebody may run one
command with a server's environment in his login, see `Traces.sessions`. One that is double-forked, has its own session
*and* wiped its environment (`env -i`) leaves none of these traces: only its cgroup tells, or, without one, that the
kernel handed it to the daemon (subreaper), see `orphans`.

Reading `environ` takes the process's memory lock, which a process stuck in the kernel may hold for ever: callers run
`members` in a thread that they can abandon, and ask again with `read_environment=False`. `stat` never blocks.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from supervisor import procstat
from supervisor.procstat import Process

MARKER_NAME = "SGLSUP_TREE"
HELPER_NAME = "SGLSUP_HELPER_OF"  # in the environment of the daemon's own helpers, never in a server's


class Sighting(msgspec.Struct, frozen=True):
    """One look at a tree: its processes, and those of their sessions that are the tree's own."""

    processes: list[Process]
    sessions: set[int]


class Traces(msgspec.Struct):
    """What a tree is recognised by; `remember` the result of every scan: traces outlive those who left them."""

    start_ticks: int
    marker: bytes
    sessions: set[int]  # whose every process is a member, with or without another trace
    seen: dict[int, int]  # pid → start_ticks

    def match(self, process: Process) -> bool:
        return process.session in self.sessions or self.seen.get(process.pid) == process.start_ticks

    def remember(self, sighting: Sighting) -> None:
        """Keep what this scan found, and only that: a session nobody is in any more may be reused by a stranger."""
        self.seen = {process.pid: process.start_ticks for process in sighting.processes}
        self.sessions = sighting.sessions


def members(traces: Traces, listed: Collection[int] = (), *, read_environment: bool = True) -> Sighting:
    """Every process of the tree, zombies included; `listed` are those that its cgroup tells.

    Scans all of /proc: each process of the machine costs a look.
    """
    everybody = {process.pid: process for process in all_processes()}
    spared = _line_of(os.getpid(), everybody)
    # Nobody is older than the tree's first process, which spares most of the machine a look.
    young = [one for one in everybody.values() if one.start_ticks >= traces.start_ticks and one.pid not in spared]
    found = {process.pid: process for process in young if process.pid in listed or traces.match(process)}
    if read_environment:
        for process in young:
            # One that sleeps in the kernel (D) may hold its memory lock: it is asked when it wakes.
            if (
                process.pid not in found
                and process.alive
                and process.state != "D"
                and _is_marked(process.pid, traces.marker)
            ):
                found[process.pid] = process
    _add_children(found, young)
    return Sighting(list(found.values()), _own_sessions(found, everybody, traces))


def _line_of(pid: int, everybody: dict[int, Process]) -> set[int]:
    """A process and its ancestors: we may have been started by hand with a server's environment."""
    line: set[int] = set()
    while pid in everybody and pid not in line:
        line.add(pid)
        pid = everybody[pid].parent
    return line


def _own_sessions(found: dict[int, Process], everybody: dict[int, Process], traces: Traces) -> set[int]:
    """The sessions that the tree has made: nobody can join a session, so who leads it tells whose it is.

    Of one whose leader has ended, that he was seen in the tree, or that only members are in it.
    """
    own: set[int] = set()
    for session in {process.session for process in found.values()} - {0, os.getsid(0)}:
        if session in everybody:
            made_here = session in found
        else:
            made_here = session in traces.sessions or session in traces.seen
            made_here = made_here or all(one.pid in found for one in everybody.values() if one.session == session)
        if made_here:
            own.add(session)
    return own


def _is_marked(pid: int, marker: bytes) -> bool:
    """A helper of ours has the marker too when we were started by hand with a server's environment."""
    environment = _environment_of(pid)
    return marker in environment and HELPER_NAME.encode() + b"=" not in environment


def _add_children(found: dict[int, Process], young: list[Process]) -> None:
    """Close the set over parent → child, in as many rounds as the tree is deep."""
    while True:
        more = [process for process in young if process.parent in found and process.pid not in found]
        if not more:
            return
        found.update((process.pid, process) for process in more)


def orphans(exempt: Iterable[int] = ()) -> list[Process]:
    """Children of ours outside our own session: a tree's leader, or what the kernel handed to us as subreaper."""
    own, session, spared = os.getpid(), os.getsid(0), set(exempt)
    return [
        process
        for process in map(procstat.read, _children_of_self(own))
        if process and process.session != session and process.pid not in spared
    ]


def _children_of_self(own: int) -> set[int]:
    """Each pid once, though a thread that ends meanwhile hands its children to another that may have been read."""
    found: set[int] = set()
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                found.update(map(int, file.read().split()))
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN, or a thread that just ended
        found.update(process.pid for process in all_processes() if process.parent == own)
    return found


def all_processes() -> Iterator[Process]:
    """Every process that /proc shows. One that comes or goes meanwhile may be in it or not."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := procstat.read(int(name))):
            yield process


def carries_marker(pid: int, marker: bytes) -> bool:
    """Whether the environment the process was executed with has the marker. False also when we may not look."""
    return marker in _environment_of(pid)


def home(state_dir: str | Path) -> str:
    """Stands in a marker for the state directory of the daemon that made it; the directory itself may get lost."""
    return hashlib.sha256(os.path.realpath(state_dir).encode()).hexdigest()[:8]


class Carried(msgspec.Struct, frozen=True):
    """The markers that living processes carry whose environment we may read.

    `ours` were made for this state directory. `forsaken`: servers' names of which a process, with this pid, was started
    for another one, by a daemon that is gone.
    """

    ours: set[str]
    forsaken: dict[str, int]


def markers_of(state_dir: str | Path) -> Carried:
    """Whose markers there are in this host's processes.

    Blocks as long as a process stuck in the kernel holds its memory lock: for a thread.
    """
    everybody = {process.pid: process for process in all_processes()}
    spared = _line_of(os.getpid(), everybody)
    made = re.compile(r"(.+):[0-9]+:([0-9a-f]{8})-[0-9a-f]+")  # by `new_marker`
    found = Carried(set(), {})
    for process in everybody.values():
        if process.pid in spared or not process.alive or process.state == "D":
            continue
        marker = made.fullmatch(_marker_in(_environment_of(process.pid)))
        if marker is None or not _same_root(process.pid):
            continue
        if marker[2] == home(state_dir):
            found.ours.add(marker[0])
        elif (
            process.parent in spared
        ):  # its daemon would be its parent: the kernel has handed it to an ancestor of ours
            found.forsaken[marker[1]] = process.pid
    return found


def _marker_in(environment: bytes) -> str:
    """The marker; "" when there is none, or it is a helper's."""
    entries = dict(entry.partition(b"=")[::2] for entry in environment.split(b"\0"))
    return "" if HELPER_NAME.encode() in entries else entries.get(MARKER_NAME.encode(), b"").decode(errors="replace")


def _same_root(pid: int) -> bool:
    """Another container's state directory may have the very path of ours."""
    try:
        return os.path.samefile(f"/proc/{pid}/root", "/")
    except OSError:
        return False


def _environment_of(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


def wait_channel(pid: int) -> str:
    """The kernel function a process sleeps in; "" when the kernel does not tell (not root, or no KALLSYMS)."""
    try:
        with open(f"/proc/{pid}/wchan", encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        return ""
    return "" if text == "0" else text
