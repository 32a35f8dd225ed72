"""A tree's end is told once and truly; a kill leaves nobody, whatever its processes did to get away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from supervisor.edge.cgroup import CgroupRoot, ServerCgroup
from supervisor.edge.process import Tree, adopt, spawn
from supervisor.events import Exited, TreeEmptied, TreeStuck
from tests.edge.conftest import HEADLESS, LIMIT_S, Starter, is_headless, plan_for, until

ZOO = str(Path(__file__).parents[2] / "zoo" / "tree.py")


def carriers(marker: str) -> list[int]:
    """The living processes with the marker in their environment, found without the code under test."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if marker.encode() in Path("/proc", name, "environ").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


async def grown(start: Starter, script: str, settled: int, cgroup: ServerCgroup | None) -> Tree:
    """A tree of `sh`, once so many of its processes have become a `sleep` or been stopped."""
    tree = await start("sh", "-c", script, cgroup=cgroup)
    await until(lambda: len(settlers(tree.marker)) == settled)
    return tree


def settlers(marker: str) -> list[int]:
    return [pid for pid in carriers(marker) if "(sleep)" in stat_of(pid) or ") T " in stat_of(pid)]


def stat_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""


# --- the first thread ----------------------------------------------------------------------------------------------


async def test_a_leader_whose_first_thread_ended_is_no_zombie(start: Starter, cgroup: ServerCgroup | None) -> None:
    """It may serve on, or hold all the memory: taken for dead by a daemon that came back, it got a second copy."""
    tree = await start("python", "-c", HEADLESS, cgroup=cgroup)
    await until(lambda: is_headless(tree.pid))
    assert tree.leader_alive()
    again = adopt(tree.spawned, "it", tree.marker, cgroup)
    try:
        assert [process.pid for process in await again.members(thorough=True)] == [tree.pid]
    finally:
        again.close()
    assert isinstance(await tree.kill(LIMIT_S), TreeEmptied)
    assert (await tree.exited()).code == -signal.SIGKILL


# --- exits ---------------------------------------------------------------------------------------------------------


async def test_everybody_who_waits_gets_the_same_answer(start: Starter) -> None:
    tree = await start("sleep", "600")
    answers: list[Exited] = []

    async def wait() -> None:
        answers.append(await tree.exited())

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert tree.signal(signal.SIGINT)
    assert answers == [Exited(1, -signal.SIGINT)] * 3
    assert await tree.exited() == answers[0]


async def test_one_waiter_that_gives_up_does_not_cost_the_other_the_answer(start: Starter) -> None:
    tree = await start("sleep", "600")
    answers: list[Exited] = []

    async def impatient(scope: anyio.CancelScope) -> None:
        with scope:
            await tree.exited()

    async def patient() -> None:
        answers.append(await tree.exited())

    scope = anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(impatient, scope)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(patient)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        tree.signal(signal.SIGKILL)
    assert answers == [Exited(1, -signal.SIGKILL)]


async def test_the_exit_is_known_within_milliseconds(start: Starter) -> None:
    tree = await start("sleep", "600")
    took = []
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            await tree.exited()
            took.append(time.monotonic())

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        began = time.monotonic()
        tree.signal(signal.SIGKILL)
    assert took[0] - began < 0.5  # 0.4 ms on a quiet machine


async def test_a_leader_killed_with_its_tree_still_has_its_code(start: Starter, cgroup: ServerCgroup | None) -> None:
    tree = await start("sleep", "600", cgroup=cgroup)
    await tree.kill(LIMIT_S)
    assert await tree.exited() == Exited(1, -signal.SIGKILL)


async def test_an_ended_leader_cannot_be_signalled(start: Starter) -> None:
    tree = await start("true")
    await tree.exited()
    assert not tree.signal(signal.SIGTERM)
    assert not tree.leader_alive()


async def test_a_signal_reaches_the_leader_alone(start: Starter, tmp_path: Path) -> None:
    tree = await grown(start, "trap 'echo got it; exit 5' TERM; sleep 600 & wait", 1, None)
    assert tree.signal(signal.SIGTERM)
    assert await tree.exited() == Exited(1, 5)
    assert [process.name for process in await tree.members()] == ["sleep"]


# --- kills ---------------------------------------------------------------------------------------------------------


async def killed(tree: Tree) -> TreeEmptied:
    answer = await tree.kill(LIMIT_S)
    assert isinstance(answer, TreeEmptied), answer
    assert carriers(tree.marker) == []
    return answer


