"""A recorder stays as the server's parent and writes how it ended, and nobody but the daemon notices it."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from supervisor.edge.cgroup import ServerCgroup
from supervisor.edge.process import Household, Recorder, SpawnPlan, Tree, adopt, become_subreaper, kernel_tells, spawn
from supervisor.edge.process.exits import Status
from supervisor.edge.process.record import open_record
from supervisor.events import Exited, SpawnFailed, TreeEmptied
from tests.edge.conftest import LIMIT_S, Starter, plan_for, until


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "trees" / "it.exit")


@pytest.fixture(autouse=True)
async def reaped() -> AsyncIterator[None]:
    """A daemon's household reaps recorders that end after their tree."""
    yield
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        if stat_of(int(pid))[0] == "Z" or comm_of(int(pid)) == "sglsup-record":
            await anyio.to_thread.run_sync(os.waitpid, int(pid), 0)


def comm_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


@pytest.fixture
def subreaper() -> Iterator[None]:
    assert become_subreaper()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def stat_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def parent_of(pid: int) -> int:
    return int(stat_of(pid)[1])


def recorder_of(tree: Tree) -> Recorder:
    assert tree.recorder is not None
    return tree.recorder


async def test_the_leader_is_the_server_and_the_recorder_its_parent(start: Starter, path: str) -> None:
    tree = await start("sleep", "600", record_path=path)

    assert Path(f"/proc/{tree.pid}/cmdline").read_bytes() == b"sleep\x00600\x00"
    assert os.getsid(tree.pid) == os.getpgid(tree.pid) == tree.pid, "it leads its session, as ever"
    assert parent_of(tree.pid) == recorder_of(tree).pid != os.getpid()
    assert tree.spawned.start_ticks == int(stat_of(tree.pid)[19])
    assert tree.leader_alive()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -SEGV $$", -11), ("kill $$", -15)]
)
async def test_the_status_is_written_and_the_recorder_ends_alike(
    start: Starter, path: str, script: str, code: int
) -> None:
    tree = await start("sh", "-c", script, record_path=path)
    recorder = recorder_of(tree)

    assert await tree.exited() == Exited(1, code)
    assert Path(path).read_text() == f"{tree.marker}\n{code}\n"
    with anyio.fail_after(LIMIT_S):
        ended = await anyio.to_thread.run_sync(os.waitpid, recorder.pid, 0)
    assert os.waitstatus_to_exitcode(ended[1]) == code


async def test_who_comes_when_all_is_over_still_learns_the_status(start: Starter, path: str) -> None:
    """As a daemon that was not there: on no kernel is there anything left to ask but the file."""
    tree = await start("sh", "-c", "exit 7", record_path=path)
    await tree.exited()
    os.waitpid(recorder_of(tree).pid, 0)
    await until(lambda: not stat_of(tree.pid))

    later = adopt(tree.spawned, "it", tree.marker, None, recorder_of(tree))

    assert await later.exited() == Exited(1, 7)
    assert not later.leader_alive()
    later.close()


async def test_the_file_of_another_attempt_tells_nothing(start: Starter, path: str) -> None:
    tree = await start("sh", "-c", "exit 7", record_path=path)
    await tree.exited()
    other = Recorder(path, "it:2:0123", recorder_of(tree).pid)

    assert other.told() is None
    late = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.close(open_record(path, other.marker))
    os.write(late, b"9\n")  # the recorder of the attempt before
    os.close(late)
    assert Path(path).read_text() == f"{other.marker}\n"


@pytest.mark.parametrize("content", ["", "it:1:x\n", "it:1:x\n7", "it:1:x\nx\n", "it:1:x\n7\n8\n", "\xff\n7\n"])
def test_what_is_half_written_or_damaged_tells_nothing(tmp_path: Path, content: str) -> None:
    file = tmp_path / "it.exit"
    file.write_bytes(content.encode("latin-1"))
    assert Recorder(str(file), "it:1:x").told() is None
    file.write_text("it:1:x\n-9\n")
    assert Recorder(str(file), "it:1:x").told() == Status(-9)
    assert Recorder(str(tmp_path / "none"), "it:1:x").told() is None


