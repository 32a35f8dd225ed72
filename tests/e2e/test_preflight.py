"""A daemon refuses a start that must fail, says what to change, and obeys when it is overruled."""

import sys
from pathlib import Path

from bench.site import free_ports
from tests.e2e.host import SPEED, Host


def interpreter(host: Host) -> Path:
    """Takes `-m MODULE` like the engine's interpreter, and becomes the fake engine."""
    path = host.root / "venv" / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -m supervisor.simulator --speed {SPEED} "$@"\n')
    path.chmod(0o755)
    return path


def test_a_model_that_is_not_there(host: Host) -> None:
    (port,) = free_ports(1)
    command = [str(interpreter(host)), "-m", "sglang.launch_server", "--model-path", "/no/such/model"]
    host.add("kimi", [*command, "--port", str(port)], port=port)
    host.start()

    refused = host.wait_for("kimi", "lifecycle", "fatal")
    assert refused["reason"].startswith("preflight: the model /no/such/model is not there; correct the path")
    shown = host.show("kimi")
    assert (shown["attempt"], shown["restarts"]) == (0, 0)
    assert "before the start: error model-missing: the model /no/such/model is not there" in host.why("kimi")
    assert host.ctl("wait", "kimi").returncode == 1

    assert host.ctl("start", "--force", "kimi").returncode == 0
    assert host.wait_for("kimi", "lifecycle", "running", since=refused["id"])["attempt"] == 1
    assert any(text.startswith("error model-missing: ") for text in host.show("kimi")["findings"])
