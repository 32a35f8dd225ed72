"""Trees that end with their test, and a cgroup root of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import pytest

from supervisor.edge.cgroup import CgroupRoot, ServerCgroup, find_cgroup_root
from supervisor.edge.process import SpawnPlan, Tree, new_marker, spawn
from supervisor.events import SpawnFailed, TreeEmptied

LIMIT_S = 20.0
Starter = Callable[..., Awaitable[Tree]]


@pytest.fixture
def cgroup_root() -> Iterator[CgroupRoot]:
    root = find_cgroup_root(f"test-{uuid.uuid4().hex[:8]}")
    if root is None:
        pytest.skip("no writable cgroup v2 here (needs root, or a delegated subtree)")
    yield root
    for left in root.leftovers():
        left.kill()
        assert anyio.run(left.empty, LIMIT_S)
        left.remove()
    root.remove()


@pytest.fixture(params=["cgroup", "swept"])
def cgroup(request: pytest.FixtureRequest) -> ServerCgroup | None:
    """Both ways to own a tree: the tests that take this run once with a cgroup and once without."""
    if request.param == "swept":
        return None
    made: ServerCgroup = request.getfixturevalue("cgroup_root").server("it")
    made.prepare()
    return made


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    """`await start("sh", "-c", "…", cgroup=…, user=…)` answers a tree that is killed at the end of the test."""
    trees: list[Tree] = []

    async def start(*command: str, cgroup: ServerCgroup | None = None, **options: object) -> Tree:
        tree = await spawn(plan_for(tmp_path, *command, **options), cgroup)
        assert isinstance(tree, Tree), tree
        trees.append(tree)
        return tree

    yield start
    for tree in trees:
        assert isinstance(await tree.kill(LIMIT_S), TreeEmptied)
        tree.close()


# Ends its first thread alone: /proc then calls the process a zombie, without a command line or environment.
HEADLESS = """
import ctypes, signal, threading
threading.Thread(target=signal.pause).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def headless() -> Iterator[int]:
    """The pid of a process that lives on without its first thread."""
    with subprocess.Popen([sys.executable, "-c", HEADLESS]) as process:
        give_up = time.monotonic() + LIMIT_S
        while not is_headless(process.pid) and time.monotonic() < give_up:
            time.sleep(0.01)
        yield process.pid
        process.kill()


def is_headless(pid: int) -> bool:
    field = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return field[0] == "Z" and int(field[17]) > 1


def plan_for(place: Path, /, *command: str, **options: object) -> SpawnPlan:
    """A plan as the daemon makes it, for a command that may be a program of `sh` or of this Python."""
    words = (sys.executable, *command[1:]) if command[0] == "python" else command
    environment = {"PATH": os.environ["PATH"], "SGLSUP_TEST_RUN": os.environ["SGLSUP_TEST_RUN"]}
    environment.update(options.pop("environment", {}))  # type: ignore[call-overload]
    defaults = {"directory": str(place), "log_path": str(place / "server.log")}
    return SpawnPlan("it", 1, words, environment, marker=new_marker("it", 1), **{**defaults, **options})  # type: ignore[arg-type]


async def spawn_refused(plan: SpawnPlan, cgroup: ServerCgroup | None = None) -> SpawnFailed:
    refused = await spawn(plan, cgroup)
    assert isinstance(refused, SpawnFailed), refused
    return refused


async def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait until the condition holds: for what has no event of its own, such as a line in a file."""
    with anyio.fail_after(limit_s):
        while not condition():
            await anyio.sleep(0.005)
