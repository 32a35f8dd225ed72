"""The nights that this product must end, told from the operator's chair with the fake engine at high speed."""

import subprocess
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from bench.site import health_status
from tests.e2e.host import Host

both_ways = pytest.mark.parametrize("cgroups", ["auto", "off"], indirect=True)
EAGLE = ("--tp", "4", "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "15")


@both_ways
def test_night_1_the_server_that_would_not_start(host: Host) -> None:
    """Silence of one rank in the verify graph's capture: found by its deadline, explained, killed, restarted."""
    once = f"once={host.root}/once"
    stall = ("--scenario", f"stall:phase=verify-graph,rank=TP2,{once}", "--scenario", f"orphans:count=2,{once}")
    backoff = {"backoff": "4s", "backoff_max": "4s", "jitter": 0.0}
    host.fake("kimi", *EAGLE, *stall, deadlines={"verify-graph": {"stall": "2s", "limit": "40s"}}, restart=backoff)
    host.start()

    host.wait_for("kimi", "phase", "verify-graph")
    status = host.ctl("status")
    assert status.returncode == 0
    assert "STARTING" in status.stdout
    assert "verify-graph" in status.stdout

    stalled = host.wait_for("kimi", "verdict", "stalled")
    assert stalled["reason"].startswith("stalled in verify-graph: no progress for ")
    host.wait_for("kimi", "lifecycle", "backoff", since=stalled["id"])
    assert not host.processes("kimi", attempt=1), "the tree must be proven empty before anything else happens"
    story = host.why("kimi")
    assert "kimi is BACKOFF" in story
    assert "stalled in verify-graph: no progress for " in story
    assert "2 s are allowed; all 4 ranks are in it" in story, "what is usual, and who hangs"
    assert_stacks_of_every_rank(Path(evidence_path(story)), ranks=4)

    again = host.wait_for("kimi", "lifecycle", "running", since=stalled["id"])
    assert again["attempt"] == 2
    status = host.ctl("status")
    assert status.stdout.split()[:2] == ["kimi", "RUNNING"]
    assert "1 restart" in status.stdout
    assert host.ctl("wait", "kimi").returncode == 0


def evidence_path(story: str) -> str:
    (line,) = (line for line in story.splitlines() if line.startswith("bundle: "))
    return line.removeprefix("bundle: ")


def assert_stacks_of_every_rank(bundle: Path, ranks: int) -> None:
    names = {path.name for path in bundle.iterdir()}
    assert {"facts.json", "log-tail.txt", "processes.txt"} <= names
    stacks = [path for path in bundle.glob("stack-*.txt") if "supervisor/simulator/scheduler.py" in path.read_text()]
    assert len(stacks) >= ranks, names


def test_night_2_the_server_that_was_not_dead(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused and 503 are warming, never a failure; `sglctl wait` returns when a client could be served."""
    port = host.fake("kimi", "--tp", "2", "--phase-seconds", "warmup=200", speed=100)
    host.start()
    client = subprocess.Popen(host.client("wait", "kimi", "--timeout", "30s"), env=host.environment)
    poller = Poller(port)
    assert client.wait(40) == 0
    returned_at = time.time()
    poller.join(5)
    assert poller.ready_at is not None
    assert poller.unavailable > 0, "the scenario must have shown 503 for a while"

    lag_s = returned_at - poller.ready_at
    known = host.wait_for("kimi", "readiness", "success")
    known_s = datetime.fromisoformat(known["at"]).timestamp() - poller.ready_at
    with capsys.disabled():
        print(
            f"\nreadiness: daemon knew after {known_s * 1000:.0f} ms, sglctl wait returned after {lag_s * 1000:.0f} ms"
        )
    assert lag_s < 0.5, "100 ms on a quiet machine (make bench); a crowded one must not be wrong by seconds either"
    assert host.lifecycle("kimi") == ["reclaiming", "starting", "running"]
    for facet in ("startup", "readiness", "liveness"):
        assert [event["after"] for event in host.events("kimi", facet)] == ["success"]


class Poller(threading.Thread):
    """Asks /health every few milliseconds, as an impatient human would, and notes the moment of the first 200."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.ready_at: float | None = None
        self.unavailable = 0
        self._port = port
        self._pause = threading.Event()
        self.start()

    def run(self) -> None:
        until = time.monotonic() + 40
        while time.monotonic() < until:
            asked_at, status = time.time(), health_status(self._port)
            if status == 200:
                self.ready_at = asked_at
                return
            self.unavailable += status == 503
            self._pause.wait(0.01)


@both_ways
def test_night_3_the_eight_hour_zombie(host: Host) -> None:
    """Capture stuck, TERM ignored, orphans left: ended by the phase's deadline all the same, and all of it."""
    once = f"once={host.root}/once"
    zombie = [f"stall:phase=target-graph,busy=yes,{once}", f"ignore-term:{once}", f"orphans:count=2,{once}"]
    words = [word for spec in zombie for word in ("--scenario", spec)]
    gpu_dir = host.root / "gpu"
    gpu_dir.mkdir()
    deadlines = {"target-graph": {"stall": "1s", "limit": "40s"}}
    host.fake("kimi", "--tp", "2", "--gpu-dir", str(gpu_dir), *words, sole=True, deadlines=deadlines)
    host.start()

    stalled = host.wait_for("kimi", "verdict", "stalled")
    assert "target-graph" in stalled["reason"]
    emptied = host.wait_for("kimi", "lifecycle", "reclaiming", since=stalled["id"])
    assert emptied["before"] == "stopping"
    assert not host.processes("kimi", attempt=1)
    host.wait_for("kimi", "lifecycle", "running", since=stalled["id"])
    assert host.starts("kimi") == 2
    assert host.collisions("kimi") == ""


def test_night_4_the_restart_that_could_not_help(host: Host) -> None:
    """A configuration error: one attempt, fatal at once, the class and the remedy for a human, `wait` gives up."""
    crash = ("--scenario", "crash:phase=draft-weights,cause=spec-decode-config")
    host.fake("kimi", *EAGLE, *crash, sole=True)
    host.start()
    waited = host.ctl("wait", "kimi", "--timeout", "30s")
    assert waited.returncode == 1, waited
    assert "gave up" in waited.stdout

    assert host.starts("kimi") == 1
    assert host.lifecycle("kimi").count("starting") == 1
    status = host.ctl("status")
    assert status.returncode == 3
    assert status.stdout.split()[:2] == ["kimi", "FATAL"]
    story = host.why("kimi")
    assert "cause: spec-decode-config; no restart can help." in story
    assert "what to change: " in story
    assert "context_length" in story, "the line that proves it"
    assert not host.processes("kimi")
