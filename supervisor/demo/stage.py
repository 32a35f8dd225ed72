"""The demo's set: two servers of the fake engine, their ports, and the configuration that the daemon gets."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from supervisor.config.checks import SOCKET_PATH_BYTES

PLAIN = "llama"
DRAFTED = "kimi"
STALL_RANK = "TP3"
STALL_PHASE = "draft-graph"
STALL_S = 4.0  # the profile's 10 minutes would be a long demo
BACKOFF_S = 2.0
NOTES = {PLAIN: "plain, TP2", DRAFTED: "EAGLE-3, TP8"}
SPEED = 15.0
# Unscaled seconds: less weight to load than a real start of this kind has, the rest as measured on eight GPUs.
_SECONDS = {PLAIN: "import=8,weights=45", DRAFTED: "import=8,weights=70"}
_LONGEST_NAME = "/s.sock"


class Stage(NamedTuple):
    """The directory that holds everything the demo makes, and what lies where in it."""

    directory: Path

    @property
    def config(self) -> Path:
        return self.directory / "demo.toml"

    @property
    def socket(self) -> Path:
        return self.directory / "s.sock"

    @property
    def memory(self) -> Path:
        """Where the fake engine notes how much GPU memory each of its ranks would hold."""
        return self.directory / "gpu"


def make_stage(speed: float) -> Stage:
    """A new temporary directory with the configuration in it. OSError when it cannot be made."""
    stage = Stage(_make_directory())
    stage.memory.mkdir()
    stage.config.write_text(_config(stage, speed))
    return stage


def _make_directory() -> Path:
    """TMPDIR of a batch job may be longer than a socket's path can be."""
    usual = tempfile.gettempdir()
    longest = f"{usual}/sglsup-demo-12345678{_LONGEST_NAME}"
    place = usual if len(os.fsencode(longest)) <= SOCKET_PATH_BYTES else "/tmp"  # noqa: S108 - mkdtemp makes it safe
    return Path(tempfile.mkdtemp(prefix="sglsup-demo-", dir=place))


def _config(stage: Stage, speed: float) -> str:
    plain_port, drafted_port = _free_ports(2)
    stall = f"stall:phase={STALL_PHASE},rank={STALL_RANK},once={stage.directory / 'stalled-once'}"
    plain = _command(stage, PLAIN, plain_port, speed, "--model-path", "/models/llama-3.1-8b", "--tp", "2")
    drafted = _command(
        stage, DRAFTED, drafted_port, speed, "--model-path", "/models/kimi-k2", "--tp", "8",
        "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/models/kimi-k2-eagle3",
        "--speculative-num-steps", "15", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "16",
        "--scenario", stall,
    )  # fmt: skip
    return f"""\
[daemon]
socket = {_text(stage.socket)}
state_dir = {_text(stage.directory / "state")}
log_dir = {_text(stage.directory / "log")}
listen = ""

[server.{PLAIN}]
command = {_list(plain)}
stop = {{grace = "5s"}}

[server.{DRAFTED}]
command = {_list(drafted)}
stop = {{grace = "5s"}}
deadlines = {{{STALL_PHASE} = {{stall = "{STALL_S:.0f}s"}}}}
restart = {{backoff = "{BACKOFF_S:.0f}s", jitter = 0.0}}
"""


def _command(stage: Stage, name: str, port: int, speed: float, *options: str) -> list[str]:
    fake_engine = [sys.executable, "-P", "-m", "supervisor.simulator", "--port", str(port), "--speed", f"{speed:g}"]
    return [*fake_engine, "--phase-seconds", _SECONDS[name], "--gpu-dir", str(stage.memory), *options]


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago; all are held together, so that they differ."""
    with_ports = [socket.socket() for _ in range(count)]
    try:
        for one in with_ports:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in with_ports]
    finally:
        for one in with_ports:
            one.close()


def _text(value: object) -> str:
    """A JSON string is a TOML basic string."""
    return json.dumps(str(value))


def _list(words: list[str]) -> str:
    return json.dumps(words)