async def test_killing_what_has_ended_already(start: Starter, cgroup: ServerCgroup | None) -> None:
    tree = await start("true", cgroup=cgroup)
    await tree.exited()
    assert (await killed(tree)).killed == 0
    assert (await killed(tree)).killed == 0


@pytest.mark.parametrize(
    ("script", "settled"),
    [
        pytest.param("sleep 600 & sleep 600 & wait", 2, id="children"),
        pytest.param("trap '' TERM INT HUP QUIT; sleep 600 & wait", 1, id="ignores-term"),
        pytest.param("(sleep 600 &) ; (sleep 600 &) ; exit 0", 2, id="leader-gone"),
        pytest.param("setsid sleep 600 & wait", 1, id="own-session"),
        pytest.param("(setsid sh -c 'setsid sleep 600 & exec sleep 600' &) ; exit 1", 2, id="daemons"),
        pytest.param("sh -c 'kill -STOP $$' & kill -STOP $$", 2, id="stopped"),
        pytest.param("(env -u SGLSUP_TREE SGLSUP_TREE=other:1:2 sleep 600 &) ; sleep 600", 1, id="another-marker"),
    ],
)
async def test_nobody_gets_away(
    start: Starter, tmp_path: Path, cgroup: ServerCgroup | None, script: str, settled: int
) -> None:
    tree = await grown(start, script, settled, cgroup)
    answer = await killed(tree)
    assert answer.killed >= settled


