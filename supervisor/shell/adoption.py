"""Takes over what an earlier daemon left: living trees are adopted, the rest is ended, nothing ever runs twice."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

from supervisor.actions import Announce
from supervisor.core.memory import past_of
from supervisor.edge.cgroup import CgroupRoot, ServerCgroup
from supervisor.edge.fdstore import DescriptorStore
from supervisor.edge.process import Carried, Recorder, Tree, adopt, markers_of
from supervisor.events import Spawned, TreeStuck
from supervisor.saved import SavedAttempt, SavedServer
from supervisor.shell import clock
from supervisor.shell.states import StateStore
from supervisor.shell.trees import TreeRecord, TreeStore
from supervisor.snapshot import IncidentView
from supervisor.threads import Threads

_KILL_LIMIT_S = 20.0
_LOOK_LIMIT_S = 10.0

log = structlog.get_logger()


class LeftoverProblem(Exception):  # noqa: N818 - a fact for the operator, not a bug
    """A process of an earlier daemon survives SIGKILL; the text names it."""


ADOPTED, GONE = "adopted", "gone"


class Inheritance(msgspec.Struct, frozen=True):
    """What one configured server inherits: its record, and the tree that lives, if any does."""

    saved: SavedServer | None
    tree: Tree | None = None
    started_with: str = ""  # the settings that the tree's process was given; "" when that is not known
    past: tuple[IncidentView, ...] = ()  # what went wrong before, where there is no record to go on from
    ended: int | None = None  # how the leader of a tree has ended that lives no more; None when nobody knows

    @property
    def outcome(self) -> str:
        """What became of the server that an earlier daemon had left running; "" when it had left none."""
        return ADOPTED if self.tree is not None else GONE if self.saved is not None and self.saved.tree_alive else ""

    @property
    def lives(self) -> bool:
        """Whether processes of the attempt were found."""
        return self.tree is not None


def taken_over(inherited: Inheritance) -> Announce | None:
    """What a server's own story tells of the daemon that is new; None when an earlier one had left nothing running."""
    if not inherited.outcome:
        return None
    lived = "goes on with it as it is" if inherited.lives else "did not find it: it had ended while there was none"
    number = inherited.saved.number if inherited.saved is not None else 0
    return Announce("daemon", "", inherited.outcome, f"a new daemon has begun, and {lived}", number)


async def inherit(
    servers: Iterable[str],
    trees: TreeStore,
    states: StateStore,
    cgroups: CgroupRoot | None,
    state_dir: Path,
    store: DescriptorStore,
) -> dict[str, Inheritance]:
    """What each configured server inherits. Ends every tree that nobody can take over.

    LeftoverProblem when one of those survives SIGKILL: then this daemon must not start anything beside it.
    """
    records, problems = trees.read()
    for problem in problems:
        log.warning("state", problem=problem)
    by_name = {record.server: record for record in records}
    found = {name: await _inherit(by_name.pop(name, None), name, trees, states, store) for name in servers}
    for record in by_name.values():
        await _end(record, trees, store, "it is not configured any more")
    kept = {one.tree.spawned.cgroup for one in found.values() if one.tree is not None}
    for cgroup in cgroups.leftovers() if cgroups else ():
        if cgroup.path not in kept:
            await _end_cgroup(cgroup)
    carried = await _markers(state_dir)
    await _end_unrecorded(carried.ours - {record.marker for record in records})
    store.settle(one.tree.marker for one in found.values() if one.tree is not None)
    _tell_of_forsaken({name: pid for name, pid in carried.forsaken.items() if name in found and not found[name].lives})
    return found


async def _inherit(
    record: TreeRecord | None, name: str, trees: TreeStore, states: StateStore, store: DescriptorStore
) -> Inheritance:
    saved, past = recollected(states.read(name), states.boot_id)
    if record is None:
        return Inheritance(saved, past=past)
    if not record.spawned.pid:
        await _end(record, trees, store, "the daemon died while it was being started")
        return Inheritance(saved, past=past)
    kept = store.received(record.marker)
    tree = adopt(record.spawned, name, record.marker, _cgroup_of(record), _recorder_of(record, trees), kept)
    if not await tree.members(thorough=True):
        ended = await tree.exited()  # at once: nobody is left
        tree.close()
        _remove(record, trees, store)
        return Inheritance(saved, past=past, ended=ended.code)
    if saved is None or saved.number != record.spawned.attempt:
        saved = _from_record(record, states.boot_id, past)
        log.warning("state", server=name, problem="no usable record of a living server: its log tells what it can")
    return Inheritance(_with_process(saved, record), tree, record.started_with)


def recollected(saved: SavedServer | None, boot_id: str) -> tuple[SavedServer | None, tuple[IncidentView, ...]]:
    """The record to go on from, if there is one, and what went wrong before.

    Nothing of another boot lives, and its clock was another: only what people wanted is of use, and the past.
    """
    if saved is None:
        return None, ()
    now = clock.now()
    past = past_of(saved, boot_id, now.monotonic, now.wall)
    if saved.left or (saved.boot_id != boot_id and saved.goal_up):
        return None, past
    if saved.boot_id != boot_id:
        return msgspec.structs.replace(_at_rest(saved), boot_id=boot_id, incidents=past), past
    return saved, past


