"""The import contracts notice what they are for: each forbidden import, added to a copy of the package, is reported."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINTER = Path(sys.executable).parent / "lint-imports"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "supervisor", tmp_path / "supervisor", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    # The copy must win over the installed package.
    environment = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200"}
    command = [LINTER, "--no-cache"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=50)


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("core/lifecycle.py", "import time", "core"),
        ("core/health.py", "import anyio", "core"),
        ("core/restart.py", "from random import random", "core"),
        ("core/health.py", "import supervisor.edge.tail", "floors"),
        ("edge/tail.py", "import supervisor.edge.probe", "edge"),
        ("edge/tail.py", "import supervisor.core.health", "floors"),
        ("events.py", "import supervisor.core.health", "floors"),
        ("events.py", "import httpx", "words"),
        ("cli/main.py", "import msgspec", "client"),
        ("cli/main.py", "import supervisor.units", "client"),
        ("cli/main.py", "import supervisor.daemon", "floors"),
        ("core/memory.py", "import supervisor.smallfile", "core"),
        ("smallfile.py", "import supervisor.core.memory", "floors"),
        ("unplaced.py", "import os", "floors"),
    ],
)
def test_a_forbidden_import_is_reported(copy: Path, module: str, line: str, contract: str) -> None:
    with (copy / "supervisor" / module).open("a") as source:
        source.write(f"\n\n{line}\n")

    done = lint(copy)

    broken = [verdict for verdict in done.stdout.splitlines() if verdict.endswith("BROKEN")]
    assert any(verdict.startswith(f"{contract}:") for verdict in broken), done.stdout
    assert done.returncode == 1


def test_the_package_as_it_is_keeps_all_floors(copy: Path) -> None:
    done = lint(copy)

    assert done.returncode == 0, done.stdout
