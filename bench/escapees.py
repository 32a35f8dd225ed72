"""How many processes of badly behaved trees outlive their stop: ours, supervisord's and circus's, in one run.

The trees are those of tests/zoo: double forks, sessions and groups of their own, ignored TERM, parents that end first.
Each supervisor gets the same ten, with the settings that serve it best (kill the whole group, stop the children); a
scan of /proc for the zoo's mark counts who is left when the supervisor says that everything is stopped.
"""

import configparser
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import anyio

from bench.harness import Measurement, bench
from bench.peers import circus_folder, supervisord_folder
from supervisor.edge.cgroup import CgroupRoot, find_cgroup_root
from supervisor.edge.process import Household, SpawnPlan, Tree, become_subreaper, new_marker, spawn
from supervisor.events import TreeEmptied

TREE = str(Path(__file__).parents[1] / "tests" / "zoo" / "tree.py")
MANNERS = ("plain", "double-fork", "setsid", "daemonize", "ignore-term", "exit-first", "rename", "new-group", "exec")
SEEDS = range(10)
GROWN_S = 2.0
LIMIT_S = 60.0


class Outcome(NamedTuple):
    """What one supervisor left of how many, and how long its stop took."""

    grown: int
    left: int
    stop_ms: float


class Zoo:
    """One supervisor's trees: their commands, their common mark, who of them lives."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = f"zoo-{uuid.uuid4().hex}"

    def command(self, seed: int) -> list[str]:
        return [sys.executable, "-S", "-E", TREE, str(seed), "2", *MANNERS]

    def environment(self, seed: int) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "ZOO_REPORT": str(self.directory / f"report-{seed}"), "ZOO_MARK": self.mark}

    def living(self) -> list[int]:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and self._ours(name)]

    def _ours(self, pid: str) -> bool:
        try:
            return self.mark.encode() in Path("/proc", pid, "environ").read_bytes()
        except OSError:  # ended meanwhile
            return False

    def wait_grown(self) -> int:
        """Until the number of processes has stood still for a while."""
        count, since = -1, time.monotonic()
        while time.monotonic() - since < GROWN_S:
            if (now := len(self.living())) != count:
                count, since = now, time.monotonic()
            time.sleep(0.1)
        return count

    def clear(self) -> None:
        while left := self.living():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def stopped_by(self, stop: Callable[[], object]) -> Outcome:
        grown = self.wait_grown()
        began = time.monotonic()
        stop()
        took_ms = (time.monotonic() - began) * 1000
        outcome = Outcome(grown, len(self.living()), took_ms)
        self.clear()
        return outcome


@bench("escapees")
def escapees() -> Iterator[Measurement]:
    with tempfile.TemporaryDirectory(prefix="escapees-") as place:
        ours = measured(place, "cgroup", with_cgroups)
        swept = measured(place, "swept", without_cgroups)
        peers = {
            "supervisord": measured(place, "supervisord", by_supervisord),
            "circus": measured(place, "circus", by_circus),
        }
    for name, theirs in peers.items():
        left, stop_ms = (theirs.left, theirs.stop_ms) if theirs else (None, None)
        of = f"left of {theirs.grown}" if theirs else "left"
        for way, outcome in (("cgroup", ours), ("no cgroup", swept)):
            if outcome is not None:
                what = f"{of} ({way}: of {outcome.grown})"
                yield Measurement(f"processes {what}", "processes", outcome.left, name, left)
                yield Measurement(f"stop of {len(SEEDS)} trees ({way})", "ms", outcome.stop_ms, name, stop_ms)


def measured(place: str, name: str, run: Callable[[Zoo], Outcome | None]) -> Outcome | None:
    directory = Path(place, name)
    directory.mkdir()
    zoo = Zoo(directory)
    try:
        return run(zoo)
    finally:
        zoo.clear()


# --- ours ----------------------------------------------------------------------------------------------------------


def with_cgroups(zoo: Zoo) -> Outcome | None:
    root = find_cgroup_root(zoo.mark)
    if root is None:
        print("no writable cgroup v2 here: measured without", file=sys.stderr)
        return None
    try:
        return anyio.run(ours, zoo, root)
    finally:
        for left in root.leftovers():
            left.remove()
        root.remove()


def without_cgroups(zoo: Zoo) -> Outcome:
    become_subreaper()
    return anyio.run(ours, zoo, None)


async def ours(zoo: Zoo, root: CgroupRoot | None) -> Outcome:
    """As the daemon: TERM to each leader first would only give the trees time; the kill is what is compared."""
    household = Household()
    trees = [await start(zoo, seed, root) for seed in SEEDS]
    for tree in trees:
        household.add(tree)
    grown = await anyio.to_thread.run_sync(zoo.wait_grown)
    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        for tree in trees:
            tasks.start_soon(end, tree)
    return Outcome(grown, len(zoo.living()), (time.monotonic() - began) * 1000)


async def start(zoo: Zoo, seed: int, root: CgroupRoot | None) -> Tree:
    cgroup = root.server(f"zoo{seed}") if root else None
    if cgroup:
        cgroup.prepare()
    log_path = str(zoo.directory / f"log-{seed}")
    marker = new_marker("zoo", seed)
    plan = SpawnPlan("zoo", seed, tuple(zoo.command(seed)), zoo.environment(seed), log_path, marker)
    tree = await spawn(plan, cgroup)
    assert isinstance(tree, Tree), tree
    return tree


async def end(tree: Tree) -> None:
    answer = await tree.kill(LIMIT_S)
    assert isinstance(answer, TreeEmptied), answer
    tree.close()


# --- peers ---------------------------------------------------------------------------------------------------------


def by_supervisord(zoo: Zoo) -> Outcome | None:
    folder = supervisord_folder()
    if folder is None:
        return None
    configuration = zoo.directory / "supervisord.conf"
    socket = zoo.directory / "socket"
    sections: dict[str, dict[str, str]] = {
        "supervisord": {
            "logfile": str(zoo.directory / "log"),
            "pidfile": str(zoo.directory / "pid"),
            "nodaemon": "true",
        },
        "unix_http_server": {"file": str(socket)},
        "supervisorctl": {"serverurl": f"unix://{socket}"},
        "rpcinterface:supervisor": {
            "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface",
        },
    }
    for seed in SEEDS:
        environment = ",".join(f'{name}="{value}"' for name, value in zoo.environment(seed).items())
        sections[f"program:zoo{seed}"] = {
            "command": " ".join(zoo.command(seed)), "environment": environment, "autorestart": "false",
            "startsecs": "0", "stopasgroup": "true", "killasgroup": "true", "stopwaitsecs": "1",
        }  # fmt: skip
    write(configuration, sections)
    control = [str(folder / "supervisorctl"), "-c", str(configuration)]
    with daemon([str(folder / "supervisord"), "-c", str(configuration)], socket.exists):
        return zoo.stopped_by(lambda: subprocess.run([*control, "stop", "all"], check=True, capture_output=True))


def by_circus(zoo: Zoo) -> Outcome | None:
    folder = circus_folder()
    if folder is None:
        return None
    configuration = zoo.directory / "circus.ini"
    endpoint = f"ipc://{zoo.directory}/control"
    sections: dict[str, dict[str, str]] = {
        "circus": {
            "endpoint": endpoint, "pubsub_endpoint": f"ipc://{zoo.directory}/pubsub", "check_delay": "1",
            "statsd": "false",
        },
    }  # fmt: skip
    for seed in SEEDS:
        sections[f"watcher:zoo{seed}"] = {
            "cmd": " ".join(zoo.command(seed)), "stop_children": "true", "graceful_timeout": "1", "respawn": "false",
        }  # fmt: skip
        sections[f"env:zoo{seed}"] = zoo.environment(seed)
    write(configuration, sections)
    control = [str(folder / "circusctl"), "--endpoint", endpoint]
    with daemon([str(folder / "circusd"), str(configuration)], (zoo.directory / "control").exists):
        stop = [*control, "stop", "--waiting"]
        return zoo.stopped_by(lambda: subprocess.run(stop, check=True, capture_output=True, timeout=LIMIT_S))


def write(path: Path, sections: dict[str, dict[str, str]]) -> None:
    parser = configparser.RawConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_dict(sections)
    with path.open("w") as file:
        parser.write(file)


@contextlib.contextmanager
def daemon(command: list[str], ready: Callable[[], bool]) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + LIMIT_S
        while not ready() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