def _with_process(saved: SavedServer, record: TreeRecord) -> SavedServer:
    """The tree's note is written right after the spawn, the server's record only once it has heard of it.

    A daemon killed in between leaves a record of a server that waits for its spawn, beside a living process.
    """
    attempt = saved.attempt
    if attempt is None or attempt.pid is not None:
        return saved
    attempt = msgspec.structs.replace(attempt, pid=record.spawned.pid, log_path=record.spawned.log_path)
    return msgspec.structs.replace(saved, tree_alive=True, attempt=attempt)


def _at_rest(saved: SavedServer) -> SavedServer:
    return SavedServer(saved.name, saved.boot_id, False, "stopped", clock.monotonic(), saved.reason, saved.number)


def _from_record(record: TreeRecord, boot_id: str, past: tuple[IncidentView, ...]) -> SavedServer:
    """A living tree without a record is a start whose log tells the phases and whose probes will find it ready."""
    spawned = record.spawned
    begun = min(clock.monotonic(), spawned.start_ticks / os.sysconf("SC_CLK_TCK"))
    attempt = SavedAttempt(spawned.attempt, begun, spawned.pid, spawned.log_path)
    reason = "found running by a daemon that had lost its record"
    saved = SavedServer(record.server, boot_id, True, "starting", begun, reason, spawned.attempt)
    return msgspec.structs.replace(saved, tree_alive=True, attempt=attempt, devices=record.devices, incidents=past)


def _recorder_of(record: TreeRecord, trees: TreeStore) -> Recorder | None:
    path = str(trees.exit_path(record.server))
    return Recorder(path, record.marker, record.recorder) if record.recorder else None


def _cgroup_of(record: TreeRecord) -> ServerCgroup | None:
    return ServerCgroup(record.spawned.cgroup) if record.spawned.cgroup else None


async def _end(record: TreeRecord, trees: TreeStore, store: DescriptorStore, why: str) -> None:
    cgroup = _cgroup_of(record)
    if record.spawned.pid:
        tree = adopt(record.spawned, record.server, record.marker, cgroup)
    else:  # if there is a process, then its marker or its cgroup tells
        tree = Tree(record.spawned, record.server, record.marker, None, cgroup)
    await _kill(tree, why)
    _remove(record, trees, store)


def _remove(record: TreeRecord, trees: TreeStore, store: DescriptorStore) -> None:
    """Nobody is left of it."""
    trees.remove(record.server)
    store.forget(record.marker)


async def _kill(tree: Tree, why: str) -> None:
    try:
        result = await tree.kill(_KILL_LIMIT_S)
    finally:
        tree.close()
    if isinstance(result, TreeStuck):
        names = ", ".join(f"pid {process.pid} ({process.state}, {process.command})" for process in result.processes)
        raise LeftoverProblem(f"cannot start: {tree.server} from before cannot be killed: {names}")
    if result.killed:
        log.warning("leftover killed", server=tree.server, why=why, processes=result.killed)


async def _markers(state_dir: Path) -> Carried:
    try:
        return await Threads("a process").run(markers_of, state_dir, limit_s=_LOOK_LIMIT_S)
    except TimeoutError:
        log.warning("state", problem="cannot look for servers without a record: a process stuck in the kernel hides its"
                    " environment; those of which there is a record are known all the same")  # fmt: skip
        return Carried(set(), {})


def _tell_of_forsaken(left: dict[str, int]) -> None:
    """Whoever gives the daemon another state directory has it start second copies. They are not ours to end."""
    for name, pid in left.items():
        problem = f"pid {pid} belongs to a server of this name that a daemon with another state_dir has left running"
        log.warning("state", server=name, problem=f"{problem}; end it, or give the daemon that state_dir again")


async def _end_unrecorded(markers: set[str]) -> None:
    """A tree whose record was lost or damaged, and that has no cgroup: its marker is all that tells of it.

    Its leader is unknown, so that nobody could tell its exit or its log: it is ended rather than adopted.
    """
    for marker in sorted(markers):
        server, attempt = marker.rsplit(":", 2)[:2]
        await _kill(Tree(Spawned(int(attempt), 0), server, marker, None, None), "its record is lost")


async def _end_cgroup(cgroup: ServerCgroup) -> None:
    """Of a server whose record is lost and whose leader nobody knows, or that is not configured any more."""
    if cgroup.populated():
        log.warning("leftover killed", cgroup=cgroup.path, processes=len(cgroup.pids()))
        cgroup.kill()
        if not await cgroup.empty(_KILL_LIMIT_S):
            raise LeftoverProblem(f"cannot start: processes in {cgroup.path} from before cannot be killed")
    cgroup.remove()
