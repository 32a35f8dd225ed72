"""What a daemon inherits of a server that has ended meanwhile: how it ended, when anything in the world still tells."""

import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import DEVNULL

import anyio
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from supervisor.edge.fdstore import DescriptorStore
from supervisor.edge.process import MARKER_NAME, SpawnPlan, Tree, new_marker, spawn
from supervisor.saved import SavedAttempt, SavedServer
from supervisor.shell.adoption import Inheritance, inherit, recollected
from supervisor.shell.states import StateStore
from supervisor.shell.trees import TreeStore, boot_id
from supervisor.snapshot import IncidentView

KERNEL_TELLS = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)


class Left:
    """A state directory as a daemon has left it, beside the tree that it has started."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.trees, self.states = TreeStore(place / "trees"), StateStore(place / "servers", boot_id())
        self.held: dict[str, int] = {}  # by systemd
        self.told: list[dict[str, str]] = []  # to systemd
        self._started: list[Tree] = []

    async def start(self, script: str, *, recorded: bool = False) -> Tree:
        record = str(self.trees.exit_path("kimi")) if recorded else ""
        log, marker = str(self.place / "log"), new_marker("kimi", 1, self.place)
        plan = SpawnPlan("kimi", 1, ("sh", "-c", script), dict(os.environ), log, marker, record_path=record)
        tree = await spawn(plan)
        assert isinstance(tree, Tree)
        self._started.append(tree)
        recorder = tree.recorder.pid if tree.recorder is not None else 0
        self.trees.put("kimi", marker, tree.spawned, recorder=recorder)
        attempt = SavedAttempt(1, 0.0, tree.pid, log)
        self.states.put(SavedServer("kimi", boot_id(), True, "running", 0.0, "", 1, tree_alive=True, attempt=attempt))
        return tree

    def hold(self, tree: Tree) -> None:
        """As systemd does, of which the next daemon gets it back."""
        assert tree.pidfd is not None
        self.held[tree.marker] = os.dup(tree.pidfd)

    async def inherit(self, *servers: str) -> Inheritance:
        store = DescriptorStore(lambda *_, **fields: self.told.append(fields), self.held)
        found = await inherit(servers or ["kimi"], self.trees, self.states, None, self.place, store)
        return found.get("kimi", Inheritance(None))

    async def clean(self) -> None:
        for tree in self._started:
            await tree.kill()
            if tree.recorder is not None:
                with contextlib.suppress(ChildProcessError):  # `inherit` had closed the tree, and reaped it
                    await anyio.to_thread.run_sync(os.waitpid, tree.recorder.pid, 0)
            tree.close()


@pytest.fixture
async def left(tmp_path: Path) -> AsyncIterator[Left]:
    one = Left(tmp_path)
    yield one
    await one.clean()


async def test_a_child_that_ended_between_two_codes_of_one_process_tells_its_status(left: Left) -> None:
    """After an upgrade it is a zombie of ours that nobody has asked."""
    tree = await left.start("exit 7")
    with anyio.fail_after(10):
        await anyio.to_thread.run_sync(os.waitid, os.P_PID, tree.pid, os.WEXITED | os.WNOWAIT)

    found = await left.inherit()

    assert (found.lives, found.ended) == (False, 7)
    assert found.saved is not None
    assert left.trees.read() == ([], [])


async def test_what_a_recorder_has_written_is_inherited(left: Left) -> None:
    tree = await left.start("kill -9 $$", recorded=True)
    await tree.exited()

    found = await left.inherit()

    assert (found.lives, found.ended) == (False, -9)
    assert not left.trees.exit_path("kimi").exists()


async def test_without_either_nobody_knows(left: Left) -> None:
    tree = await left.start("exit 7")
    await tree.exited()  # whoever asks first gets the only answer

    assert (await left.inherit()).ended is None


@pytest.mark.skipif(not KERNEL_TELLS, reason="this kernel tells an exit status to the parent alone")
@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", -11), ("kill -9 $$", -9)])
async def test_what_systemd_has_held_tells_how_it_ended(left: Left, script: str, code: int) -> None:
    tree = await left.start(script)
    left.hold(tree)
    await tree.exited()  # somebody else has reaped it

    found = await left.inherit()

    assert (found.lives, found.ended) == (False, code)
    assert left.told == [{"FDSTOREREMOVE": "1", "FDNAME": f"leader/{tree.marker.replace(':', '/')}"}] * 2
    assert not any(Path(f"/proc/self/fd/{one}").exists() for one in left.held.values())


@pytest.mark.skipif(not KERNEL_TELLS, reason="this kernel tells an exit status to the parent alone")
async def test_a_leader_that_has_left_others_behind_is_known_by_what_was_held(left: Left) -> None:
    # It is found by its environment, which it does not have in the midst of its exec.
    tree = await left.start("sleep 600 & until [ $(cat /proc/$!/comm) = sleep ]; do :; done; exit 3")
    left.hold(tree)
    await tree.exited()

    found = await left.inherit()

    assert found.tree is not None
    assert (await found.tree.exited()).code == 3
    assert found.tree.pidfd is None
    await found.tree.kill()
    found.tree.close()


async def test_what_was_held_of_a_living_tree_stays_held(left: Left) -> None:
    tree = await left.start("sleep 600")
    left.hold(tree)

    found = await left.inherit()

    assert found.tree is not None
    assert found.tree.pidfd is not None
    assert left.told == []
    assert not any(Path(f"/proc/self/fd/{one}").exists() for one in left.held.values())
    found.tree.close()


async def test_what_was_held_of_others_tells_nothing_and_is_dropped(left: Left) -> None:
    """Of an earlier attempt, whose record was overwritten while its news to systemd was lost."""
    tree = await left.start("exit 7")
    left.held["kimi:0:of-another"] = os.dup(tree.pidfd) if tree.pidfd is not None else -1
    await tree.exited()

    assert (await left.inherit()).ended is None

    assert {"FDSTOREREMOVE": "1", "FDNAME": "leader/kimi/0/of-another"} in left.told


async def test_nothing_is_held_of_what_is_not_configured_any_more(left: Left) -> None:
    tree = await left.start("sleep 600")
    left.hold(tree)

    await left.inherit("another")

    assert {"FDSTOREREMOVE": "1", "FDNAME": f"leader/{tree.marker.replace(':', '/')}"} in left.told
    assert left.trees.read() == ([], [])


async def test_a_tree_that_lives_is_adopted_with_its_recorder(left: Left) -> None:
    tree = await left.start("sleep 600", recorded=True)

    found = await left.inherit()

    assert found.tree is not None
    assert found.tree.recorder == tree.recorder
    found.tree.close()


def test_what_is_inherited_of_a_record() -> None:
    failed = IncidentView(1, 10.0, 20.0, "killed", "weights", "weights")
    up = SavedServer("kimi", "boot", True, "running", 0.0, "", 1, incidents=(failed,), at=100.0, wall=1e9)
    down = replace(up, goal_up=False, state="stopped")
    assert recollected(None, "boot") == (None, ())
    assert recollected(up, "boot") == (up, (failed,))
    assert recollected(replace(down, left=True), "boot") == (None, (failed,)), "it is started as configured"
    nothing, (past,) = recollected(up, "another")
    assert (nothing, past.attempt, past.ended - past.begun) == (None, 1, 10.0)
    rests, _ = recollected(down, "another")
    assert rests is not None
    assert (rests.boot_id, rests.goal_up, [one.attempt for one in rests.incidents]) == ("another", False, [1])


def executed(pid: int, marker: str) -> bool:
    """In the midst of its exec a process has its new name already and no environment yet."""
    home = Path(f"/proc/{pid}")
    return (home / "comm").read_text() == "sleep\n" and marker.encode() in (home / "environ").read_bytes()


async def test_a_server_that_a_daemon_with_another_state_directory_has_left_is_told(tmp_path: Path) -> None:
    """Its start would be a second copy. It is not ours to end; and a living daemon's servers are no news."""
    name = f"kimi-{os.getpid()}"  # daemons of other tests die as well
    marker = new_marker(name, 1, tmp_path / "other")
    environment = {**os.environ, MARKER_NAME: marker}
    orphan = int(subprocess.check_output(["sh", "-c", "sleep 600 >&2 & echo $!"], env=environment, stderr=DEVNULL))
    with anyio.fail_after(10):
        while not executed(orphan, marker):
            await anyio.sleep(0.005)
    script = f"{MARKER_NAME}=a{marker} sleep 600 & echo; wait"
    watching = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert watching.stdout is not None
    watching.stdout.readline()
    try:
        with capture_logs() as lines:
            await inherit(
                *([name, f"a{name}", "draft"], TreeStore(tmp_path), StateStore(tmp_path, boot_id()), None, tmp_path),
                DescriptorStore(lambda *_, **__: None),
            )
        told = {line["server"]: line["problem"] for line in lines if line["event"] == "state"}
        assert told.keys() == {name}
        assert told[name].startswith(
            f"pid {orphan} belongs to a server of this name that a daemon with another state_dir"
        )
        os.kill(orphan, 0)  # it lives
    finally:
        os.kill(orphan, signal.SIGKILL)
        os.killpg(watching.pid, signal.SIGKILL)
        watching.communicate()
