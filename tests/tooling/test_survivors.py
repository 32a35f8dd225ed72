"""A test run ends red when a process that it started outlives it, in one worker or in several; and says which."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEAVES_ONE = """
import subprocess

def test_that_leaves_a_process():
    subprocess.Popen(["sleep", "301"], start_new_session=True)
"""


def run(folder: Path, test: str, *options: str) -> "subprocess.CompletedProcess[str]":
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", *options]
    return subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir", str(folder), str(folder / "test_it.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "two workers"])
def test_a_process_that_outlives_its_test_makes_the_run_red(tmp_path: Path, workers: tuple[str, ...]) -> None:
    done = run(tmp_path, LEAVES_ONE, *workers)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "processes that outlived the tests (killed now)" in done.stdout
    assert "sleep 301" in done.stdout


def test_a_run_that_leaves_nothing_is_green(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_nothing():\n    pass\n", "-n", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "outlived" not in done.stdout
