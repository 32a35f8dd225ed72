"""The installer of the real SGLang: what a refusing registry, a broken pip and a second run lead to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real import setup_sglang_cpu
from tests.real.setup_sglang_cpu import Install, recipe_digest

SCRIPT = Path(setup_sglang_cpu.__file__)


def fake_python(folder: Path, pip_output: str, status: int) -> Path:
    """A python3.11 whose venvs contain a pip that says PIP_OUTPUT and ends with STATUS."""
    pip = folder / "pip"
    pip.write_text(f"#!/bin/sh\ncat <<'END'\n{pip_output}\nEND\nexit {status}\n")
    pip.chmod(0o755)
    program = folder / "python3.11"
    program.write_text(f'#!/bin/sh\n[ "$2" = venv ] && mkdir -p "$3/bin" && cp {pip} "$3/bin/python"\nexit 0\n')
    program.chmod(0o755)
    return folder


def run_setup(tmp_path: Path, path: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": path, "SGLSUP_REAL_DIR": str(tmp_path / "real")}
    command = [sys.executable, SCRIPT]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)


def test_a_package_that_the_registry_refuses_is_a_skip_with_its_reason(tmp_path: Path) -> None:
    refusal = "ERROR: No matching distribution found for torch==2.13.0+cpu"

    done = run_setup(tmp_path, f"{fake_python(tmp_path, refusal, 1)}:/usr/bin:/bin")

    assert done.returncode == setup_sglang_cpu.UNAVAILABLE
    assert refusal in done.stderr
    assert Install(tmp_path / "real").refusal == refusal


def test_any_other_failure_of_pip_is_red(tmp_path: Path) -> None:
    fake = fake_python(tmp_path, "ERROR: Could not install packages: [Errno 28] No space left on device", 1)

    done = run_setup(tmp_path, f"{fake}:/usr/bin:/bin")

    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert Install(tmp_path / "real").refusal is None


def test_without_the_one_python_that_fits_the_reason_is_given(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    done = run_setup(tmp_path, str(tmp_path / "empty"))

    assert done.returncode == setup_sglang_cpu.UNAVAILABLE
    assert "python3.11 is not on PATH" in done.stderr


def test_a_finished_install_is_left_alone(tmp_path: Path) -> None:
    install = Install(tmp_path / "real")
    install.root.mkdir()
    (install.root / "built").write_text(recipe_digest())

    # With nothing on PATH any attempt to build would fail.
    done = run_setup(tmp_path, str(tmp_path / "empty"))

    assert (done.returncode, done.stdout.strip()) == (0, str(install.root))


def test_an_install_of_another_recipe_is_not_taken_for_finished(tmp_path: Path) -> None:
    install = Install(tmp_path / "real")
    install.root.mkdir()
    (install.root / "built").write_text("an older recipe")

    assert not install.complete


def test_all_packages_are_pinned() -> None:
    lines = setup_sglang_cpu.REQUIREMENTS.read_text().split()

    assert [line for line in lines if "==" not in line] == []
    assert f"sglang=={setup_sglang_cpu.VERSION}" in lines


@pytest.mark.parametrize(
    ("arguments", "ranks"), [([], 1), (["--tp", "2"], 2), (["--tp-size", "4"], 4), (["--tp", "2", "--tp", "3"], 3)]
)
def test_the_number_of_ranks_is_read_from_the_command(arguments: list[str], ranks: int) -> None:
    assert setup_sglang_cpu.ranks_in(["python", "-m", "server", *arguments]) == ranks
