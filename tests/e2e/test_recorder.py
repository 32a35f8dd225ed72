"""A server ends while there is no daemon; the next one knows how, on every kernel."""

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.host import READY_LIMIT_S, Host, catches, until

both_ways = pytest.mark.parametrize("cgroups", ["auto", pytest.param("off", marks=pytest.mark.slow)], indirect=True)
RECORDING = str(Path(__file__).with_name("recording.py"))
SERVER = ["sh", "-c", "trap 'exit 7' USR1; while :; do sleep 0.05; done"]


def start(host: Host) -> int:
    """A daemon that does not trust the kernel; the pid of its server."""
    host.start_with([sys.executable, RECORDING, str(host.write_config())])
    host.wait_for("kimi", "phase", "launch")
    pid = int(host.show("kimi")["pid"])
    until(lambda: catches(Path(f"/proc/{pid}"), signal.SIGUSR1), READY_LIMIT_S, "the shell has set its trap")
    return pid


@both_ways
@pytest.mark.parametrize(("number", "said"), [(signal.SIGUSR1, "exited with status 7"), (9, "ended by signal 9")])
def test_the_next_daemon_tells_how_a_server_ended_that_nobody_watched(host: Host, number: int, said: str) -> None:
    host.add("kimi", SERVER)
    pid = start(host)
    assert host.daemon is not None
    host.daemon.kill()
    os.kill(pid, number)
    record = host.state_dir / "trees" / "kimi.exit"
    until(lambda: record.read_text().count("\n") == 2, 10, "the recorder has written")

    start(host)

    reasons = [event["reason"] for event in host.events("kimi", "lifecycle")]
    assert said in reasons, reasons


@both_ways
def test_a_daemon_that_lives_notices_nothing_of_the_recorder(host: Host) -> None:
    host.fake("kimi", "--tp", "2", sole=True)
    host.start_with([sys.executable, RECORDING, str(host.write_config())])
    running = host.wait_for("kimi", "lifecycle", "running")
    pid = host.show("kimi")["pid"]
    assert "simulator" in host.processes("kimi")[pid], "the leader is the engine"
    assert host.daemon is not None
    recorder = psutil.Process(pid).ppid()
    assert recorder != host.daemon.pid, "somebody stands between"
    sizes = Path(f"/proc/{recorder}/smaps_rollup").read_text().splitlines()
    print("the recorder:", *(line for line in sizes if line.startswith(("Rss:", "Pss:", "Private_"))), sep="\n")
    os.kill(pid, signal.SIGKILL)
    ended = host.wait_for("kimi", "lifecycle", "stopping", since=running["id"])
    assert ended["reason"] == "ended by signal 9"
    host.wait_for("kimi", "lifecycle", "running", since=ended["id"])
    assert host.ctl("stop", "kimi").returncode == 0
    assert not host.processes("kimi")
    assert not (host.state_dir / "trees" / "kimi.exit").exists()
    assert host.collisions("kimi") == ""


@pytest.mark.slow
@both_ways
def test_an_adopted_server_that_ends_is_told_with_its_status(host: Host) -> None:
    host.add("kimi", SERVER)
    pid = start(host)
    assert host.daemon is not None
    host.daemon.kill()
    assert start(host) == pid
    os.kill(pid, signal.SIGUSR1)
    assert host.wait_for("kimi", "lifecycle", "stopping")["reason"] == "exited with status 7"
