"""How long after a server could first serve its waiter knows: `sglctl wait` beside the usual loops and probes."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.harness import Measurement, bench
from bench.site import BIN, SPEED, free_ports, health_status, running, sglctl, wait_for

ROUNDS = 8
LIMIT_S = 60.0
LOOP = "sleep {offset_s}; until curl -sf -o /dev/null http://127.0.0.1:{port}/health; do sleep {period_s}; done"
LOOPS = {"curl, sleep 1": 1, "a kubelet's period of 10 s": 10, "polling every 15 s": 15}


@bench("readiness")
def readiness() -> Iterator[Measurement]:
    port = free_ports(1)[0]
    with tempfile.TemporaryDirectory() as folder:
        socket_path, config, output = f"{folder}/control.sock", Path(folder) / "c.toml", Path(folder) / "out"
        command = [sys.executable, "-m", "supervisor.simulator", "--speed", SPEED, "--port", str(port)]
        places = f'socket = "{socket_path}"\nstate_dir = "{folder}/state"\nlog_dir = "{folder}/log"\nlisten = ""'
        server = f"command = {json.dumps(command)}\ngpus = []\nautostart = false"
        config.write_text(f"[daemon]\n{places}\n\n[server.a]\n{server}\n")
        with running([str(BIN / "sglsup"), "daemon", "-c", str(config)], output) as daemon:
            wait_for(lambda: sglctl(socket_path, "version") == 0, daemon, output)
            rounds = [lags(socket_path, port, turn / ROUNDS) for turn in range(ROUNDS)]
    own = [lag.ours_ms for lag in rounds]
    for name in LOOPS:
        theirs = [lag.loops_ms[name] for lag in rounds]
        yield Measurement(
            "ready to `sglctl wait` returned, median", "ms", statistics.median(own), name,
            statistics.median(theirs), budget=100,
        )  # fmt: skip
        yield Measurement("the same, worst of the rounds", "ms", max(own), name, max(theirs))


class Lag(NamedTuple):
    """Of one start: from the first possible 200 to the end of each waiter."""

    ours_ms: float
    loops_ms: dict[str, float]


def lags(socket_path: str, port: int, phase: float) -> Lag:
    """Each loop begins at another fraction of its period: starts take equally long, and its luck must not repeat."""
    poller = Poller(port)
    sglctl(socket_path, "start", "a")
    ours = Ended([str(BIN / "sglctl"), "-s", socket_path, "wait", "a"])
    loops = {
        name: Ended(["sh", "-c", LOOP.format(port=port, offset_s=phase * period_s, period_s=period_s)])
        for name, period_s in LOOPS.items()
    }
    for thread in (poller, ours, *loops.values()):
        thread.join(LIMIT_S)
    sglctl(socket_path, "stop", "a")
    return Lag(1000 * (ours.at - poller.at), {name: 1000 * (loop.at - poller.at) for name, loop in loops.items()})


class Ended(threading.Thread):
    """Notes when a command ended."""

    def __init__(self, command: list[str]) -> None:
        super().__init__(daemon=True)
        self.at = 0.0
        self._command = command
        self.start()

    def run(self) -> None:
        subprocess.run(self._command, check=True, capture_output=True, env=os.environ, timeout=LIMIT_S)
        self.at = time.monotonic()


class Poller(threading.Thread):
    """Asks far more often than anybody should, to know the moment of the first 200."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.at = 0.0
        self._port = port
        self.start()

    def run(self) -> None:
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            asked = time.monotonic()
            if health_status(self._port) == 200:
                self.at = asked
                return
            time.sleep(0.005)
