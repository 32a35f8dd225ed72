"""The files of systemd/ are accepted by systemd's own checkers without a word."""

import shutil
import subprocess
from pathlib import Path

import pytest

SYSTEMD = Path(__file__).resolve().parents[2] / "systemd"
UNIT = SYSTEMD / "sglang-supervisor.service"


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def settings(section: str) -> dict[str, str]:
    found: dict[str, str] = {}
    current = ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif "=" in line and not line.startswith("#") and current == section:
            key, _, value = line.partition("=")
            found[key] = value
    return found


def test_systemd_knows_every_key_of_the_unit(tmp_path: Path) -> None:
    # The program is not installed here; and an unknown key is only a warning, with status 0.
    lines = UNIT.read_text().splitlines(keepends=True)
    copy = tmp_path / UNIT.name
    copy.write_text("".join("ExecStart=/bin/true\n" if line.startswith("ExecStart=") else line for line in lines))

    done = subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", copy], capture_output=True, text=True, timeout=30
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_the_checker_would_have_seen_an_unknown_key(tmp_path: Path) -> None:
    broken = tmp_path / "broken.service"
    broken.write_text("[Service]\nExecStart=/bin/true\nKillMod=process\n")

    done = subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", broken], capture_output=True, text=True, timeout=30
    )

    assert "KillMod" in done.stderr


def test_the_servers_outlive_the_daemon() -> None:
    service = settings("Service")

    assert service["KillMode"] == "process"
    assert service["Delegate"] == "yes"
    assert service["OOMPolicy"] == "continue"


def test_the_state_that_finds_servers_again_outlives_a_stop() -> None:
    # RuntimeDirectory is removed at every stop of a unit, StateDirectory never.
    assert settings("Service")["StateDirectory"] == "sglang-supervisor"


def test_a_bad_configuration_is_not_tried_again() -> None:
    assert settings("Service")["RestartPreventExitStatus"] == "2"


@pytest.mark.parametrize(
    ("program", "file"), [("systemd-sysusers", "sysusers.conf"), ("systemd-tmpfiles", "tmpfiles.conf")]
)
def test_accounts_and_folders_are_made_in_an_empty_root(tmp_path: Path, program: str, file: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nsglang:x:990:990::/var/lib/sglang:/bin/sh\n")
    (tmp_path / "etc/group").write_text("root:x:0:\nsglang:x:990:\n")
    options = ["--create"] if program == "systemd-tmpfiles" else []

    done = subprocess.run(
        [tool(program), f"--root={tmp_path}", *options, SYSTEMD / file], capture_output=True, text=True, timeout=30
    )

    assert done.returncode == 0, done.stderr
