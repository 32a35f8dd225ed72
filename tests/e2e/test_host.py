"""What a start and an end want of the host: ports, shared memory, the account and limits of the processes."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench.site import free_ports
from tests.e2e.host import Host, until

SHARED_MEMORY = Path("/dev/shm")
LEAVER = "import os, time; open(f'/dev/shm/torch_{os.getpid()}_1_1', 'w').write('x' * 5000); time.sleep(1000)"
TELLER = (
    "echo $(id -u) $(id -g) $(nice) $(pwd) $(umask) $(ulimit -n) $(cat /proc/self/oom_score_adj);"
    " env | cut -d= -f1; echo end; exec sleep 1000"
)


@pytest.fixture
def dead() -> int:
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_nobody_else_reads_what_the_daemon_writes(host: Host) -> None:
    host.fake("kimi")
    host.start()
    host.wait_for("kimi", "lifecycle", "running")
    written = [path for path in (*host.state_dir.rglob("*"), *host.log_dir.rglob("*")) if path.is_file()]
    assert {"journal.db", "kimi.json"} <= {path.name for path in written}
    assert [path for path in written if path.stat().st_mode & 0o007] == []


def test_a_start_waits_for_its_port_and_names_who_has_it(host: Host) -> None:
    port = host.fake("kimi", autostart=False)
    host.start()
    with socket.create_server(("127.0.0.1", port)):
        host.ctl("start", "kimi")
        host.wait_for("kimi", "lifecycle", "reclaiming")
        until(lambda: f"port {port} is held by pid {os.getpid()}" in host.why("kimi"), 10, "the holder's name")
    host.wait_for("kimi", "lifecycle", "running")
    assert host.show("kimi")["restarts"] == 0


def test_a_start_waits_for_the_ports_that_follow_from_its_own(host: Host) -> None:
    (port,) = free_ports(1)
    host.fake("kimi", "--port", str(port), "--tp", "2", "--dp", "2", "--enable-dp-attention", autostart=False)
    host.servers["kimi"]["port"] = port
    host.start()
    with socket.create_server(("127.0.0.1", port + 235)):
        host.ctl("start", "kimi")
        wanted = f"port {port + 235} is held by pid {os.getpid()}"
        until(lambda: wanted in host.why("kimi"), 10, "the holder's name")
        assert "(needed for attention in data parallel)" in host.why("kimi")
    host.wait_for("kimi", "lifecycle", "running")


def test_shared_memory_of_the_dead_tree_is_removed_and_nobody_elses(host: Host, dead: int) -> None:
    host.add("kimi", [sys.executable, "-c", LEAVER])
    strangers = [SHARED_MEMORY / f"torch_{dead}_1_1", SHARED_MEMORY / f"torch_{os.getpid()}_1_1"]
    try:
        for path in strangers:
            path.write_text("x")
        daemon = host.start()
        until(lambda: bool(host.show("kimi")["pid"]), 10, "the server runs")
        file = SHARED_MEMORY / f"torch_{host.show('kimi')['pid']}_1_1"
        until(file.exists, 10, "the server's segment")
        assert host.ctl("stop", "kimi").returncode == 0
        assert not file.exists()
        assert all(path.exists() for path in strangers), "of the living, and of a dead process that was never ours"
        daemon.wait_until_said("leftover files removed", server="kimi", files=1)
    finally:
        for path in strangers:
            path.unlink(missing_ok=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_server_gets_its_account_limits_and_a_clean_environment(host: Host) -> None:
    env_file = host.root / "secrets.env"
    env_file.write_text("# keys\nexport HF_TOKEN='hunter2'\n")
    host.root.chmod(0o755)
    host.add(
        "kimi",
        ["/bin/sh", "-c", TELLER],  # the tests' own Python may lie where nobody may go
        user="nobody",
        group="nogroup",
        nice=5,
        umask="027",
        oom_score_adj=300,
        limits={"nofile": 777},
        directory="/usr",
        environment={"EXTRA": "1"},
        env_file=str(env_file),
    )
    host.start()
    log = host.log_dir / "kimi" / "000001.log"
    until(lambda: log.exists() and log.read_text().endswith("end\n"), 15, "the server's own words")
    facts, *names = log.read_text().splitlines()
    account = pwd.getpwnam("nobody")
    gid = grp.getgrnam("nogroup").gr_gid
    assert facts == f"{account.pw_uid} {gid} 5 /usr 0027 777 300"
    assert {"HOME", "USER", "PATH", "EXTRA", "HF_TOKEN", "SGLSUP_TREE"} <= set(names)
    assert not set(names) & {"SGLSUP_E2E", "NOTIFY_SOCKET"}, "nothing of root's comes along"
    assert "hunter2" not in host.why("kimi") + host.ctl("status", "--json").stdout
    assert host.ctl("stop", "kimi").returncode == 0


def test_the_times_of_a_stop_are_kept(host: Host) -> None:
    host.fake("kimi", "--scenario", "ignore-term", stop={"grace": "500ms", "startup_grace": "500ms"})
    host.start()
    host.wait_for("kimi", "lifecycle", "running")
    assert host.ctl("stop", "kimi").returncode == 0
    stop = host.show("kimi")["stop"]
    assert stop["stage"] == "kill"
    assert 0.5 <= stop["kill_s"] <= stop["empty_s"] < 5
    assert stop["free_s"] is None, "it has no GPU whose memory could be proven free"
    assert stop["killed"] >= 2


@pytest.mark.parametrize("cgroups", ["auto", "off"], indirect=True)
def test_a_frozen_tree_is_killed_as_well(host: Host) -> None:
    host.fake("kimi", "--scenario", "orphans:count=2", stop={"freeze": True})
    host.start()
    host.wait_for("kimi", "lifecycle", "running")
    assert host.ctl("stop", "kimi").returncode == 0
    assert not host.processes("kimi")
