"""The daemon's command: what it goes by after an upgrade, and with which status it ends when it cannot start."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from supervisor.config import ConfigFile
from supervisor.daemon import EXIT_AFTER_UPGRADE, EXIT_CONFIG
from supervisor.shell.upgrade.handover import Handover

_BECOME = """
import os, sys
import msgspec
from supervisor.shell.upgrade.handover import Handover, execute
raise SystemExit(execute(sys.argv[2:], msgspec.json.decode(sys.argv[1], type=Handover), os.environ).problem)
"""


def ended(config: Path, *words: str, left: Handover | None = None) -> tuple[int, str]:
    """How the command ends, as an upgrade executes it when something was left to it; and its last words."""
    command = [sys.executable, "-m", "supervisor.main", "daemon", "-c", str(config), *words]
    if left is not None:
        command = [sys.executable, "-c", _BECOME, msgspec.json.encode(left).decode(), *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "c.toml"


def daemon_table(place: Path) -> str:
    return f'[daemon]\nsocket = "{place}/s"\nstate_dir = "{place}"\nlog_dir = "{place}/log"\nlisten = ""\n'


def test_what_was_tried_counts_and_not_what_the_file_has_become(config: Path) -> None:
    config.write_text("[server.b")
    left = Handover(1, files=(ConfigFile(str(config), "[daemon]\n"),))
    assert ended(config, "--try", left=left) == (0, "")
    assert ended(config, "--try")[0] == EXIT_CONFIG


def test_a_handover_of_a_version_that_leaves_no_files_is_no_obstacle(config: Path) -> None:
    config.write_text("")
    assert ended(config, "--try", left=Handover(1)) == (0, "")


def test_a_configuration_that_cannot_be_used_is_tried_again_after_an_upgrade_alone(config: Path) -> None:
    """systemd leaves it at status 2; after an upgrade there are servers that nobody would watch."""
    config.write_text("[server.b")
    status, said = ended(config, left=Handover(1))
    assert (status, said.startswith(f"cannot use {config}: ")) == (EXIT_AFTER_UPGRADE, True)
    assert ended(config) == (EXIT_CONFIG, said)


def test_a_state_directory_in_other_hands_is_tried_again_after_an_upgrade_alone(config: Path, tmp_path: Path) -> None:
    config.write_text(daemon_table(tmp_path))
    directory = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    try:
        status, said = ended(config, left=Handover(1))
        assert (status, f"cannot use {tmp_path}: the daemon" in said) == (EXIT_AFTER_UPGRADE, True)
        assert ended(config)[0] == EXIT_CONFIG
    finally:
        os.close(directory)
