"""How long after a server could first serve its waiter knows: `sglctl wait` beside the usual loop around curl."""

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

from bench.harness import Measurement, bench
from bench.site import BIN, SPEED, free_ports, health_status, running, sglctl, wait_for

ROUNDS = 8
LIMIT_S = 60.0
# Begun at another fraction of a second each time: starts take equally long, and the loop's luck must not repeat.
LOOP = "sleep {offset_s}; until curl -sf -o /dev/null http://127.0.0.1:{port}/health; do sleep 1; done"


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
    own, peer = zip(*rounds, strict=True)
    yield Measurement(
        "ready to `sglctl wait` returned, median", "ms", statistics.median(own), "curl, sleep 1",
        statistics.median(peer), budget=100,
    )  # fmt: skip
    yield Measurement("the same, worst of the rounds", "ms", max(own), "curl, sleep 1", max(peer))


def lags(socket_path: str, port: int, offset_s: float) -> tuple[float, float]:
    """One start: milliseconds from the first possible 200 to the end of both waiters."""
    poller = Poller(port)
    sglctl(socket_path, "start", "a")
    ours = Ended([str(BIN / "sglctl"), "-s", socket_path, "wait", "a"])
    loop = Ended(["sh", "-c", LOOP.format(port=port, offset_s=offset_s)])
    for thread in (poller, ours, loop):
        thread.join(LIMIT_S)
    sglctl(socket_path, "stop", "a")
    return 1000 * (ours.at - poller.at), 1000 * (loop.at - poller.at)


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
