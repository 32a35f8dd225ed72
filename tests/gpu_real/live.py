"""Runs the daemon on this machine's real GPU and prints what it says and how long things take.

`python -m tests.gpu_real.live [--rounds N] [--json FILE]` from the root of the repository, with the package installed.
A fake server whose tree holds 20 GiB for real is started beside a stranger's memory, killed, stopped, and finds what an
earlier attempt left behind. Needs 45 GiB of GPU 0, no other user of it, and two minutes.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from bench.site import free_ports
from tests.e2e.gpus import GpuHost
from tests.gpu_real.holder import __file__ as holder_file
from tests.nvml.fake import FakeNvml

SIZE = 20 << 30
HOLDER = str(Path(holder_file).resolve())
NOTHING_FAKED = cast(FakeNvml, SimpleNamespace(environment={}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with GpuHost(NOTHING_FAKED, cgroups="auto") as host:
        add_server(host)
        host.start()
        host.wait_sight("seeing")
        result: dict[str, Any] = {
            "cgroups": host.cgroup() is not None,
            "beside a stranger": beside_a_stranger(host),
            "running": running(host),
            "kills": [one_kill(host) for _ in range(arguments.rounds)],
            "stop": one_stop(host),
            "left behind": left_behind(host),
            "at the end": host.ctl("gpus").stdout.splitlines(),
        }
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


def add_server(host: GpuHost) -> None:
    """A fake engine, and beside it in its tree a process that holds real memory."""
    port = free_ports(1)[0]
    engine = f"{sys.executable} -m supervisor.simulator --port {port} --tp 1 --speed 100"
    command = f"tail -f /dev/null | {sys.executable} {HOLDER} 0 {SIZE} & exec {engine}"
    restart = {"backoff": "3s", "backoff_max": "3s", "jitter": 0.0, "budget": 100}
    host.add("kimi", ["/bin/sh", "-c", command], port=port, gpus=[0], autostart=False, restart=restart)


def stranger(**environment: str) -> subprocess.Popen[bytes]:
    made = subprocess.Popen(
        [sys.executable, HOLDER, "0", str(SIZE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    assert made.stdout is not None
    if made.stdout.readline() != b"up\n":
        raise SystemExit("cannot hold 20 GiB of GPU 0")
    return made


def beside_a_stranger(host: GpuHost) -> dict[str, Any]:
    one = stranger()
    host.ctl("start", "kimi")
    reason = host.wait_reason("kimi", "held by")
    table = host.ctl("gpus").stdout.splitlines()
    one.kill()
    killed = time.time()
    one.wait()
    started = host.wait_for("kimi", "lifecycle", "starting")
    host.wait_for("kimi", "lifecycle", "running", limit_s=60)
    waited_s = moment(started["at"]) - killed
    return {"reason": plain(reason), "gpus": [plain(line) for line in table], "kill_to_start_s": round(waited_s, 3)}


def running(host: GpuHost) -> list[str]:
    """The table once the server's own process has its memory."""
    end = time.monotonic() + 30
    while host.gpu(0)["memory"]["server"] < SIZE and time.monotonic() < end:
        time.sleep(0.2)
    return [plain(line) for line in host.ctl("gpus").stdout.splitlines()]


def one_kill(host: GpuHost) -> dict[str, Any]:
    """SIGKILL of the leader: the tree is swept, the memory proven back, the next attempt begins."""
    running(host)
    seen = max(event["id"] for event in host.events("kimi", "lifecycle"))
    host.ctl("signal", "KILL", "kimi")
    host.wait_for("kimi", "lifecycle", "backoff", since=seen)
    stop = host.show("kimi")["stop"]
    host.wait_for("kimi", "lifecycle", "running", limit_s=60, since=seen)
    return dict(stop)


def one_stop(host: GpuHost) -> dict[str, Any]:
    running(host)
    done = host.ctl("stop", "kimi")
    return {"said": done.stdout.strip(), "used_after": host.gpu(0)["memory"]["used"], **host.show("kimi")["stop"]}


def left_behind(host: GpuHost) -> dict[str, Any]:
    """A process that carries the mark of an earlier attempt is the server's own: killed before the start."""
    one = stranger(SGLSUP_TREE="kimi:1:feed")
    begun = time.monotonic()
    host.ctl("start", "kimi")
    status = one.wait(30)
    gone_s = time.monotonic() - begun
    host.wait_for("kimi", "lifecycle", "running", limit_s=60, since=max(e["id"] for e in host.events("kimi", "goal")))
    host.ctl("stop", "kimi")
    return {"exit_status": status, "start_to_its_end_s": round(gone_s, 3)}


def moment(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()


def plain(text: str) -> str:
    """Without this machine's paths."""
    return re.sub(r"/\S*/(?=\w)", "", text)


if __name__ == "__main__":
    main()
