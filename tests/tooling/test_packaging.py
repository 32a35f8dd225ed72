"""What other people install and type: the pins, the wheel, the make targets and the one script of CI."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==[^\s;]+")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def canonical(name: str) -> str:
    """A package's name as registries compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonical(line.partition("==")[0]): line for line in lines}


def requirement_name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return canonical(found[0])


def test_the_constraints_are_plain_pins() -> None:
    assert [line for line in pins().values() if not PIN.fullmatch(line)] == []


def test_every_requirement_is_pinned() -> None:
    required = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]

    assert [one for one in required if requirement_name(one) not in pins()] == []


def test_nothing_is_pinned_that_is_not_installed_here() -> None:
    # An old pin that nobody needs any more would otherwise stay for ever.
    command = [sys.executable, "-m", "pip", "freeze", "--exclude", "sglang-supervisor"]
    frozen = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    installed = {canonical(line.partition("==")[0]) for line in frozen.splitlines() if "==" in line}

    assert set(pins()) - installed == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    command = [BIN / "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_carries_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "supervisor").rglob("*") if path.is_file()}
    wanted = {name for name in sources if "__pycache__" not in name}

    assert wanted - set(wheel.namelist()) == set()
    assert "supervisor/py.typed" in wheel.namelist()
    assert any(name.startswith("supervisor/profiles/") and name.endswith(".toml") for name in wheel.namelist())


def test_the_wheel_holds_nothing_but_the_package(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}

    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} == {"supervisor"}
    pages = [name for name in wheel.namelist() if ".data/" in name]
    assert all("/share/man/" in name for name in pages), "beside the package the wheel has manual pages alone"
    assert len(pages) == 3


def test_both_commands_are_installed(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    text = wheel.read(entry_points).decode()

    assert "sglsup = supervisor.main:main" in text
    assert "sglctl = supervisor.cli.main:main" in text


@pytest.mark.parametrize(
    "target",
    ["venv", "demo", "test", "check", "slow", "real", "bench", "docs", "wheel", "dist", "lock", "constraints", "clean"],
)
def test_make_knows_the_target(target: str) -> None:
    command = ["make", "--dry-run", "--always-make", target]
    english = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(command, cwd=ROOT, env=english, capture_output=True, text=True, timeout=30)

    assert done.returncode == 0, done.stderr
    assert "Nothing to be done" not in done.stdout  # content without a rule: there is a file of that name


@pytest.mark.parametrize("target", ["docs", "bench"])
def test_make_is_not_content_with_a_folder_of_that_name(target: str) -> None:
    command = ["make", "--dry-run", "--old-file", ".venv/.installed", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)

    assert f".venv/bin/python {'docs/generate.py' if target == 'docs' else '-m bench.run'}" in done.stdout


def test_nothing_is_installed_again_while_the_pins_stay() -> None:
    planned = subprocess.run(["make", "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True, timeout=30).stdout
    newest = max((ROOT / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt"))
    stamp = ROOT / ".venv" / ".installed"

    assert ("pip" in planned) == (not stamp.exists() or stamp.stat().st_mtime < newest)


def test_ci_and_the_makefile_are_the_only_two_ways_in() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    targets = set(re.findall(r"^(?:make|suite) (\w+)", script, re.MULTILINE))

    assert targets == {"check", "test", "slow", "real"}
    subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=True, timeout=10)


def test_each_long_step_of_the_first_make_is_told_before_it_begins() -> None:
    command = ["make", "--dry-run", "--what-if", "constraints.txt", "demo"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30).stdout.splitlines()
    for step, told in ((" -m venv ", "some seconds"), (" install --quiet ", "one to three minutes")):
        at = next(at for at, line in enumerate(planned) if step in line)
        assert planned[at - 1].startswith("echo ")
        assert told in planned[at - 1]
