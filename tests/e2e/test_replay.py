"""The journal of a real daemon, decided anew: with its own configuration nothing differs, with another one it does."""

from __future__ import annotations

import subprocess

from tests.e2e.host import Host


def replay(host: Host, *words: str) -> subprocess.CompletedProcess[str]:
    journal = host.state_dir / "journal.db"
    command = [str(host.bin / "sglsup"), "replay", str(journal), *words]
    return subprocess.run(command, env=host.environment, capture_output=True, text=True, timeout=60)


def test_a_stall_a_crash_and_two_daemons_are_decided_as_they_were(host: Host) -> None:
    stall = ("--tp", "2", "--scenario", f"stall:phase=weights,rank=TP1,once={host.root}/once")
    host.fake("bad", *stall, deadlines={"weights": {"stall": "3s", "limit": "20s"}})
    host.fake("crash", "--scenario", "crash:phase=memory-pool", restart={"backoff": "200ms", "budget": 2})
    host.fake("good")
    daemon = host.start()
    stalled = host.wait_for("bad", "verdict", "stalled")
    host.wait_for("bad", "lifecycle", "running", since=stalled["id"])
    host.wait_for("good", "lifecycle", "running")
    assert host.ctl("restart", "good").returncode == 0
    live = replay(host, "-c", str(host.config))
    assert live.returncode == 0, live.stdout + live.stderr
    daemon.end()

    daemon = host.start()
    host.wait_for("good", "lifecycle", "running")
    assert host.ctl("stop", "good").returncode == 0
    daemon.end()
    same = replay(host, "-c", str(host.config))
    assert same.returncode == 0, same.stdout + same.stderr
    assert same.stdout.count("no difference") == 3
    assert same.stdout == replay(host, "-c", str(host.config)).stdout

    host.servers["bad"]["deadlines"] = {"weights": {"stall": "60s", "limit": "90s"}}
    patient = replay(host, "-c", str(host.write_config()), "--server", "bad")
    assert patient.returncode == 1
    assert "ended then, not now: without progress weights has until" in patient.stdout
