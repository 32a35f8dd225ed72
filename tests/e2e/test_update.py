"""The configuration changes while the daemon runs; only what must be restarted is, and nothing runs twice."""

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.e2e.host import Host, until
from tests.e2e.router import configure


def running(host: Host, name: str) -> None:
    until(lambda: host.show(name)["lifecycle"]["value"] == "running", 30, f"{name} is healthy")


def refused_probes(host: Host, name: str) -> int:
    """As the journal has them."""
    with contextlib.closing(sqlite3.connect(f"file:{host.state_dir}/journal.db?mode=ro", uri=True)) as journal:
        rows = journal.execute("SELECT payload FROM entry WHERE server = ? AND kind = 'event'", (name,)).fetchall()
    entries = [json.loads(payload) for (payload,) in rows]
    return sum(one["type"] == "Probed" and one["outcome"] == "refused" for one in entries)


def test_a_live_change_reaches_a_running_server_without_its_notice(host: Host) -> None:
    host.fake("kimi", "--tp", "2", sole=True)
    host.start()
    running(host, "kimi")
    before = host.show("kimi")

    host.servers["kimi"]["restart"] = {"backoff": "100ms", "jitter": 0.0, "budget": 9}
    host.write_config()
    assert host.ctl("reread").stdout.splitlines()[0] == "kimi: changed (live)"
    done = host.ctl("update")
    assert (done.returncode, done.stdout) == (0, "kimi: updated process group\n")

    after = host.show("kimi")
    assert (after["pid"], after["attempt"], after["state"]) == (before["pid"], before["attempt"], "RUNNING")
    assert after["budget_remaining"] == 9
    assert after["uptime_s"] >= before["uptime_s"]
    os.kill(after["pid"], signal.SIGKILL)  # the new core's tasks watch it as the old one's did
    host.wait_for("kimi", "lifecycle", "backoff")
    until(lambda: host.show("kimi")["attempt"] == 2 and host.show("kimi")["healthy"], 30, "healthy again")
    assert not host.collisions("kimi")


def test_a_server_is_probed_at_the_configured_host(host: Host) -> None:
    host.fake("kimi", host="127.0.0.9", sole=True)  # nobody listens there
    host.start()
    host.wait_for("kimi", "phase", "healthy")
    before = refused_probes(host, "kimi")
    until(lambda: refused_probes(host, "kimi") >= before + 3, 30, "three more probes were refused")
    assert host.show("kimi")["lifecycle"]["value"] == "starting", "no probe has been answered"
    pid = host.show("kimi")["pid"]

    host.servers["kimi"]["host"] = "127.0.0.1"
    host.write_config()
    assert host.ctl("update").stdout == "kimi: updated process group\n"

    running(host, "kimi")
    assert (host.show("kimi")["pid"], host.show("kimi")["attempt"]) == (pid, 1)


def test_a_live_change_during_a_start_and_another_one_at_rest(host: Host) -> None:
    host.fake("kimi", "--tp", "2", "--scenario", "slow:phase=weights,factor=3")
    host.fake("draft", autostart=False)
    host.start()
    host.wait_for("kimi", "phase", "weights")
    pid = host.show("kimi")["pid"]
    for name in ("kimi", "draft"):
        host.servers[name]["stop"] = {"grace": "7s"}
    host.write_config()
    assert host.ctl("update").stdout == "draft: updated process group\nkimi: updated process group\n"
    running(host, "kimi")
    assert (host.show("kimi")["pid"], host.show("kimi")["attempt"]) == (pid, 1)
    assert host.show("draft")["state"] == "STOPPED"
    assert host.ctl("start", "--wait", "draft").returncode == 0


@pytest.mark.slow
def test_a_live_change_reaches_a_server_that_waits_for_somebody_elses_port(host: Host) -> None:
    port = host.fake("kimi")
    with socket.create_server(("127.0.0.1", port)):
        host.start()
        host.wait_for("kimi", "start", "waiting")
        host.servers["kimi"]["restart"] = {"budget": 7}
        host.write_config()
        assert host.ctl("update").stdout == "kimi: updated process group\n"
        assert host.show("kimi")["budget_remaining"] == 7
    running(host, "kimi")
    assert host.show("kimi")["attempt"] == 1


def test_a_change_of_the_command_restarts_that_server_alone(host: Host) -> None:
    host.fake("kimi", sole=True)
    host.fake("other")
    host.start()
    running(host, "kimi")
    running(host, "other")
    others = host.show("other")["pid"]
    host.servers["kimi"]["environment"] = {"NEW": "1"}
    host.write_config()
    assert "kimi: changed (restart needed, last start took " in host.ctl("reread").stdout

    done = host.ctl("update")

    assert done.stdout == "kimi: stopped\nkimi: updated process group\nkimi: restarted\n"
    until(lambda: host.show("kimi")["attempt"] == 2 and host.show("kimi")["healthy"], 30, "healthy again")
    assert b"NEW=1" in Path(f"/proc/{host.show('kimi')['pid']}/environ").read_bytes().split(b"\0")
    assert host.show("other")["pid"] == others
    assert not host.collisions("kimi")
    reasons = [event["reason"] for event in host.events("kimi", "goal")]
    assert any("update by uid " in reason for reason in reasons)


