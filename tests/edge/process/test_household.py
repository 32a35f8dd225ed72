"""Orphans without a trace are found by their adoption, dead ones are reaped, and our own helpers are let be."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from supervisor import procstat
from supervisor.edge.process import Household, become_subreaper
from supervisor.events import TreeEmptied
from tests.edge.conftest import LIMIT_S, Starter, until

ZOO = str(Path(__file__).parents[2] / "zoo" / "tree.py")


@pytest.fixture
def household() -> Iterator[Household]:
    assert become_subreaper()
    yield Household()
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


def wiped(report: Path) -> list[int]:
    """The living processes that replaced their environment: the report's path on the command line is all they kept."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", name, "cmdline").read_bytes()
        except OSError:
            continue
        if b"zoo-wiped" in words and str(report).encode() in words:
            found.append(int(name))
    return found


async def test_a_traceless_orphan_dies_with_the_only_tree_that_can_have_made_it(
    start: Starter, household: Household, tmp_path: Path
) -> None:
    tree = await start("python", ZOO, "1", "0", "wipe-environment", environment={"ZOO_REPORT": str(tmp_path / "r")})
    household.add(tree)
    await until(lambda: wiped(tmp_path / "r"))
    assert isinstance(await tree.kill(LIMIT_S), TreeEmptied)
    assert wiped(tmp_path / "r") == []


async def test_with_two_possible_makers_it_goes_with_the_last(
    start: Starter, household: Household, tmp_path: Path
) -> None:
    first = await start("sleep", "600", log_path=str(tmp_path / "first.log"))
    household.add(first)
    second = await start("python", ZOO, "1", "0", "wipe-environment", environment={"ZOO_REPORT": str(tmp_path / "r")})
    household.add(second)
    await until(lambda: wiped(tmp_path / "r"))

    orphans = wiped(tmp_path / "r")

    assert isinstance(await second.kill(LIMIT_S), TreeEmptied)
    assert wiped(tmp_path / "r") == orphans, "it may be the first one's"
    assert household.strays(first) == household.strays(second) == []
    second.close()

    assert isinstance(await first.kill(LIMIT_S), TreeEmptied)
    assert wiped(tmp_path / "r") == []


async def test_who_was_seen_before_it_hid_stays_known(start: Starter, household: Household, tmp_path: Path) -> None:
    """A look at the members now and then is enough: what was seen is remembered after it wiped its traces."""
    other = await start("sleep", "600", log_path=str(tmp_path / "other.log"))
    household.add(other)
    os.mkfifo(tmp_path / "fifo")
    tree = await start("sh", "-c", "(read line < fifo; exec setsid env -i sleep 600) & wait")
    household.add(tree)
    with anyio.fail_after(LIMIT_S):
        while len(seen := await tree.members()) < 2:
            await anyio.sleep(0.005)
    hidden = max(process.pid for process in seen)
    (tmp_path / "fifo").write_text("go\n")
    await until(lambda: b"SGLSUP_TREE" not in environment(hidden))
    assert isinstance(await tree.kill(LIMIT_S), TreeEmptied)
    assert procstat.read(hidden) is None
    assert other.leader_alive()


def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_our_helper_in_its_own_session_is_no_orphan(start: Starter, household: Household) -> None:
    """As the GPU reader: a child of ours, in a session of its own, without a tree's marker."""
    tree = await start("sleep", "600")
    household.add(tree)
    helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        assert isinstance(await tree.kill(LIMIT_S), TreeEmptied)
        assert helper.poll() is None
    finally:
        helper.kill()
        helper.wait()


async def test_a_server_never_passes_for_a_helper(start: Starter, household: Household) -> None:
    """The daemon's environment, its mark included, is what a server without a user of its own is given."""
    tree = await start("env", environment=dict(os.environ))
    await tree.exited()
    text = Path(tree.spawned.log_path).read_text()
    assert "SGLSUP_HELPER_OF" in os.environ
    assert "SGLSUP_HELPER_OF" not in text
    assert f"SGLSUP_TREE={tree.marker}" in text


async def test_dead_orphans_are_reaped_and_others_children_are_not(start: Starter, household: Household) -> None:
    tree = await start("sh", "-c", "(setsid sh -c 'echo $$ > orphan; exit 3' &) ; exec sleep 600")
    household.add(tree)
    own = subprocess.Popen([sys.executable, "-c", "raise SystemExit(4)"])
    orphan = Path(tree.spawned.log_path).with_name("orphan")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(household.reap_forever, 0.01)
        await until(lambda: orphan.exists() and orphan.read_text().strip())
        pid = int(orphan.read_text())
        await until(lambda: not Path(f"/proc/{pid}").exists())
        await until(lambda: ") Z " in Path(f"/proc/{own.pid}/stat").read_text())
        tasks.cancel_scope.cancel()
    assert own.wait() == 4
    assert tree.leader_alive()
    assert household.reaped >= 1


async def test_a_dead_leader_is_left_to_its_tree(start: Starter, household: Household) -> None:
    tree = await start("sh", "-c", "exit 6")
    household.add(tree)
    await until(lambda: not tree.leader_alive())
    with anyio.move_on_after(0.2):
        await household.reap_forever(0.01)
    assert (await tree.exited()).code == 6
