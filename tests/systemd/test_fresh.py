"""A machine that never had the supervisor: `make install` and the steps of the README end with a server that serves."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.systemd.machine import CONFIG, UNIT, Machine, why_not
from tests.systemd.test_install import make

DEBIAN = os.environ.get("SGLSUP_DEBIAN", "")
PROGRAM = "/usr/local/lib/sglang-supervisor"
# The demo's engine, started by the installed Python as the account that was installed with it.
DEMO = f"""
[server.demo]
command = ["{PROGRAM}/bin/python", "-m", "supervisor.simulator", "--port", "30111", "--tp", "4", "--speed", "100"]
user = "sglang"
"""


def systems_python() -> str:
    """An interpreter that every account may run, with what a virtual environment needs; "" when there is none."""
    wanted = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
    for python in ("/usr/bin/python3", "/usr/local/bin/python3"):
        real = Path(python).resolve()
        if not real.exists() or real.is_relative_to("/root"):
            continue
        if subprocess.run([python, "-c", wanted], capture_output=True, timeout=30).returncode == 0:
            return python
    return ""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(why_not() != "", reason=why_not() or "-")
def test_install_then_enable_and_the_demo_engine_serves(tmp_path: Path) -> None:
    staged = tmp_path / "staged"
    python = systems_python()
    if not python:
        pytest.skip("no Python 3.11 with venv that other accounts may run (Debian: python3-venv)")
    make("install", staged, f"PYTHON={python}", limit_s=200)

    with Machine({}, tree=staged) as machine:
        serves(machine)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not DEBIAN, reason="SGLSUP_DEBIAN names no tree of a bare Debian in which `make install` has been run"
)
def test_on_a_bare_debian_too() -> None:
    """mmdebstrap --variant=minbase --include=systemd,dbus,python3-venv,make,procps bookworm TREE; then in it: make install."""
    with Machine({}, base=Path(DEBIAN)) as machine:
        assert not machine.path("/usr/bin/gcc").exists()
        serves(machine)


def serves(machine: Machine) -> None:
    """The steps of the README after `make install`, up to a server that answers; then the stop."""
    machine.ok("sh", "-c", "systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload")
    machine.path(CONFIG).write_text(DEMO)
    machine.ok("sglsup", "check", CONFIG)
    machine.systemctl("enable", "--now", "sglang-supervisor")
    machine.ok("sglctl", "wait", "demo", "--timeout", "60s", limit_s=70)

    (server,) = json.loads(machine.ok("sglctl", "status", "--json"))["servers"]
    assert (server["state"], server["healthy"]) == ("RUNNING", True)
    assert machine.ok("ps", "-o", "user=", "-p", str(server["pid"])).strip() == "sglang"
    daemon = machine.property(UNIT, "MainPID")
    started = machine.ok("sh", "-c", f"tr '\\0' ' ' < /proc/{daemon}/cmdline")
    assert started.startswith(f"{PROGRAM}/bin/python"), started
    assert machine.property(UNIT, "UnitFileState") == "enabled"
    assert "sglctl" in machine.ok("sh", "-c", "man -w sglctl || ls /usr/local/share/man/man1")

    machine.systemctl("stop", "sglang-supervisor")
    assert machine.run("pgrep", "-f", "supervisor.simulator").returncode == 1
