"""The daemon dies, stops or falls silent; the servers do not care, and no second copy of one ever runs."""

import json
import os
import signal
import subprocess
import threading

import pytest

from tests.e2e.host import Host, until

both_ways = pytest.mark.parametrize("cgroups", ["auto", pytest.param("off", marks=pytest.mark.slow)], indirect=True)

# Where the daemon is killed: the facet and value to wait for, and the scenario that leads there.
MOMENTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "launching": ("lifecycle", "starting", ()),
    "importing": ("phase", "launch", ()),
    "loading": ("phase", "weights", ()),
    "capturing": ("phase", "target-graph", ()),
    "warming up": ("phase", "warmup", ()),
    "serving": ("lifecycle", "running", ()),
    "with orphans": ("lifecycle", "running", ("--scenario", "orphans:count=2")),
    "killing": ("lifecycle", "stopping", ("--scenario", "stall:phase=weights", "--scenario", "ignore-term")),
}
ADOPTED = ("loading", "capturing", "warming up", "serving", "with orphans")


@both_ways
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_daemon_leaves_its_servers_and_the_next_one_goes_on_with_them(host: Host, moment: str) -> None:
    facet, value, scenario = MOMENTS[moment]
    host.fake("kimi", "--tp", "2", *scenario, sole=True, deadlines={"weights": {"stall": "1s"}})
    first = host.start()
    event = host.wait_for("kimi", facet, value)
    before = host.show("kimi")
    first.kill()
    host.start()
    after = host.show("kimi")
    if moment in ADOPTED:
        assert (after["attempt"], after["pid"]) == (before["attempt"], before["pid"])
        assert after["restarts"] == before["restarts"]
        until(lambda: host.show("kimi")["lifecycle"]["value"] == "running", 30, "the adopted server is healthy")
        assert host.show("kimi")["attempt"] == event["attempt"], "it was never started again"
    elif moment == "killing":
        again = host.wait_for("kimi", "lifecycle", "starting")
        assert again["attempt"] == event["attempt"] + 1
        assert not host.processes("kimi", event["attempt"]), "nothing of the old tree is left when the new one starts"
    else:
        until(lambda: host.show("kimi")["lifecycle"]["value"] == "running", 30, "somebody is healthy in the end")
    assert host.collisions("kimi") == ""


@both_ways
def test_a_server_goes_on_serving_while_there_is_no_daemon_and_is_adopted_by_the_next(host: Host) -> None:
    import http.client

    port = host.fake("kimi", sole=True)
    daemon = host.start()
    running = host.wait_for("kimi", "lifecycle", "running")
    before = host.processes("kimi", running["attempt"])
    seen = host.show("kimi")
    daemon.kill()
    for _ in range(20):  # its log goes to a file of its own: no pipe breaks, nobody is blocked
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
    assert host.processes("kimi", running["attempt"]).keys() == before.keys()
    host.start("--no-autostart")
    adopted = host.show("kimi")
    assert adopted["lifecycle"]["value"] == "running"
    assert adopted["ready_since"] == seen["ready_since"]
    (told,) = host.events("kimi", "daemon")
    assert (told["after"], told["attempt"]) == ("adopted", running["attempt"])
    assert "daemon  adopted: a new daemon has begun, and goes on with it as it is" in host.why("kimi")
    assert host.processes("kimi").keys() == before.keys()
    assert host.ctl("stop", "kimi").returncode == 0
    assert not host.processes("kimi")


@both_ways
def test_a_server_that_ended_while_there_was_no_daemon_is_started_again(host: Host) -> None:
    host.fake("kimi", sole=True, restart={"backoff": "100ms"})
    daemon = host.start()
    running = host.wait_for("kimi", "lifecycle", "running")
    daemon.kill()
    for pid in host.processes("kimi", running["attempt"]):
        os.kill(pid, signal.SIGKILL)
    host.start()
    again = host.wait_for("kimi", "lifecycle", "running")
    assert again["attempt"] == running["attempt"] + 1
    assert [told["after"] for told in host.events("kimi", "daemon")] == ["gone"]
    assert "exit status unknown" in host.why("kimi") or "signal 9" in host.why("kimi")


def test_what_people_wanted_down_stays_down(host: Host) -> None:
    host.fake("kimi", sole=True)
    daemon = host.start()
    host.wait_for("kimi", "lifecycle", "running")
    assert host.ctl("stop", "kimi").returncode == 0
    daemon.kill()
    host.start()
    assert host.show("kimi")["lifecycle"]["value"] == "stopped"
    assert host.show("kimi")["goal"] == "down"


