"""A real engine with a draft model on a real GPU, supervised from end to end; prints the figures of docs/gpu.md.

`python -m tests.gpu_real.story --command "python3 -m … --port 31000" [--environment NAME=VALUE …] [--gpus N]
[--json FILE]` from the root of the repository, where the engine can be started by that command on the first N devices.
First start → healthy; the daemon's code is replaced in place while a request streams; restart, a scheduler is stopped
(SIGSTOP) in a capture → named, evidence kept, killed, memory back → next start healthy → stop.
Takes four starts' time at most. Changes no setting of the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.gpu_real.engine import TOKENS, Stream, scheduler_of

NAME = "real"
START_LIMIT_S = 240.0
STOPPED = 8  # seconds that a stopped scheduler is borne


class Api(http.client.HTTPConnection):
    """The daemon's socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


class Story:
    """One daemon, one server."""

    def __init__(self, folder: Path, command: list[str], environment: dict[str, str], gpus: int) -> None:
        self.folder = folder
        self.socket = str(folder / "s")
        config = folder / "supervisor.toml"
        env = "\n".join(f"{name} = {json.dumps(value)}" for name, value in environment.items())
        config.write_text(
            f'[daemon]\nsocket = "{self.socket}"\nstate_dir = "{folder}/state"\nlog_dir = "{folder}/log"\nlisten = ""\n'
            f"[server.{NAME}]\ncommand = {json.dumps(command)}\ngpus = {list(range(gpus))}\n"
            f'restart = {{backoff = "200ms"}}\nserving = {{stopped = "{STOPPED}s", canary = "5s"}}\n'
            f"[server.{NAME}.environment]\n{env}\n"
        )
        self.log = (folder / "daemon.log").open("w")
        words = [sys.executable, "-m", "supervisor.main", "daemon", "-c", str(config)]
        self.process = subprocess.Popen(words, stderr=self.log)

    def get(self, target: str) -> Any:
        connection = Api(self.socket)
        with contextlib.closing(connection):
            connection.request("GET", target)
            return json.loads(connection.getresponse().read())

    def post(self, verb: str) -> None:
        connection = Api(self.socket)
        with contextlib.closing(connection):
            connection.request("POST", f"/v1/servers/{NAME}/{verb}")
            connection.getresponse().read()

    def show(self) -> dict[str, Any]:
        shown: dict[str, Any] = self.get(f"/v1/servers/{NAME}")
        return shown

    def until(self, what: str, limit_s: float, condition: Any) -> dict[str, Any]:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if Path(self.socket).exists():
                shown = self.show()
                if condition(shown):
                    return shown
            time.sleep(0.1)
        raise SystemExit(f"not seen within {limit_s:.0f} s: {what}; last: {self.show()['lifecycle']}")

    def events(self, facet: str, attempt: int) -> Iterator[dict[str, Any]]:
        rows = self.get(f"/v1/events?server={NAME}&since=0&limit=1000")["events"]
        return (row for row in rows if row["facet"] == facet and row["attempt"] == attempt)

    def healthy(self, attempt: int) -> dict[str, Any]:
        return self.until(
            f"attempt {attempt} healthy",
            START_LIMIT_S,
            lambda shown: shown["lifecycle"]["value"] == "running" and shown["attempt"] == attempt,
        )

    def ctl(self, *words: str) -> str:
        run = [sys.executable, "-m", "supervisor.cli.main", "-s", self.socket, *words]
        return subprocess.run(run, capture_output=True, text=True, timeout=60).stdout

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(120)


def tell(story: Story) -> dict[str, Any]:
    """The story; what was seen."""
    seen: dict[str, Any] = {}
    first = story.healthy(1)
    seen["first start"] = first["lifecycle"]["reason"]
    seen["phases"] = [(row["at"], row["after"]) for row in story.events("phase", 1)]
    seen["gpus while serving"] = story.ctl("gpus")
    seen["upgrade"] = upgraded(story, first)
    story.post("restart")
    captured = story.until(
        "a capture of the second start",
        START_LIMIT_S,
        lambda shown: shown["attempt"] == 2 and "graph" in (shown.get("start") or {}).get("phase", ""),
    )
    pid = scheduler_of(captured["pid"])
    os.kill(pid, signal.SIGSTOP)
    stopped = time.time()
    seen["stopped in"] = captured["start"]["phase"]
    named = story.until("the stop is named", 30, lambda shown: "stopped (T)" in json.dumps(shown["verdict"]))
    seen["named after s"] = round(time.time() - stopped, 2)
    seen["named as"] = named["verdict"]["reason"]
    story.until("the next start", 120, lambda shown: shown["attempt"] == 3)
    third = story.healthy(3)
    seen["third start"] = third["lifecycle"]["reason"]
    seen["why"] = story.ctl("why", NAME)
    seen["evidence"] = sorted(path.name for path in story.folder.glob(f"state/evidence/{NAME}/*/*"))[:40]
    seen["incident"] = story.show().get("incidents", [])[-1:]
    story.post("stop")
    ended = story.until("stopped", 120, lambda shown: shown["lifecycle"]["value"] == "stopped")
    seen["stop"] = ended.get("stop")
    seen["gpus after the stop"] = story.ctl("gpus")
    return seen


def upgraded(story: Story, server: dict[str, Any]) -> dict[str, Any]:
    """The daemon becomes its own code anew while the server streams; what the client and the operator see."""
    stream = Stream(server["port"])
    daemon = story.get("/v1/info")["pid"]
    began = time.monotonic()
    said = story.ctl("upgrade").strip()
    took_s = time.monotonic() - began
    alive = stream.is_alive()
    stream.join(60)
    after = story.show()
    return {
        "said": said,
        "took_s": round(took_s, 2),
        "same daemon": story.get("/v1/info")["pid"] == daemon,
        "same server": (after["pid"], after["attempt"]) == (server["pid"], server["attempt"]),
        "the request outlasted it": alive,
        "tokens asked, told": [TOKENS, stream.tokens],
        "ended as it should": stream.ended,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", required=True)
    parser.add_argument("--environment", nargs="*", default=[])
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    environment = dict(pair.split("=", 1) for pair in options.environment)
    with tempfile.TemporaryDirectory(prefix="story-") as name:
        story = Story(Path(name), shlex.split(options.command), environment, options.gpus)
        try:
            seen = tell(story)
        finally:
            story.end()
            print((Path(name) / "daemon.log").read_text()[-6000:])
    print(json.dumps(seen, indent=1))
    if options.json:
        options.json.write_text(json.dumps(seen, indent=1))


if __name__ == "__main__":
    main()
