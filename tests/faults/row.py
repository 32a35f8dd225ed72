"""One row of the fault matrix: what goes wrong, what must hold all the same, and how it is tried."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from supervisor.edge.cgroup import find_cgroup_root
from tests.faults import volume, world
from tests.faults.scene import Scene
from tests.nvml import FakeNvml, compiler
from tests.nvml import build as build_nvml

GPUS = 4
THOROUGH = bool(os.environ.get("FAULTS_THOROUGH"))  # `make faults`: longer pauses, more repeats


class Row(NamedTuple):
    """`trial` injects the fault, proves what must hold and answers what was seen, in a few words with figures."""

    fault: str
    must: str
    trial: Callable[[Scene], str]
    quick: bool = False  # in the fast suite as well
    cgroups: bool = False
    preload: bool = False  # the daemon runs in a `World`
    needs: Callable[[], str] = lambda: ""


class Seen(NamedTuple):
    """What came of it. Seconds are the worst of the whole row."""

    what: str
    status_s: float
    usual_status_s: float
    lag_s: float | None  # None: the row was over before the daemon had measured any
    journal_rows: int


def missing(row: Row) -> str:
    """What this machine lacks for the row; "" when it can be tried."""
    if compiler() is None:
        return "no C compiler (cc): the stand-ins for libraries cannot be built"
    if row.cgroups and not _has_cgroups():
        return "needs root and a writable cgroup v2"
    return row.needs()


def _has_cgroups() -> bool:
    root = find_cgroup_root(f"faults-probe-{os.getpid()}")
    return root is not None and root.remove()


def tried(row: Row, libraries: Path) -> Seen:
    """Try it on a host of its own; AssertionError when something did not hold. `libraries`: where to build them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sf-")))
        nvml = FakeNvml(folder, build_nvml(libraries), GPUS)
        scene = Scene(nvml, None, cgroups="auto" if row.cgroups else "off")
        if row.preload:
            scene.world = world.World(folder, world.build(libraries), scene.state_dir)
            stack.callback(scene.world.close)
        stack.enter_context(scene)
        stack.enter_context(scene.observer)
        what = row.trial(scene)
        rows = scene.reckon()
        observer = scene.observer
        return Seen(what, observer.worst_s, observer.usual_s, observer.worst_lag_s, rows)


def freezes() -> str:
    """For rows with a disk that hangs."""
    return volume.missing_freezer()


def mounts() -> str:
    """For rows with a disk of their own."""
    return volume.missing()