@pytest.mark.slow
def test_an_update_ends_when_its_server_is_wanted_up_again_before_it_has_ended(host: Host) -> None:
    host.fake("kimi", "--scenario", "ignore-term", stop={"grace": "3s"}, sole=True)
    host.start()
    running(host, "kimi")
    host.servers["kimi"]["environment"] = {"NEW": "1"}
    host.write_config()
    with subprocess.Popen(host.client("update"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as update:
        host.wait_for("kimi", "lifecycle", "draining")
        assert host.ctl("start", "kimi").returncode == 0
        told, _ = update.communicate(timeout=60)
    assert update.returncode == 1
    assert "cannot change kimi: somebody wants it up again before it has ended" in told
    until(lambda: host.show("kimi")["attempt"] == 2 and host.show("kimi")["healthy"], 30, "healthy again")
    assert "changed (restart needed" in host.ctl("reread").stdout, "the next update still has it to do"


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_an_update_has_stopped_comes_back_with_the_next_daemon(host: Host, how: signal.Signals) -> None:
    host.fake("kimi", "--scenario", "ignore-term", stop={"grace": "3s"}, sole=True)
    host.fake("draft", "--scenario", "ignore-term", stop={"grace": "5s"}, sole=True)  # the daemon's end waits for it
    daemon = host.start()
    running(host, "kimi")
    running(host, "draft")
    host.servers["kimi"]["environment"] = {"NEW": "1"}
    host.write_config()
    with subprocess.Popen(host.client("update"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as update:
        host.wait_for("kimi", "lifecycle", "draining")
        daemon.process.send_signal(how)
        daemon.ended(60)
        update.communicate(timeout=60)
    host.start()
    running(host, "kimi")
    running(host, "draft")
    assert "changed" not in host.ctl("reread").stdout, "it runs as the file has it"
    assert not host.collisions("kimi")


def test_the_daemon_ends_whatever_is_started_meanwhile(host: Host) -> None:
    host.fake("kimi", "--scenario", "ignore-term", stop={"grace": "3s"})
    host.fake("draft", autostart=False)
    daemon = host.start()
    running(host, "kimi")
    daemon.process.terminate()
    host.wait_for("kimi", "lifecycle", "draining")
    assert host.ctl("start", "draft").returncode == 0
    assert daemon.ended(60) == 0


def test_servers_come_and_go_and_a_broken_file_changes_nothing(host: Host) -> None:
    host.fake("kimi")
    host.start()
    running(host, "kimi")
    host.config.write_text(host.config.read_text() + "\n[server.new]\ncomand = 1\n")
    broken = host.ctl("update")
    assert broken.returncode == 1
    assert "server.new.comand: unknown key" in broken.stderr
    assert host.show("kimi")["healthy"]

    kimi = host.servers.pop("kimi")
    host.fake("new")
    host.write_config()
    done = host.ctl("update")
    assert done.stdout.splitlines() == ["kimi: stopped", "kimi: removed process group", "new: added process group"]
    assert not host.processes("kimi")
    running(host, "new")
    assert host.ctl("status", "kimi").returncode == 4

    host.servers["kimi"] = kimi
    host.write_config()
    assert host.ctl("reread").returncode == 0
    assert host.ctl("add", "kimi").returncode == 0
    running(host, "kimi")
    assert host.show("kimi")["attempt"] == 2, "attempts are counted on"
    assert host.ctl("remove", "kimi").returncode == 1
    assert host.ctl("stop", "kimi").returncode == 0
    assert host.ctl("remove", "kimi").returncode == 0


def test_routers_come_into_force_while_the_daemon_runs(host: Host) -> None:
    """The server's core is told that its end waits for one now; its process notices nothing."""
    upstream, port = host.root / "upstream.conf", host.fake("kimi")
    daemon = host.start()
    running(host, "kimi")
    configure(host, lb={"kind": "nginx", "file": str(upstream), "reload": ["true"], "period": "1h"})
    assert "router lb: available (live)" in host.ctl("reread").stdout
    assert host.ctl("update").stdout == "router lb: added\n"
    assert host.ctl("reread").stdout == "No config updates to processes\n"
    assert f"server 127.0.0.1:{port};" in upstream.read_text()
    assert host.ctl("routers").stdout == "lb (nginx): reachable, 1 server\n"

    assert host.ctl("stop", "kimi").returncode == 0
    out, draining = host.wait_for("kimi", "router lb", "out"), host.wait_for("kimi", "lifecycle", "draining")
    asked_to_end = host.wait_for("kimi", "lifecycle", "stopping")
    assert draining["id"] < out["id"] < asked_to_end["id"], "it left before its signal"
    assert host.ctl("start", "--wait", "kimi").returncode == 0
    until(lambda: f"server 127.0.0.1:{port};" in upstream.read_text(), 20, "it is back")

    (host.root / "conf.d" / "routers.toml").unlink()
    os.kill(daemon.pid, signal.SIGHUP)
    daemon.wait_until_said("configuration applied", router="lb", kind="skipped")
    assert f"server 127.0.0.1:{port};" in upstream.read_text(), "a reload takes nobody out"
    assert host.ctl("update").stdout == "router lb: removed\n"
    assert "server 127.0.0.1:9 down;" in upstream.read_text()
    assert host.ctl("routers").stdout == "no routers are configured\n"
    assert host.show("kimi")["attempt"] == 2, "nobody restarted it"


def test_a_reload_applies_what_is_free_and_tells_the_price_of_the_rest(host: Host) -> None:
    host.fake("kimi")
    host.fake("draft")
    daemon = host.start()
    running(host, "kimi")
    running(host, "draft")
    pids = {name: host.show(name)["pid"] for name in ("kimi", "draft")}
    host.servers["kimi"]["restart"] = {"budget": 7}
    host.servers["draft"]["environment"] = {"NEW": "1"}
    host.fake("new")
    host.write_config()
    os.kill(daemon.pid, signal.SIGHUP)
    daemon.wait_until_said("configuration applied", server="new", kind="added")
    daemon.wait_until_said("configuration differs", server="draft", price="a restart, by sglctl update")
    until(lambda: host.show("kimi")["budget_remaining"] == 7, 10, "the new budget")
    assert {name: host.show(name)["pid"] for name in pids} == pids
    running(host, "new")


@pytest.mark.slow
def test_a_server_that_is_removed_before_it_was_started_ends_nobody_else(host: Host) -> None:
    names = [f"n{number:02}" for number in range(40)]
    for name in names:
        host.add(name, ["sleep", "1000"], stop={"grace": "1s"})
    daemon = host.start()
    removed = host.ctl("remove", names[-1])
    assert (removed.returncode, daemon.process.poll()) in ((0, None), (1, None)), "1: it was started before"
    for name in names[:-1]:
        host.wait_for(name, "lifecycle", "starting", 60)


def test_a_server_that_is_stopped_while_an_update_restarts_it_stays_down(host: Host) -> None:
    host.fake("kimi", "--scenario", "ignore-term", stop={"grace": "10m"})
    host.start()
    running(host, "kimi")
    host.servers["kimi"].update(environment={"NEW": "1"}, stop={"grace": "1s"})
    host.write_config()
    with subprocess.Popen(host.client("update"), env=host.environment, stdout=subprocess.PIPE, text=True) as update:
        host.wait_for("kimi", "lifecycle", "draining")
        host.ctl("drain", "kimi", "--timeout", "1s")
        assert update.communicate(timeout=30)[0] == "kimi: updated process group\n"
    assert host.show("kimi")["goal"] == "down"
    assert host.ctl("start", "kimi").returncode == 0
    running(host, "kimi")


def test_an_end_does_not_wait_for_a_reload_that_waits_for_an_update(host: Host) -> None:
    host.fake("kimi", "--scenario", "ignore-term", stop={"grace": "10m"})
    daemon = host.start()
    running(host, "kimi")
    host.servers["kimi"]["environment"] = {"NEW": "1"}
    host.write_config()
    with subprocess.Popen(host.client("update"), env=host.environment, stdout=subprocess.DEVNULL) as update:
        host.wait_for("kimi", "lifecycle", "draining")
        os.kill(daemon.pid, signal.SIGHUP)
        os.kill(daemon.pid, signal.SIGINT)
        daemon.wait_until_said("asked to end", by="SIGINT")
        os.kill(daemon.pid, signal.SIGINT)
        assert daemon.ended() == 0
        update.wait(20)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["removed", "updated", "the daemon ends"])
def test_what_follows_a_failure_at_once_does_not_cost_its_evidence(host: Host, how: str) -> None:
    host.fake("kimi", "--scenario", "exit-on-config", restart={"budget": 0})
    daemon = host.start()
    host.wait_for("kimi", "lifecycle", "fatal")
    match how:
        case "removed":
            assert host.ctl("remove", "kimi").stdout == "kimi: removed process group\n"
        case "updated":
            host.servers["kimi"]["nice"] = 5
            host.write_config()
            assert host.ctl("update").returncode == 0
        case _:
            assert daemon.end() == 0
    assert (host.state_dir / "evidence" / "kimi" / "000001" / "manifest.json").is_file(), host.said()


def test_a_server_that_was_taken_out_can_be_added_again_though_nobody_read_the_file(host: Host) -> None:
    """Since the daemon began: the file that it began with has the server still."""
    host.fake("kimi", autostart=False)
    host.fake("glm", autostart=False)
    host.start()
    assert host.ctl("remove", "kimi").stdout == "kimi: removed process group\n"
    added = host.ctl("add", "kimi")
    assert (added.returncode, added.stdout) == (0, "kimi: added process group\n")
    assert host.show("kimi")["state"] == "STOPPED"