async def test_a_tree_that_forks_while_it_is_killed(
    start: Starter, cgroup: ServerCgroup | None, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    tree = await start("python", ZOO, "3", "1", "forking", cgroup=cgroup, environment={"ZOO_REPORT": str(report)})
    await until(report.exists)
    await killed(tree)


async def test_a_process_that_leaves_its_cgroup_is_found_by_its_marker(start: Starter, cgroup_root: CgroupRoot) -> None:
    cgroup = cgroup_root.server("left")
    cgroup.prepare()
    elsewhere = cgroup_root.server("elsewhere")
    elsewhere.prepare()
    tree = await start("sh", "-c", f"(echo 0 > {elsewhere.path}/cgroup.procs; exec sleep 600) & wait", cgroup=cgroup)
    await until(elsewhere.pids)
    await killed(tree)
    assert elsewhere.pids() == ()


async def test_a_bystander_in_the_same_scan_lives_on(
    start: Starter, cgroup: ServerCgroup | None, tmp_path: Path
) -> None:
    other = await start("sleep", "600", log_path=str(tmp_path / "other.log"))
    tree = await start("sleep", "600", cgroup=cgroup)
    await killed(tree)
    assert other.leader_alive()


async def test_members_are_the_living_ones(start: Starter, cgroup: ServerCgroup | None, tmp_path: Path) -> None:
    tree = await grown(start, "sleep 600 & (setsid sleep 601 &) ; exec sleep 602", 3, cgroup)
    assert sorted(process.pid for process in await tree.members()) == sorted(carriers(tree.marker))


async def test_a_title_with_parentheses_and_newlines(start: Starter) -> None:
    name = "a) R 1 (b\n c"
    code = f"import ctypes, time; ctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0); time.sleep(600)"
    tree = await start("python", "-c", code)

    async def renamed() -> bool:
        return [process.name for process in await tree.members()] == [name]

    with anyio.fail_after(LIMIT_S):
        while not await renamed():
            await anyio.sleep(0.005)
    await killed(tree)


# --- what is not the tree's ----------------------------------------------------------------------------------------


async def test_a_login_in_which_one_command_has_the_servers_environment_lives_on(
    start: Starter, cgroup: ServerCgroup | None, tmp_path: Path
) -> None:
    """`env $(xargs -0 < /proc/PID/environ) …` is a usual step of debugging; the command is ended, the login is not."""
    tree = await start("sh", "-c", "sleep 600 & wait", cgroup=cgroup)
    script = f"sleep 601 & env SGLSUP_TREE='{tree.marker}' sleep 602 & sleep 603 | sleep 604 & echo; wait %1 %3"
    clean = {"PATH": os.environ["PATH"], "SGLSUP_TEST_RUN": os.environ["SGLSUP_TEST_RUN"]}
    login = subprocess.Popen(["sh", "-c", script], env=clean, start_new_session=True, stdout=subprocess.PIPE)
    try:
        await until(lambda: len(settlers(tree.marker)) == 2 and len(group_of(login.pid)) == 5)
        await tree.members(thorough=True)  # as the daemon's watch does all the time
        await killed(tree)
        assert carriers(tree.marker) == []
        assert len(group_of(login.pid)) == 4
        assert login.poll() is None
    finally:
        os.killpg(login.pid, signal.SIGKILL)
        login.communicate()


async def test_a_session_whose_leader_has_ended_is_the_trees_when_only_members_are_in_it(start: Starter) -> None:
    """A daemonized process: nobody saw who made its session, and a child of it wipes its environment later."""
    inner = "echo $$ > inner; read line < fifo; env -i sleep 600 & exit"
    tree = await start(
        "sh",
        "-c",
        f"mkfifo fifo; (setsid sh -c 'sh -c \"{inner.replace('$', chr(92) + '$')}\" & exit' &) ; exec sleep 601",
    )
    place = Path(tree.spawned.log_path).parent
    await until(lambda: (place / "inner").exists() and (place / "inner").read_text())
    inner_pid = int((place / "inner").read_text())
    session = int(stat_of(inner_pid).rpartition(")")[2].split()[3])
    await until(lambda: not stat_of(session))
    assert inner_pid in [process.pid for process in await tree.members()]
    (place / "fifo").write_text("go\n")
    await until(lambda: in_session(session) and inner_pid not in in_session(session))
    await killed(tree)
    assert in_session(session) == []


def in_session(session: int) -> list[int]:
    """Its living processes, found without the code under test."""
    return living_by_field(3, session)


def group_of(leader: int) -> list[int]:
    return living_by_field(2, leader)


def living_by_field(index: int, number: int) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        fields = stat_of(int(name)).rpartition(")")[2].split()
        if fields and fields[0] not in "ZX" and int(fields[index]) == number:
            found.append(int(name))
    return found


# --- processes that survive SIGKILL --------------------------------------------------------------------------------


@pytest.fixture
def unkillable() -> Iterator[Path]:
    """A cgroup v1 freezer: what is frozen in it sleeps in the kernel, SIGKILL or not, until it is thawed."""
    root = Path("/sys/fs/cgroup/freezer")
    if not (root.is_dir() and os.access(root, os.W_OK)):
        pytest.skip("no cgroup v1 freezer, which makes processes that survive SIGKILL")
    place = root / f"sglsup-test-{os.getpid()}"
    place.mkdir()
    yield place
    (place / "freezer.state").write_text("THAWED")
    began = time.monotonic()
    while (place / "cgroup.procs").read_text() and time.monotonic() - began < LIMIT_S:
        time.sleep(0.01)
    place.rmdir()


async def test_a_process_stuck_in_the_kernel_is_named_and_never_called_dead(
    start: Starter, cgroup: ServerCgroup | None, tmp_path: Path, unkillable: Path
) -> None:
    tree = await grown(start, "sleep 600 & (sleep 601 &) ; wait", 2, cgroup)
    stuck = next(process for process in await tree.members() if process.name == "sleep")
    (unkillable / "cgroup.procs").write_text(str(stuck.pid))
    (unkillable / "freezer.state").write_text("FROZEN")

    answer = await tree.kill(limit_s=0.3)

    assert isinstance(answer, TreeStuck)
    assert [(process.pid, process.command) for process in answer.processes] == [(stuck.pid, "sleep")]
    assert answer.processes[0].state == "D"
    assert answer.processes[0].wait_channel
    (unkillable / "freezer.state").write_text("THAWED")
    await killed(tree)


async def test_many_stuck_ones_make_a_bounded_report(start: Starter, tmp_path: Path, unkillable: Path) -> None:
    script = "for i in $(seq 40); do sleep 600 & done; wait"
    tree = await grown(start, script, 40, None)
    for process in await tree.members():
        (unkillable / "cgroup.procs").write_text(str(process.pid))
    (unkillable / "freezer.state").write_text("FROZEN")
    answer = await tree.kill(limit_s=0.3)
    (unkillable / "freezer.state").write_text("THAWED")
    assert isinstance(answer, TreeStuck)
    assert len(answer.processes) == 32


# --- adoption ------------------------------------------------------------------------------------------------------

LEAVER = """
import anyio, msgspec, sys
from supervisor.edge.cgroup import ServerCgroup
from supervisor.edge.process import spawn, SpawnPlan
async def main():
    plan = msgspec.json.decode(sys.argv[1], type=SpawnPlan)
    tree = await spawn(plan, ServerCgroup(sys.argv[2]) if sys.argv[2] else None)
    print(msgspec.json.encode(tree.spawned).decode(), flush=True)
    sys.stdin.read()
anyio.run(main)
"""


class Earlier:
    """A daemon that starts a tree and then dies of SIGKILL: what remains is for us to adopt."""

    def __init__(self, tmp_path: Path, cgroup: ServerCgroup | None, *command: str) -> None:
        import msgspec

        from supervisor.events import Spawned

        self.plan = plan_for(tmp_path, *command)
        arguments = [
            sys.executable,
            "-c",
            LEAVER,
            msgspec.json.encode(self.plan).decode(),
            cgroup.path if cgroup else "",
        ]
        self._process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.spawned = msgspec.json.decode(line, type=Spawned)

    def die(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def pidfd_tells_exits() -> bool:
    major, minor = map(int, os.uname().release.split(".")[:2])
    return (major, minor) >= (6, 15)


async def test_an_adopted_tree_tells_its_exit_status(tmp_path: Path, cgroup: ServerCgroup | None) -> None:
    script = "read line < fifo; exit 42"
    os.mkfifo(tmp_path / "fifo")
    earlier = Earlier(tmp_path, cgroup, "sh", "-c", script)
    earlier.die()
    tree = adopt(earlier.spawned, "it", earlier.plan.marker, cgroup)
    assert tree.leader_alive()
    (tmp_path / "fifo").write_text("go\n")
    with anyio.fail_after(LIMIT_S):
        exited = await tree.exited()
    assert exited == Exited(1, 42 if pidfd_tells_exits() else None)
    await killed(tree)
    tree.close()


async def test_an_adopted_tree_is_killed_whole(tmp_path: Path, cgroup: ServerCgroup | None) -> None:
    earlier = Earlier(tmp_path, cgroup, "sh", "-c", "(setsid sleep 600 &) ; sleep 600 & wait")
    await until(lambda: len(settlers(earlier.plan.marker)) == 2)
    earlier.die()
    tree = adopt(earlier.spawned, "it", earlier.plan.marker, cgroup)
    assert (await killed(tree)).killed == 3
    assert (await tree.exited()).code == (-signal.SIGKILL if pidfd_tells_exits() else None)
    tree.close()


async def test_a_tree_whose_leader_ended_meanwhile(tmp_path: Path, cgroup: ServerCgroup | None) -> None:
    earlier = Earlier(tmp_path, cgroup, "sh", "-c", "sleep 600 & exit 0")
    await until(lambda: len(carriers(earlier.plan.marker)) == 1)
    earlier.die()
    tree = adopt(earlier.spawned, "it", earlier.plan.marker, cgroup)
    assert (await tree.exited()).code in (0, None)  # 0: init had not reaped it yet when we looked
    assert not tree.signal(signal.SIGTERM)
    assert (await killed(tree)).killed == 1
    tree.close()


async def test_a_stranger_with_the_leaders_pid_is_left_alone(start: Starter, tmp_path: Path) -> None:
    """After a reboot, or much time, the pid in the state file may be anybody's: the start time tells."""
    import msgspec

    stranger = await start("sleep", "600")
    remembered = msgspec.structs.replace(stranger.spawned, start_ticks=stranger.spawned.start_ticks - 1)
    tree = adopt(remembered, "it", "it:1:long-gone")
    assert await tree.exited() == Exited(1, None)
    assert (await tree.kill(LIMIT_S)) == TreeEmptied(1, killed=0, took_s=pytest.approx(0, abs=LIMIT_S))
    assert stranger.leader_alive()
    tree.close()


async def test_our_own_child_can_be_adopted_again(tmp_path: Path) -> None:
    """After a re-exec the trees are still our children: their status comes from waitid on every kernel."""
    before = await spawn(plan_for(tmp_path, "sh", "-c", "sleep 600 & wait; exit 9"))
    assert isinstance(before, Tree)
    tree = adopt(before.spawned, "it", before.marker)
    before.close()
    tree.signal(signal.SIGTERM)
    assert await tree.exited() == Exited(1, -signal.SIGTERM)
    await killed(tree)
    tree.close()
