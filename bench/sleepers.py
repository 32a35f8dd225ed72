"""Our daemon with servers that only sleep, as supervisord gets them, for what does not depend on an engine."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.site import BIN, free_ports, running, sglctl, wait_for


class Sleepers(NamedTuple):
    """The daemon's process, the client's command line and where the journal is."""

    daemon: psutil.Process
    client: list[str]
    state_dir: Path


def _has_a_pid(socket_path: str, name: str) -> bool:
    return sglctl(socket_path, "pid", name) == 0


@contextmanager
def our_sleepers(commands: Mapping[str, list[str]], restart: str = "{}") -> Iterator[Sleepers]:
    """A daemon that has started these commands."""
    with tempfile.TemporaryDirectory() as folder:
        config, output, socket_path = Path(folder) / "supervisor.toml", Path(folder) / "out", f"{folder}/control.sock"
        places = f'socket = "{socket_path}"\nstate_dir = "{folder}/state"\nlog_dir = "{folder}/log"'
        tables = [f'[daemon]\n{places}\nlisten = ""']
        for (name, command), port in zip(commands.items(), free_ports(len(commands)), strict=True):
            server = f"command = {json.dumps(command)}\nport = {port}\ngpus = []\nrestart = {restart}"
            tables.append(f"[server.{name}]\n{server}")
        config.write_text("\n\n".join(tables) + "\n")
        with running([str(BIN / "sglsup"), "daemon", "-c", str(config)], output) as daemon:
            wait_for(lambda: sglctl(socket_path, "version") == 0, daemon, output)
            for name in commands:
                wait_for(partial(_has_a_pid, socket_path, name), daemon, output)
            yield Sleepers(daemon, [str(BIN / "sglctl"), "-s", socket_path], Path(folder) / "state")