def test_an_orderly_end_is_nobodys_wish_about_a_server_and_its_past_stays_known(host: Host) -> None:
    host.fake("kimi", sole=True, restart={"backoff": "100ms"})
    daemon = host.start()
    first = host.wait_for("kimi", "lifecycle", "running")
    for pid in host.processes("kimi", first["attempt"]):
        os.kill(pid, signal.SIGKILL)
    host.wait_for("kimi", "lifecycle", "running", since=first["id"])
    assert daemon.end() == 0
    assert not host.processes("kimi")
    host.start()
    assert host.wait_for("kimi", "lifecycle", "running")["attempt"] == first["attempt"] + 2
    assert "signal 9" in host.ctl("why", "kimi", "--attempt", str(first["attempt"])).stdout


@pytest.mark.parametrize("damage", [b"", b"{", b'{"name": "other"}', b"\xff\xfe garbage"])
def test_a_damaged_record_costs_no_living_server_and_no_second_copy(host: Host, damage: bytes) -> None:
    host.fake("kimi", sole=True)
    daemon = host.start()
    host.wait_for("kimi", "lifecycle", "running")
    pid = host.show("kimi")["pid"]
    daemon.kill()
    record = next(host.root.glob("**/servers/kimi.json"))
    record.write_bytes(damage)
    host.start()
    until(lambda: host.show("kimi")["lifecycle"]["value"] == "running", 30, "the living server is found healthy")
    assert host.show("kimi")["pid"] == pid
    assert record.with_suffix(".broken").exists()
    assert host.collisions("kimi") == ""


def test_a_record_that_does_not_know_of_the_spawn_yet_gets_the_process_of_the_note(host: Host) -> None:
    """Killed between the spawn's note and the server's record: it once became healthy without a pid, unstoppable."""
    host.fake("kimi", sole=True)
    daemon = host.start()
    host.wait_for("kimi", "lifecycle", "running")
    pid = host.show("kimi")["pid"]
    daemon.kill()
    record = next(host.root.glob("**/servers/kimi.json"))
    saved = json.loads(record.read_bytes())
    saved |= {"state": "starting", "tree_alive": False}
    saved["attempt"] |= {"pid": None, "log_path": "", "ready_at": None}
    record.write_text(json.dumps(saved))
    again = host.start()
    until(lambda: host.show("kimi")["lifecycle"]["value"] == "running", 30, "the living server is found healthy")
    assert host.show("kimi")["pid"] == pid
    assert again.end() == 0
    assert not host.processes("kimi")
    assert host.collisions("kimi") == ""


def test_a_record_of_another_boot_adopts_nothing(host: Host) -> None:
    host.fake("kimi", sole=True)
    daemon = host.start()
    host.wait_for("kimi", "lifecycle", "running")
    assert daemon.end() == 0
    host.start()
    host.wait_for("kimi", "lifecycle", "running")
    daemon = host.daemon
    assert daemon is not None
    first = host.processes("kimi")
    daemon.kill()
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not host.processes("kimi"), 10, "the machine has lost its processes, as in a reboot")
    for path in host.root.glob("**/*.json"):
        path.write_bytes(path.read_bytes().replace(boot_id(), b"0" * 36))
    host.start()
    host.wait_for("kimi", "lifecycle", "running")
    assert host.collisions("kimi") == ""


def boot_id() -> bytes:
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read().strip()


def test_a_server_that_is_not_configured_any_more_is_ended_too(host: Host) -> None:
    host.fake("gone", sole=True)
    host.fake("stays", autostart=False)
    first = host.start()
    host.wait_for("gone", "lifecycle", "running")
    first.kill()
    del host.servers["gone"]
    host.start()
    assert not host.processes("gone")


def test_a_server_that_runs_by_another_file_than_the_present_one_is_adopted_and_told(host: Host) -> None:
    host.fake("kimi", sole=True)
    daemon = host.start()
    host.wait_for("kimi", "lifecycle", "running")
    pid = host.show("kimi")["pid"]
    daemon.kill()
    host.servers["kimi"]["stop"] = {"grace": "7s"}
    second = host.start()
    assert host.events("kimi", "supervisor") == [], "a live key costs nothing"
    second.kill()
    host.servers["kimi"]["nice"] = 1

    again = host.start()

    again.wait_until_said("configuration", server="kimi")
    assert host.show("kimi")["pid"] == pid
    (told,) = host.events("kimi", "supervisor")
    assert told["reason"].startswith("it was started with other settings than the file has now")


