"""What is released: the same bytes wherever it is built, installed as other people do, with every hash written down."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from bench.peers import PIPX, UV, place

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
EPOCH = {"SOURCE_DATE_EPOCH": "1700000000"}
# What the archives are made of. Nothing else of the tree (caches, environments, results of others) is copied.
PARTS = (
    "supervisor", "docs", "etc", "systemd", "tests", "bench", ".ci", "pyproject.toml", "Makefile", "constraints.txt", "README.md",
    "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", ".gitignore",
)  # fmt: skip


def copied(source: Path, target: Path) -> Path:
    target.mkdir()
    for part in PARTS:
        if (source / part).is_dir():
            shutil.copytree(source / part, target / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source / part, target / part)
    return target


def built(folder: Path, *kinds: str) -> dict[str, str]:
    """Name → SHA-256 of what is built there."""
    wanted = [word for kind in kinds for word in ("-t", kind)]
    command = [BIN / "hatchling", "build", *wanted, "-d", folder / "out"]
    subprocess.run(command, cwd=folder, env=os.environ | EPOCH, capture_output=True, timeout=60, check=True)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "out").iterdir()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(ROOT, tmp_path_factory.mktemp("source") / "first")


@pytest.mark.slow
def test_two_folders_build_the_same_bytes(source: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        second = copied(source, tmp_path / "another name")
        for path in second.rglob("*"):
            os.utime(path, (1, 1))
            path.chmod(0o700 if path.is_dir() or os.access(path, os.X_OK) else 0o600)
        again = built(second, "wheel", "sdist")
    finally:
        os.umask(before)

    assert len(again) == 2
    assert built(source, "wheel", "sdist") == again


@pytest.mark.slow
def test_the_source_archive_builds_the_same_wheel_and_can_be_installed_by_make(source: Path, tmp_path: Path) -> None:
    of_the_tree = built(source, "wheel", "sdist")
    with tarfile.open(next((source / "out").glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()

    assert built(unpacked, "wheel").items() <= of_the_tree.items()
    command = ["make", "files", f"DESTDIR={tmp_path}/staged"]
    subprocess.run(command, cwd=unpacked, capture_output=True, timeout=30, check=True)
    assert (tmp_path / "staged/usr/local/share/man/man1/sglctl.1").exists()


@pytest.mark.slow
@pytest.mark.parametrize("tool", [PIPX, UV], ids=["pipx", "uv"])
def test_other_peoples_installers_take_the_wheel(source: Path, tmp_path: Path, tool: str) -> None:
    program = place(tool) / tool.partition("=")[0]
    if not program.exists():
        pytest.skip(f"{tool} is not installed: python -m bench.peers")
    built(source, "wheel")
    (wheel,) = (source / "out").glob("*.whl")
    places = {
        "PIPX_HOME": "home",
        "PIPX_BIN_DIR": "bin",
        "PIPX_MAN_DIR": "man",
        "UV_TOOL_DIR": "home",
        "UV_TOOL_BIN_DIR": "bin",
    }
    environment = os.environ | {name: str(tmp_path / below) for name, below in places.items()}
    words = {
        PIPX: ["install", "--python", sys.executable, "--pip-args", f"--constraint {ROOT}/constraints.txt", str(wheel)],
        UV: ["tool", "install", "--python", sys.executable, "--constraints", str(ROOT / "constraints.txt"), str(wheel)],
    }
    done = subprocess.run([program, *words[tool]], env=environment, capture_output=True, text=True, timeout=200)

    assert done.returncode == 0, done.stderr[-2000:]
    version = subprocess.run([tmp_path / "bin" / "sglsup", "version"], capture_output=True, text=True, timeout=30)
    assert (version.returncode, version.stderr) == (0, "")
    assert subprocess.run([tmp_path / "bin" / "sglctl", "-h"], capture_output=True, timeout=30).returncode == 0


def test_the_lock_has_the_hash_of_every_file_and_not_the_project_itself() -> None:
    def item(name: str, **info: object) -> dict[str, object]:
        return {"metadata": {"name": name, "version": "1.2"}, "download_info": {"url": "x", **info}}

    report = {
        "install": [
            item("Zebra", archive_info={"hashes": {"sha256": "aa"}}),
            item("sglang-supervisor", dir_info={}),
            item("ape", archive_info={"hashes": {"sha256": "bb"}}),
        ]
    }
    command = [sys.executable, ROOT / ".ci" / "lock.py"]
    done = subprocess.run(command, input=json.dumps(report), capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines() == ["ape==1.2 --hash=sha256:bb", "Zebra==1.2 --hash=sha256:aa"]
