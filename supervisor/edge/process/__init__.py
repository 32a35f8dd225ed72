"""Starts, watches, signals, adopts and kills one attempt's process tree."""

from supervisor.edge.process.household import Household
from supervisor.edge.process.record import Recorder, kernel_tells
from supervisor.edge.process.scan import HELPER_NAME, MARKER_NAME, Carried, markers_of
from supervisor.edge.process.spawn import (
    Limit,
    SpawnPlan,
    become_subreaper,
    ignore_orphan_signals,
    new_marker,
    protect_from_oom,
    spawn,
)
from supervisor.edge.process.tree import Cgroup, Tree, adopt

__all__ = [
    "HELPER_NAME",
    "MARKER_NAME",
    "Carried",
    "Cgroup",
    "Household",
    "Limit",
    "Recorder",
    "SpawnPlan",
    "Tree",
    "adopt",
    "become_subreaper",
    "ignore_orphan_signals",
    "kernel_tells",
    "markers_of",
    "new_marker",
    "protect_from_oom",
    "spawn",
]