def test_many_daemons_killed_in_a_row_never_run_two_copies(host: Host) -> None:
    """Killed a little later each time, so that the moment wanders through note, spawn and start."""
    host.fake("kimi", "--tp", "2", sole=True)
    for step in range(6):
        daemon = host.start()
        threading.Event().wait(0.04 * step)  # the moment of the kill itself, not a wait for anything
        daemon.kill()
    host.start()
    assert host.ctl("wait", "kimi", "--timeout", "30s").returncode == 0
    assert host.collisions("kimi") == ""
    leaders = {tree.split(":")[1] for tree in trees(host)}
    assert len(leaders) == 1, leaders


def trees(host: Host) -> set[str]:
    """The attempts whose processes live."""
    found = set()
    for pid in host.processes("kimi"):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        found |= {word.decode() for word in words if word.startswith(b"SGLSUP_TREE=")}
    return found


def stopped_for(host: Host, seconds: float) -> None:
    """The daemon does not run for a while, as under SIGSTOP, swap, or in a machine that was suspended."""
    assert host.daemon is not None
    host.daemon.process.send_signal(signal.SIGSTOP)
    threading.Event().wait(seconds)  # the time that passes is what is tested
    host.daemon.process.send_signal(signal.SIGCONT)


def assert_no_false_stall(host: Host, stopped_s: float) -> None:
    """The start goes on while the daemon is stopped for longer than any stall deadline."""
    limit = {"stall": "3s", "limit": "1h"}
    phases = ("launch", "tokenizer", "dist-init", "weights", "memory-pool", "target-graph", "warmup")
    speed = 240 / (stopped_s * 2)  # the load goes on well beyond the pause
    host.fake("kimi", "--tp", "2", speed=speed, deadlines=dict.fromkeys(phases, limit))
    host.start()
    host.wait_for("kimi", "phase", "weights", limit_s=60)
    stopped_for(host, stopped_s)
    host.wait_for("kimi", "lifecycle", "running", limit_s=120)
    assert host.lifecycle("kimi") == ["reclaiming", "starting", "running"]
    assert [event["after"] for event in host.events("kimi", "verdict")][-1] == "idle"


def test_a_daemon_that_did_not_run_for_a_while_calls_nobody_stalled(host: Host) -> None:
    assert_no_false_stall(host, stopped_s=7.0)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_daemon_that_did_not_run_for_half_a_minute_calls_nobody_stalled(host: Host) -> None:
    assert_no_false_stall(host, stopped_s=30.0)


def test_a_serving_server_outlasts_a_stopped_daemon(host: Host) -> None:
    host.fake("kimi", readiness={"interval": "500ms"})
    host.start()
    host.wait_for("kimi", "lifecycle", "running")
    stopped_for(host, 4.0)
    assert host.ctl("status", "--check").returncode == 0
    assert host.lifecycle("kimi") == ["reclaiming", "starting", "running"]


def test_a_log_that_nobody_reads_any_more_stops_nothing(host: Host) -> None:
    """`sglsup daemon 2>&1 | head`: the pipe breaks with the first line after head has gone."""
    host.fake("kimi")
    daemon = host.launch("--no-autostart")
    daemon.wait_until_said("ready")
    daemon.stop_reading()
    assert host.ctl("start", "kimi", "--wait", "--timeout", "30s").returncode == 0
    assert host.ctl("status", "--check").returncode == 0


def test_a_log_whose_reader_sleeps_stops_nothing(host: Host) -> None:
    """`sglsup daemon 2>&1 | less`: the pipe is full, and a blocking write would stop every decision."""
    host.fake("kimi")
    reading, writing = os.pipe()
    filler = os.dup(writing)
    os.set_blocking(filler, False)
    command = ["sglsup", "daemon", "-c", str(host.write_config())]
    fill(filler)
    with subprocess.Popen([f"{host.bin}/{command[0]}", *command[1:]], env=host.environment, stderr=writing) as process:
        os.close(writing)
        os.close(filler)
        try:
            until(lambda: host.ctl("version").returncode == 0, 20, "the daemon answers")
            assert host.ctl("wait", "kimi", "--timeout", "30s").returncode == 0
        finally:
            process.terminate()
            assert process.wait(20) == 0
            os.close(reading)


def fill(descriptor: int) -> None:
    try:
        while True:
            os.write(descriptor, b"x" * 4096)
    except BlockingIOError:
        return
