"""Every target takes its seeds and what was found before; with the fuzzer installed each one is fuzzed for a while."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.run import packages
from tests.fuzz.seeds import FOUND, seeds
from tests.fuzz.targets import TARGETS

SECONDS = 20
_REST_S = 200  # for imports under instrumentation, on a crowded machine

installed = pytest.mark.skipif(
    not (packages() / "atheris").exists(), reason="atheris is not installed (python -m bench.peers installs it)"
)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_earlier_findings_break_nothing(name: str) -> None:
    beginnings = list(seeds(name))
    assert beginnings
    for data in beginnings:
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("data", [b"", b"\x00", b"\n" * 40, bytes(range(256))])
def test_next_to_nothing_breaks_nothing(name: str, data: bytes) -> None:
    TARGETS[name](data)


def test_findings_are_of_targets() -> None:
    assert {path.name for path in FOUND.iterdir()} <= set(TARGETS)


@pytest.mark.slow
@installed
@pytest.mark.parametrize("name", TARGETS)
def test_fuzzing_finds_nothing(name: str, tmp_path: Path) -> None:
    """What is found is below the folder that the last lines name: minimise it into `found/`, then mend."""
    command = (sys.executable, "-m", "tests.fuzz.run", name, "--seconds", str(SECONDS), "--folder", str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + _REST_S)
    assert done.returncode == 0, done.stderr[-6000:]
    assert "number_of_executed_units" in done.stderr