async def test_the_recorder_passes_signals_on(start: Starter, path: str, tmp_path: Path) -> None:
    script = f"trap 'echo got >> {tmp_path}/got' HUP; trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done"
    tree = await start("sh", "-c", script, record_path=path)
    log = Path(tree.spawned.log_path)
    await until(lambda: log.read_text() == "up\n")

    os.kill(recorder_of(tree).pid, signal.SIGHUP)
    await until((tmp_path / "got").exists)
    os.kill(recorder_of(tree).pid, signal.SIGQUIT)  # of an orphaned rank: the daemon ignores it, too
    os.kill(recorder_of(tree).pid, signal.SIGTERM)

    assert await tree.exited() == Exited(1, 5)


async def test_a_server_whose_recorder_was_killed_falls_to_us(subreaper: None, start: Starter, path: str) -> None:
    """The daemon is its subreaper: nothing is lost as long as one of the two lives."""
    tree = await start("sleep", "600", record_path=path)
    os.kill(recorder_of(tree).pid, signal.SIGKILL)
    await until(lambda: parent_of(tree.pid) == os.getpid())

    assert tree.signal(signal.SIGINT)

    assert await tree.exited() == Exited(1, -signal.SIGINT)


async def test_a_kill_leaves_neither_of_them(start: Starter, path: str, cgroup: ServerCgroup | None) -> None:
    tree = await start("sh", "-c", "sleep 600 & sleep 601", cgroup=cgroup, record_path=path)
    recorder = recorder_of(tree)

    assert isinstance(await tree.kill(LIMIT_S), TreeEmptied)

    assert (await tree.exited()).code == -signal.SIGKILL
    await until(lambda: not stat_of(recorder.pid) or stat_of(recorder.pid)[0] == "Z")


async def test_a_recorder_is_no_stray_of_its_tree(start: Starter, path: str) -> None:
    """It is a child of ours, in a session of its own, without any mark."""
    tree = await start("sleep", "600", record_path=path)
    household = Household()
    household.add(tree)
    try:
        assert recorder_of(tree).pid not in [process.pid for process in await tree.members(thorough=True)]
        assert recorder_of(tree).pid not in [process.pid for process in household.strays(tree)]
    finally:
        tree.join(strays=list, leave=lambda: None)


async def test_it_holds_nothing_of_the_servers(start: Starter, path: str, tmp_path: Path) -> None:
    tree = await start("sleep", "600", record_path=path, directory=str(tmp_path))
    folder = Path("/proc", str(recorder_of(tree).pid))
    await until(lambda: (folder / "comm").read_text() == "sglsup-record\n")
    targets = {os.readlink(one) for one in (folder / "fd").iterdir()}

    assert targets == {os.devnull, path}
    assert os.readlink(folder / "cwd") == "/"
    server = {os.readlink(one) for one in Path(f"/proc/{tree.pid}/fd").iterdir()}
    assert path not in server, "the server cannot write its own status"


async def test_a_command_that_cannot_be_executed_is_told_as_ever(tmp_path: Path, path: str) -> None:
    failed = await spawn(plan_for(tmp_path, "/nonexistent", record_path=path))
    assert isinstance(failed, SpawnFailed)
    assert failed.reason == "cannot execute /nonexistent: No such file or directory"
    assert failed.permanent


async def test_a_record_that_cannot_be_opened_refuses_the_start(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    plan: SpawnPlan = plan_for(tmp_path, "sleep", "600", record_path=str(blocked / "it.exit"))
    failed = await spawn(plan)
    assert isinstance(failed, SpawnFailed)
    assert "for the exit status" in failed.reason


async def test_the_kernel_is_asked_whether_a_recorder_is_needed() -> None:
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    assert await kernel_tells() == (release >= (6, 15)), "or a vendor's kernel has it from elsewhere"
