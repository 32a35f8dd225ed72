"""What dead processes left is removed; what is anybody else's stays, however much it looks like it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.edge.leftovers import Removed, remove
from supervisor.profile import LeftoverRule

SEGMENT = r"engine_shm_\w+_(?P<pid>\d+)_\w+"
DEVICE_SEGMENT = r"cuda\.shm\.[0-9a-f]+\.(?P<pid_hex>[0-9a-f]+)\.\d+"


@pytest.fixture
def dead() -> int:
    """A pid that was somebody's and is nobody's."""
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


@pytest.fixture
def zombie() -> Iterator[int]:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process.pid
    process.wait()


def rules(directory: Path) -> tuple[LeftoverRule, ...]:
    return (LeftoverRule(str(directory), SEGMENT), LeftoverRule(str(directory), DEVICE_SEGMENT))


def write(directory: Path, name: str, size: int = 4096) -> Path:
    path = directory / name
    path.write_bytes(b"x" * size)
    return path


async def test_files_of_the_dead_are_removed_and_counted(tmp_path: Path, dead: int) -> None:
    first = write(tmp_path, f"engine_shm_image_{dead}_ab12", 8192)
    second = write(tmp_path, f"cuda.shm.0.{dead:x}.1")
    answer = await remove(rules(tmp_path), os.getuid())
    assert answer == Removed(2, answer.bytes, (str(first), str(second)))
    assert answer.bytes >= 12288
    assert list(tmp_path.iterdir()) == []


async def test_a_process_without_its_first_thread_may_hold_memory(tmp_path: Path, headless: int) -> None:
    write(tmp_path, f"engine_shm_image_{headless}_ab12")
    assert (await remove(rules(tmp_path), os.getuid())).count == 0


async def test_a_zombie_holds_no_memory(tmp_path: Path, zombie: int) -> None:
    write(tmp_path, f"engine_shm_image_{zombie}_ab12")
    assert (await remove(rules(tmp_path), os.getuid())).count == 1


async def test_the_living_keep_theirs(tmp_path: Path) -> None:
    kept = write(tmp_path, f"engine_shm_image_{os.getpid()}_ab12")
    foreign = write(tmp_path, "engine_shm_image_1_ab12")
    assert await remove(rules(tmp_path), os.getuid()) == Removed()
    assert kept.exists()
    assert foreign.exists()


@pytest.mark.parametrize(
    "name",
    [
        "engine_shm_image_{dead}_ab12.keep",
        "my_engine_shm_image_{dead}_ab12",
        "nccl-{dead}",
        "psm_{dead}",
        "{dead}",
        "engine_shm_image_0_ab12",
        "engine_shm_image_99999999999999999999999999_ab12",
        "cuda.shm.0.zz.1",
    ],
)
async def test_names_that_say_nothing_certain_stay(tmp_path: Path, dead: int, name: str) -> None:
    kept = write(tmp_path, name.format(dead=dead))
    assert await remove(rules(tmp_path), os.getuid()) == Removed()
    assert kept.exists()


async def test_another_users_file_stays(tmp_path: Path, dead: int) -> None:
    kept = write(tmp_path, f"engine_shm_image_{dead}_ab12")
    assert await remove(rules(tmp_path), os.getuid() + 1) == Removed()
    assert kept.exists()


async def test_only_the_trees_own_pids_when_they_are_known(tmp_path: Path, dead: int) -> None:
    """Another container's process looks dead from here: with the tree's pids given, its files are not ours."""
    kept = write(tmp_path, f"engine_shm_image_{dead}_ab12")
    assert await remove(rules(tmp_path), os.getuid(), frozenset({dead + 1})) == Removed()
    assert kept.exists()
    assert (await remove(rules(tmp_path), os.getuid(), frozenset({dead}))).count == 1


async def test_links_and_directories_are_never_followed(tmp_path: Path, dead: int) -> None:
    precious = write(tmp_path, "precious")
    link = tmp_path / f"engine_shm_link_{dead}_x"
    link.symlink_to(precious)
    directory = tmp_path / f"engine_shm_directory_{dead}_x"
    directory.mkdir()
    assert await remove(rules(tmp_path), os.getuid()) == Removed()
    assert precious.exists()
    assert link.is_symlink()
    assert directory.is_dir()


async def test_a_dead_ones_socket_is_a_leftover(tmp_path: Path, dead: int) -> None:
    path = tmp_path / f"engine_shm_socket_{dead}_x"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    assert (await remove(rules(tmp_path), os.getuid())).files == (str(path),)


async def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert await remove(rules(tmp_path / "nowhere"), os.getuid()) == Removed()


async def test_no_rules_no_removal() -> None:
    assert await remove((), os.getuid()) == Removed()


@pytest.mark.skipif(os.geteuid() != 0, reason="making a file that even its owner cannot remove needs root")
async def test_what_cannot_be_removed_is_said(tmp_path: Path, dead: int) -> None:
    path = write(tmp_path, f"engine_shm_image_{dead}_ab12")
    if subprocess.run(["chattr", "+i", str(path)], capture_output=True).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        answer = await remove(rules(tmp_path), os.getuid())
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)
    assert answer.count == 0
    assert answer.refused == (f"cannot remove {path}: Operation not permitted",)


async def test_long_lists_are_capped(tmp_path: Path, dead: int) -> None:
    for number in range(50):
        write(tmp_path, f"engine_shm_image_{dead}_{number}", 1)
    answer = await remove(rules(tmp_path), os.getuid())
    assert answer.count == 50
    assert len(answer.files) == 20
