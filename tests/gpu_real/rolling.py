"""Two real engines with draft models on two real GPUs behind the engine's own router: restarted one by one under load.

`python -m tests.gpu_real.rolling --command "python3 -m … --port {port}" [--environment NAME=VALUE …] [--json FILE]` from
the root of the repository, where the engine and the router (`python3 -m sglang_router.launch_router`) can be started.
Prints how many requests were answered and how many failed meanwhile. Changes no setting of the GPUs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.site import free_ports
from tests.e2e.load import Load

NAMES = ("a", "b")
TOKENS = 200
START_LIMIT_S = 200
ROLLING_LIMIT_S = 420


class Pair:
    """One daemon with a server on each of two GPUs, and a router before both."""

    def __init__(self, folder: Path, command: str, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.socket = str(folder / "s")
        self.router_port, metrics_port, *ports = free_ports(4)
        config = folder / "supervisor.toml"
        places = f'socket = "{self.socket}"\nstate_dir = "{folder}/state"\nlog_dir = "{folder}/log"\nlisten = ""'
        tables = [f"[daemon]\n{places}", f'[router.front]\nurl = "{self.url}"\nperiod = "2s"']
        variables = "".join(f"{name} = {json.dumps(value)}\n" for name, value in environment.items())
        for gpu, (name, port) in enumerate(zip(NAMES, ports, strict=True)):
            words = json.dumps(shlex.split(command.format(port=port)))
            tables.append(f"[server.{name}]\ncommand = {words}\ngpus = [{gpu}]")
            tables.append(f"[server.{name}.environment]\n{variables}")
        config.write_text("\n\n".join(tables) + "\n")
        router = f"-m sglang_router.launch_router --host 127.0.0.1 --port {self.router_port} --policy round_robin"
        router += f" --disable-retries --disable-circuit-breaker --prometheus-port {metrics_port}"
        self.log = (folder / "out").open("w")
        self.router = self._run(*router.split(), also=environment)
        self.daemon = self._run("-m", "supervisor.main", "daemon", "-c", str(config))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.router_port}"

    def _run(self, *words: str, also: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *words], stdout=self.log, stderr=self.log, env=os.environ | (also or {})
        )

    def ctl(self, *words: str, limit_s: float = 60) -> str:
        run = [sys.executable, "-m", "supervisor.cli.main", "-s", self.socket, *words]
        done = subprocess.run(run, capture_output=True, text=True, timeout=limit_s)
        return (done.stdout + done.stderr).strip()

    def workers(self) -> list[str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.router_port, timeout=5)
        try:
            connection.request("GET", "/workers")
            listed: list[dict[str, Any]] = json.loads(connection.getresponse().read())["workers"]
        except (OSError, http.client.HTTPException, ValueError):
            return []
        finally:
            connection.close()
        return [one["url"] for one in listed if one.get("is_healthy", True)]

    def end(self) -> None:
        self.daemon.terminate()
        self.daemon.wait(120)
        self.router.terminate()
        self.router.wait(30)


def tell(pair: Pair) -> dict[str, Any]:
    """What was seen."""
    until(lambda: Path(pair.socket).exists(), 20, "the daemon answers")
    began = time.monotonic()
    waits = [pair.ctl("wait", name, "--timeout", f"{START_LIMIT_S}s", limit_s=START_LIMIT_S + 10) for name in NAMES]
    ready_s = time.monotonic() - began
    until(lambda: len(pair.workers()) == len(NAMES), 60, "the router has both")
    before = pair.ctl("status")
    with Load(pair.url, clients=8, tokens=TOKENS) as load:
        until(lambda: load.answered > 50, 120, "requests are answered")
        began = time.monotonic()
        said = pair.ctl("restart", "--rolling", *NAMES, "--grace", "60s", limit_s=ROLLING_LIMIT_S)
        took_s = time.monotonic() - began
        after = load.answered
        until(lambda: load.answered > after + 50, 120, "requests are answered afterwards")
    return {
        "both ready after s": round(ready_s, 1),
        "wait": waits,
        "before": before,
        "restart --rolling": said,
        "took s": round(took_s, 1),
        "requests answered": load.answered,
        "requests failed": len(load.failures),
        "failures": load.failures[:5],
        "after": pair.ctl("status"),
        "routers": pair.ctl("routers"),
        "gpus": pair.ctl("gpus"),
    }


def until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"not seen within {limit_s:.0f} s: {what}")
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", required=True, help="with {port} where the port belongs")
    parser.add_argument("--environment", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    environment = dict(pair.split("=", 1) for pair in options.environment)
    with tempfile.TemporaryDirectory(prefix="rolling-") as name:
        pair = Pair(Path(name), options.command, environment)
        try:
            seen = tell(pair)
        finally:
            pair.end()
            print((Path(name) / "out").read_text()[-6000:])
    print(json.dumps(seen, indent=1))
    if options.json:
        options.json.write_text(json.dumps(seen, indent=1))


if __name__ == "__main__":
    main()
