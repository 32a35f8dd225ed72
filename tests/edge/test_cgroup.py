"""A root is found wherever one can be had; a server's cgroup kills, freezes and proves emptiness."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from supervisor.edge.cgroup import CgroupRoot, ServerCgroup, find_cgroup_root, safe_name
from tests.edge.conftest import LIMIT_S, until


@pytest.fixture
def cgroup(cgroup_root: CgroupRoot) -> ServerCgroup:
    made = cgroup_root.server("it")
    made.prepare()
    return made


def join(cgroup: ServerCgroup, *command: str) -> subprocess.Popen[bytes]:
    script = 'echo 0 > "$0" && exec "$@"'
    return subprocess.Popen(["sh", "-c", script, f"{cgroup.path}/cgroup.procs", *command])


@pytest.fixture
def sleeper(cgroup: ServerCgroup) -> Iterator[subprocess.Popen[bytes]]:
    process = join(cgroup, "sleep", "600")
    anyio.run(until, cgroup.pids)
    yield process
    process.kill()
    process.wait()


# --- one server's cgroup -------------------------------------------------------------------------------------------


async def test_an_unprepared_one_is_empty_and_harmless(cgroup_root: CgroupRoot) -> None:
    cgroup = cgroup_root.server("never")
    assert not cgroup.exists()
    assert cgroup.pids() == ()
    assert not cgroup.populated()
    cgroup.kill()
    cgroup.freeze(True)
    assert await cgroup.empty(1.0)
    assert cgroup.cpu_s() is None
    assert cgroup.oom_kills() is None
    assert cgroup.remove()


async def test_members_are_seen(cgroup: ServerCgroup, sleeper: subprocess.Popen[bytes]) -> None:
    assert cgroup.pids() == (sleeper.pid,)
    assert cgroup.populated()
    assert not cgroup.remove()


async def test_members_of_the_servers_own_sub_cgroups_count(
    cgroup: ServerCgroup, sleeper: subprocess.Popen[bytes]
) -> None:
    inner = Path(cgroup.path, "a", "b")
    inner.mkdir(parents=True)
    (inner / "cgroup.procs").write_text(str(sleeper.pid))
    assert cgroup.pids() == (sleeper.pid,)
    cgroup.kill()
    assert await cgroup.empty(LIMIT_S)
    sleeper.wait()
    assert cgroup.remove()
    assert not cgroup.exists()


async def test_emptiness_is_told_as_soon_as_it_is(cgroup: ServerCgroup, sleeper: subprocess.Popen[bytes]) -> None:
    took: list[float] = []

    async def wait() -> None:
        assert await cgroup.empty(LIMIT_S)
        took.append(time.monotonic())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        began = time.monotonic()
        cgroup.kill()
    assert took[0] - began < 1.0  # 1-30 ms on a quiet machine


async def test_waiting_for_emptiness_is_bounded(cgroup: ServerCgroup, sleeper: subprocess.Popen[bytes]) -> None:
    assert not await cgroup.empty(0.05)


async def test_a_cgroup_removed_under_the_waiter_is_empty(cgroup_root: CgroupRoot, cgroup: ServerCgroup) -> None:
    process = join(cgroup, "sleep", "600")
    await until(cgroup.pids)
    answers: list[bool] = []

    async def wait() -> None:
        answers.append(await cgroup.empty(LIMIT_S))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        process.kill()
        process.wait()
        await until(cgroup.remove)
    assert answers == [True]


async def test_a_frozen_server_stands_still_and_can_be_killed(
    cgroup: ServerCgroup, sleeper: subprocess.Popen[bytes]
) -> None:
    cgroup.freeze(True)
    assert await cgroup.frozen(LIMIT_S)
    cgroup.kill()
    assert await cgroup.empty(LIMIT_S)


async def test_a_thawed_server_goes_on(cgroup: ServerCgroup, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    process = join(cgroup, "sh", "-c", f"read line < {tmp_path}/fifo; exit 5")
    await until(cgroup.pids)
    cgroup.freeze(True)
    assert await cgroup.frozen(LIMIT_S)
    cgroup.freeze(False)
    (tmp_path / "fifo").write_text("go\n")
    assert process.wait() == 5


async def test_taking_over_a_frozen_cgroup_thaws_it(cgroup: ServerCgroup, sleeper: subprocess.Popen[bytes]) -> None:
    """Else a daemon that died between freeze and kill leaves a cgroup in which nothing can start."""
    cgroup.freeze(True)
    cgroup.prepare()
    assert Path(cgroup.path, "cgroup.freeze").read_text() == "0\n"


async def test_without_cgroup_kill_everyone_is_killed_one_by_one(
    cgroup: ServerCgroup, sleeper: subprocess.Popen[bytes]
) -> None:
    """Linux < 5.14 has no such file: the same cgroup, seen by an object that finds none."""

    class Old(ServerCgroup):
        def _write(self, name: str, text: str) -> None:
            super()._write("no-such-file" if name == "cgroup.kill" else name, text)

    Old(cgroup.path).kill()
    assert await cgroup.empty(LIMIT_S)
    assert not Path(cgroup.path, "no-such-file").exists()


async def test_cpu_time_is_of_all_who_ever_ran_in_it(cgroup: ServerCgroup) -> None:
    before = cgroup.cpu_s()
    assert before is not None
    join(cgroup, sys.executable, "-S", "-E", "-c", "sum(range(2_000_000))").wait()
    after = cgroup.cpu_s()
    assert after is not None
    assert after > before


def test_oom_kills_need_the_memory_controller(cgroup_root: CgroupRoot, cgroup: ServerCgroup) -> None:
    assert cgroup.oom_kills() == (0 if "memory" in cgroup_root.controllers else None)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("kimi", "kimi"),
        ("a/../b", "a_.._b"),
        ("..", "_.."),
        ("", "_"),
        ("a b\n", "a_b_"),
        ("kimi-2.5_x@1", "kimi-2.5_x@1"),
    ],
)
def test_names_make_one_directory_each(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_long_names_stay_apart_and_short_enough() -> None:
    names = {safe_name("x" * 300), safe_name("x" * 301), safe_name("é" * 300)}
    assert len(names) == 3
    assert all(len(name.encode()) <= 200 for name in names)


# --- the root ------------------------------------------------------------------------------------------------------


def test_what_an_earlier_daemon_left_is_found(cgroup_root: CgroupRoot, cgroup: ServerCgroup) -> None:
    again = find_cgroup_root(Path(cgroup_root.path).name.removeprefix("sglang-supervisor-"))
    assert again == cgroup_root
    assert [left.path for left in again.leftovers()] == [cgroup.path]


def test_a_root_goes_when_nobody_lives_in_it(cgroup_root: CgroupRoot, cgroup: ServerCgroup) -> None:
    """A spawn that failed leaves a prepared cgroup, which is nobody's."""
    process = join(cgroup, "sleep", "600")
    anyio.run(until, cgroup.pids)
    cgroup_root.server("prepared-only").prepare()
    assert not cgroup_root.remove()
    assert [left.path for left in cgroup_root.leftovers()] == [cgroup.path]
    process.kill()
    process.wait()
    assert cgroup_root.remove()
    assert not Path(cgroup_root.path).exists()
    assert cgroup_root.remove()


