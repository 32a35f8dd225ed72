"""Ends what a daemon that died has left running, so that no server ever runs twice."""

from __future__ import annotations

import structlog

from supervisor.edge.cgroup import CgroupRoot, ServerCgroup
from supervisor.edge.process import Tree, adopt
from supervisor.events import TreeStuck
from supervisor.shell.trees import TreeRecord, TreeStore

_KILL_LIMIT_S = 20.0

log = structlog.get_logger()


class LeftoverProblem(Exception):  # noqa: N818 - a fact for the operator, not a bug
    """A process of an earlier daemon survives SIGKILL; the text names it."""


async def end_leftovers(trees: TreeStore, cgroups: CgroupRoot | None) -> None:
    """Kill every recorded tree, then whatever else lives in our cgroups. LeftoverProblem when something survives."""
    records, problems = trees.read()
    for problem in problems:
        log.warning("state", problem=problem)
    for record in records:
        await _end_tree(record)
        trees.remove(record.server)
    for cgroup in cgroups.leftovers() if cgroups else ():
        await _end_cgroup(cgroup)


async def _end_tree(record: TreeRecord) -> None:
    tree = _tree_of(record)
    try:
        result = await tree.kill(_KILL_LIMIT_S)
    finally:
        tree.close()
    if isinstance(result, TreeStuck):
        names = ", ".join(f"pid {process.pid} ({process.state}, {process.command})" for process in result.processes)
        raise LeftoverProblem(f"cannot start: {record.server} from before cannot be killed: {names}")
    log.warning("leftover killed", server=record.server, pid=record.spawned.pid, processes=result.killed)


def _tree_of(record: TreeRecord) -> Tree:
    cgroup = ServerCgroup(record.spawned.cgroup) if record.spawned.cgroup else None
    if record.spawned.pid:
        return adopt(record.spawned, record.server, record.marker, cgroup)
    # The daemon died between the note and the spawn: if there is a process, then its marker or its cgroup tells.
    return Tree(record.spawned, record.server, record.marker, None, cgroup)


async def _end_cgroup(cgroup: ServerCgroup) -> None:
    """Of a server whose record is lost, or that is not configured any more."""
    if cgroup.populated():
        log.warning("leftover killed", cgroup=cgroup.path, processes=len(cgroup.pids()))
        cgroup.kill()
        if not await cgroup.empty(_KILL_LIMIT_S):
            raise LeftoverProblem(f"cannot start: processes in {cgroup.path} from before cannot be killed")
    cgroup.remove()
