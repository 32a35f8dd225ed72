"""A zoo of random badly behaved trees, killed in the middle of their growth: nobody survives, with or without cgroups.

The proof does not use the code under test: /proc is scanned for a mark that every process of the zoo inherits in its
environment, and for the zoo's report path on the command line of those that wiped it.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import uuid
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from supervisor.edge.cgroup import CgroupRoot, ServerCgroup, find_cgroup_root
from supervisor.edge.process import SpawnPlan, Tree, become_subreaper, new_marker, scan, spawn
from supervisor.events import TreeEmptied
from tests.zoo.tree import MANNERS, WIPING

PROGRAM = str(Path(__file__).with_name("tree.py"))
LIMIT_S = 60.0
AT_ONCE = 10
PROCESSES_AT_MOST = AT_ONCE * 40  # tree.py counts its animals; forkers and those that end come on top


def survivors(mark: str, report_directory: Path) -> dict[int, str]:
    """Everybody alive who carries the zoo's mark, by environment or by command line, with his state and name."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            carried = Path("/proc", name, "environ").read_bytes() + Path("/proc", name, "cmdline").read_bytes()
            if mark.encode() in carried or str(report_directory).encode() in carried:
                found[int(name)] = Path("/proc", name, "stat").read_text()[:60]
        except OSError:
            continue
    found.pop(os.getpid(), None)
    return found


class Zoo:
    """Starts trees, lets each grow until its own random moment, kills it, and counts."""

    def __init__(self, directory: Path, root: CgroupRoot | None) -> None:
        self.directory = directory
        self.root = root
        self.mark = f"zoo-{uuid.uuid4().hex}"
        self.killed = 0
        self._slots = anyio.CapacityLimiter(AT_ONCE)

    async def run(self, seeds: range, manners: tuple[str, ...]) -> None:
        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as tasks:
                for seed in seeds:
                    tasks.start_soon(self._live, seed, manners)

    async def _live(self, seed: int, manners: tuple[str, ...]) -> None:
        async with self._slots:
            report = self.directory / f"report-{seed}"
            cgroup = self.root.server(f"zoo{seed}") if self.root else None
            if cgroup:
                cgroup.prepare()
            tree = await self._spawn(seed, manners, report, cgroup)
            await self._grown(report, random.Random(seed).randint(1, 6))
            answer = await tree.kill(LIMIT_S)
            assert isinstance(answer, TreeEmptied), answer
            self.killed += answer.killed
            tree.close()

    async def _spawn(self, seed: int, manners: tuple[str, ...], report: Path, cgroup: ServerCgroup | None) -> Tree:
        environment = {
            "PATH": os.environ["PATH"], "ZOO_REPORT": str(report), "ZOO_MARK": self.mark,
            "SGLSUP_TEST_RUN": os.environ["SGLSUP_TEST_RUN"],
        }  # fmt: skip
        command = ("/usr/bin/env", "python3", "-S", "-E", PROGRAM, str(seed), "3", *manners)
        plan = SpawnPlan(
            f"zoo{seed}", 1, command, environment, str(self.directory / f"log-{seed}"), new_marker(f"zoo{seed}", 1)
        )
        tree = await spawn(plan, cgroup)
        assert isinstance(tree, Tree), tree
        return tree

    async def _grown(self, report: Path, lines: int) -> None:
        """Until so many processes have reported, or the tree has no more to report: small trees exist."""
        with anyio.move_on_after(0.4):
            while reported(report) < lines:
                await anyio.sleep(0.01)


def reported(report: Path) -> int:
    return report.read_text().count("\n") if report.exists() else 0


@pytest.fixture
def cgroup_zoo(tmp_path: Path) -> Iterator[Zoo]:
    root = find_cgroup_root(f"zoo-{uuid.uuid4().hex[:8]}")
    if root is None:
        pytest.skip("no writable cgroup v2 here (needs root, or a delegated subtree)")
    yield Zoo(tmp_path, root)
    for left in root.leftovers():
        left.kill()
        assert anyio.run(left.empty, LIMIT_S)
        left.remove()
    root.remove()


@pytest.fixture
def swept_zoo(tmp_path: Path) -> Iterator[Zoo]:
    """As the daemon does without cgroups: orphans come to us, and end as our zombies."""
    assert become_subreaper()
    yield Zoo(tmp_path, None)
    for process in scan.orphans():
        os.waitpid(process.pid, 0)  # bounded: the test has proven that they are dead
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


@pytest.fixture(params=["cgroup", "swept"])
def zoo(request: pytest.FixtureRequest) -> Zoo:
    made: Zoo = request.getfixturevalue(f"{request.param}_zoo")
    return made


def manners_for(zoo: Zoo) -> tuple[str, ...]:
    """Who wipes his environment and leaves session and parent is found by his cgroup alone; see test_household."""
    return (*MANNERS, WIPING) if zoo.root else MANNERS


async def visit(zoo: Zoo, trees: int) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and soft < PROCESSES_AT_MOST * 2:
        pytest.skip(f"only {soft} processes allowed here")
    await zoo.run(range(trees), manners_for(zoo))
    assert survivors(zoo.mark, zoo.directory) == {}
    assert zoo.killed >= trees
    if zoo.root:
        assert all(left.remove() for left in zoo.root.leftovers())


async def test_twenty_trees(zoo: Zoo) -> None:
    await visit(zoo, 20)


@pytest.mark.slow
async def test_a_hundred_trees(zoo: Zoo) -> None:
    await visit(zoo, 100)


@pytest.mark.parametrize("manner", MANNERS)
async def test_each_manner_alone(zoo: Zoo, manner: str) -> None:
    """So that a failure names the trick that got away."""
    await zoo.run(range(2), (manner,))
    assert survivors(zoo.mark, zoo.directory) == {}


async def test_who_leaves_no_trace_is_still_in_his_cgroup(cgroup_zoo: Zoo) -> None:
    await cgroup_zoo.run(range(2), (WIPING,))
    assert survivors(cgroup_zoo.mark, cgroup_zoo.directory) == {}


def test_the_proof_itself_finds_survivors(tmp_path: Path) -> None:
    """A scan that finds nobody proves something only if it would have found somebody."""
    import subprocess

    mark = f"zoo-{uuid.uuid4().hex}"
    with subprocess.Popen(["sleep", "600"], env={**os.environ, "ZOO_MARK": mark}) as marked:
        try:
            found = survivors(mark, tmp_path)
        finally:
            marked.kill()
    assert list(found) == [marked.pid]