FIND = """
import json, msgspec, os, sys
from supervisor.edge.cgroup import find_cgroup_root
if len(sys.argv) > 2:
    os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
root = find_cgroup_root(sys.argv[1])
print(json.dumps({"root": root and msgspec.to_builtins(root), "own": open("/proc/self/cgroup").read()}))
"""


class Unit:
    """A cgroup as systemd would make it for the daemon's unit, and a daemon started in it."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def find(self, *more: str, within: str = ".") -> dict[str, object]:
        script = f'echo 0 > "{self.base}/{within}/cgroup.procs" && exec "$@"'
        command = ["sh", "-c", script, "sh", sys.executable, "-c", FIND, "label", *more]
        answer = subprocess.run(command, capture_output=True, check=True, text=True)
        found: dict[str, object] = json.loads(answer.stdout)
        return found

    def delegate(self, owner: int) -> None:
        """Give it to a user, as `Delegate=yes` with `User=` does."""
        for name in ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
            os.chown(self.base / name, owner, owner)


@pytest.fixture
def unit(cgroup_root: CgroupRoot) -> Iterator[Unit]:
    base = Path(cgroup_root.path, f"unit-{uuid.uuid4().hex[:8]}.service")
    base.mkdir()
    yield Unit(base)
    for path, _, _ in list(os.walk(base))[::-1]:
        os.rmdir(path)


def own_path(answer: dict[str, object]) -> str:
    lines = str(answer["own"]).splitlines()
    return next(line.removeprefix("0::") for line in lines if line.startswith("0::"))


def test_in_a_unit_the_servers_lie_beside_the_daemon(unit: Unit) -> None:
    answer = unit.find()
    assert answer["root"] == {"path": str(unit.base), "controllers": []}
    assert own_path(answer).endswith(f"/{unit.base.name}/daemon")
    assert (unit.base / "servers").is_dir()


def test_a_restarted_daemon_finds_the_same_place(unit: Unit) -> None:
    """systemd starts it in the unit's own cgroup again, with the servers' cgroups still below."""
    first = unit.find()
    assert unit.find()["root"] == first["root"]


def test_a_daemon_that_replaces_itself_finds_the_same_place(unit: Unit) -> None:
    """After a re-exec (or with DelegateSubgroup=daemon) it sits in the leaf already."""
    first = unit.find()
    again = unit.find(within="daemon")
    assert again["root"] == first["root"]
    assert own_path(again).endswith(f"/{unit.base.name}/daemon")


def test_a_daemon_with_neighbours_leaves_them_where_they_are(unit: Unit) -> None:
    neighbour = subprocess.Popen(["sh", "-c", f"echo 0 > {unit.base}/cgroup.procs && exec sleep 600"])
    try:
        anyio.run(until, lambda: str(neighbour.pid) in (unit.base / "cgroup.procs").read_text())
        answer = unit.find()
        assert answer["root"] == {"path": str(unit.base), "controllers": []}
        assert own_path(answer).endswith(f"/{unit.base.name}")
    finally:
        neighbour.kill()
        neighbour.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user needs root")
def test_without_the_right_to_write_there_is_none(unit: Unit) -> None:
    assert unit.find("as-nobody")["root"] is None


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user needs root")
def test_a_delegated_cgroup_serves_a_user(unit: Unit) -> None:
    unit.delegate(65534)
    answer = unit.find("as-nobody")
    assert answer["root"] == {"path": str(unit.base), "controllers": []}
    assert own_path(answer).endswith("/daemon")


def fake_proc(directory: Path, mountinfo: str, cgroup: str) -> str:
    (directory / "self").mkdir()
    (directory / "self" / "mountinfo").write_text(mountinfo)
    (directory / "self" / "cgroup").write_text(cgroup)
    return str(directory)


V1 = "30 25 0:26 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"


@pytest.mark.parametrize(
    ("mountinfo", "cgroup"),
    [
        pytest.param(V1, "4:memory:/\n", id="v1-only"),
        pytest.param("", "", id="nothing"),
        pytest.param("31 25 0:27 / {place} rw - cgroup2 cgroup2 rw\n", "4:memory:/\n", id="mounted-but-not-in-it"),
        pytest.param("31 25 0:27 / {place} rw - cgroup2 cgroup2 rw\n", "0::/../outside\n", id="outside-our-namespace"),
        pytest.param("31 25 0:27 /sub {place} rw - cgroup2 cgroup2 rw\n", "0::/\n", id="a-part-of-it-bound-there"),
        pytest.param("31 25 0:27 / /proc/nowhere rw - cgroup2 cgroup2 rw\n", "0::/\n", id="read-only"),
    ],
)
def test_where_there_is_no_cgroup_v2_to_be_had(tmp_path: Path, mountinfo: str, cgroup: str) -> None:
    proc = fake_proc(tmp_path, mountinfo.format(place=tmp_path), cgroup)
    assert find_cgroup_root("label", proc=proc) is None
