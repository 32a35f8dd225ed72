"""The unit under a real systemd: what start, stop, restart, reload, crash, watchdog, socket and boot do to servers."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import supervisor
from tests.systemd.machine import BIN, CONFIG, ROOT, UNIT, Machine, Unit, until, why_not

pytestmark = [
    pytest.mark.skipif(why_not() != "", reason=why_not() or "-"),
    pytest.mark.timeout(120),
]

SOCKET_UNIT = "sglang-supervisor.socket"
SOCKET = "/run/sglang-supervisor/control.sock"
FABRIC = "nvidia-fabricmanager.service"
BOOT = "sglsup-boot.target"
LIMIT_S = 40.0
SITE = "/opt/sglsup-site"
CAP_SYS_RESOURCE = 24

# The unit is the real one; only what would make the tests slow, and the program's place, are others.
_DROP_IN = f"""
[Service]
ExecStart=
ExecStart={BIN}/sglsup daemon -c {CONFIG}
Environment=PYTHONPATH={SITE}
RestartSec=100ms
WatchdogSec=3s
TimeoutStopSec=30s
"""
_CONFIG = f"""
[daemon]
listen = ""
log_file = "/var/log/sglang-supervisor/daemon.log"

[server.kimi]
command = ["{sys.executable}", "-m", "supervisor.simulator", "--port", "30111", "--speed", "200"]
gpus = []
restart = {{backoff = "100ms"}}
stop = {{grace = "5s"}}
"""
_SLOW_FABRIC = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sleep 0.3\n"


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    files = {f"/etc/systemd/system/{name}": (ROOT / "systemd" / name).read_text() for name in (UNIT, SOCKET_UNIT)} | {
        f"/etc/systemd/system/{UNIT}.d/test.conf": _DROP_IN,
        f"/etc/systemd/system/{FABRIC}": _SLOW_FABRIC,
        f"/etc/systemd/system/{BOOT}": f"[Unit]\nWants={UNIT} {FABRIC}\n",
        "/usr/lib/sysusers.d/sglang-supervisor.conf": (ROOT / "systemd/sysusers.conf").read_text(),
        "/usr/lib/tmpfiles.d/sglang-supervisor.conf": (ROOT / "systemd/tmpfiles.conf").read_text(),
        CONFIG: _CONFIG,
    }
    with Machine(files) as booted:
        yield booted


@pytest.fixture
def service(machine: Machine) -> "Service":
    """The started unit with its server running, as the test before has left it or started anew."""
    one = Service(machine)
    machine.path(CONFIG).write_text(_CONFIG)
    if machine.state(SOCKET_UNIT) == "active":
        machine.systemctl("stop", SOCKET_UNIT, UNIT)
    if machine.state(UNIT) != "active":
        machine.systemctl("reset-failed")
        machine.systemctl("start", UNIT)
    one.wait_until_running()
    return one


class Service(Unit):
    """The unit with one server of the fake engine."""

    @property
    def cgroup(self) -> Path:
        return self.machine.path(f"/sys/fs/cgroup/system.slice/{UNIT}")

    def restarts(self) -> int:
        return int(self.machine.property(UNIT, "NRestarts") or 0)

    def show(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.ctl("status", "kimi", "--json"))["servers"][0]
        return shown

    def wait_until_running(self) -> None:
        self.ctl("wait", "kimi", "--timeout", f"{LIMIT_S:g}s")

    def server_pid(self) -> int:
        return int(self.show()["pid"])

    def copies(self) -> set[str]:
        """The distinct process trees of the server that are alive, by their markers."""
        text = self.machine.ok("sh", "-c", "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | sort -u")
        return {line for line in text.splitlines() if line.startswith("SGLSUP_TREE=kimi:")}

    def said(self, event: str) -> list[dict[str, Any]]:
        """The daemon's own lines with this event, of all its lives."""
        lines = [line["MESSAGE"] for line in self.machine.journal(UNIT) if isinstance(line["MESSAGE"], str)]
        told = [json.loads(line) for line in lines if line.startswith("{")]
        return [one for one in told if one.get("event") == event]

    def priorities(self) -> dict[str, str]:
        """The journal's priority of each event, as last seen."""
        entries = [line for line in self.machine.journal(UNIT) if str(line["MESSAGE"]).startswith("{")]
        return {json.loads(line["MESSAGE"])["event"]: line["PRIORITY"] for line in entries}

    def wait_for_another(self, daemon: int) -> None:
        until(lambda: self.pid not in (0, daemon), LIMIT_S, "systemd starts another daemon", self.status)
        until(lambda: self.machine.state(UNIT) == "active", LIMIT_S, "it becomes ready", self.status)

    def assert_server_outlived_the_daemon(self, server: int) -> None:
        """The very same process serves, and there is no second copy."""
        self.wait_until_running()
        assert self.server_pid() == server
        assert len(self.copies()) == 1, self.copies()


def test_the_start_is_over_when_the_daemon_is_ready(service: Service) -> None:
    assert service.machine.state(UNIT) == "active"
    assert service.machine.property(UNIT, "SubState") == "running"
    assert service.said("ready")[-1]["servers"] == 1


def test_the_status_line_counts_servers(service: Service) -> None:
    until(lambda: service.machine.property(UNIT, "StatusText") == "1 running", 10, "STATUS follows", service.status)


def test_the_daemon_and_each_server_have_cgroups_of_their_own(service: Service) -> None:
    def inside(name: str) -> set[str]:
        return set(service.machine.ok("cat", f"/sys/fs/cgroup/system.slice/{UNIT}/{name}/cgroup.procs").split())

    assert str(service.pid) in inside("daemon")
    assert str(service.server_pid()) in inside("servers/kimi")
    assert inside(".") == set(), "the kernel wants processes in leaves once controllers are on"


def test_directories_and_socket_have_their_modes(service: Service) -> None:
    asked = ("/var/lib/sglang-supervisor", "/var/log/sglang-supervisor", "/run/sglang-supervisor", SOCKET)
    modes = service.machine.ok("stat", "-c", "%a", *asked).split()

    assert modes == ["750", "755", "755", "660"]


def test_limits_reach_the_servers(service: Service) -> None:
    limits = {
        line[:26].strip(): line[26:].split()[:2]
        for line in service.machine.ok("cat", f"/proc/{service.server_pid()}/limits").splitlines()
    }

    assert limits["Max core file size"] == ["0", "unlimited"]
    assert service.machine.property(UNIT, "TasksMax") == "infinity"
    if service.machine.capabilities() & 1 << CAP_SYS_RESOURCE:  # else nobody here can raise a limit
        assert limits["Max open files"] == ["1048576", "1048576"]
        assert limits["Max locked memory"] == ["unlimited", "unlimited"]


def test_servers_may_still_gain_the_rights_that_drivers_need(service: Service) -> None:
    """nvidia-modprobe is setuid root: with NoNewPrivileges a server of another user finds no devices."""
    status = service.machine.ok("cat", f"/proc/{service.server_pid()}/status")

    assert "NoNewPrivs:\t0" in status


def test_a_killed_daemon_comes_back_and_its_server_outlives_it(service: Service) -> None:
    daemon, server = service.pid, service.server_pid()

    service.machine.ok("kill", "-KILL", str(daemon))
    service.wait_for_another(daemon)

    service.assert_server_outlived_the_daemon(server)
    assert service.restarts() >= 1


def test_a_daemon_that_hangs_is_ended_by_the_watchdog(service: Service) -> None:
    daemon, server = service.pid, service.server_pid()

    service.machine.ok("kill", "-STOP", str(daemon))
    service.wait_for_another(daemon)

    assert any("Watchdog timeout" in str(line["MESSAGE"]) for line in service.machine.journal(UNIT))
    service.assert_server_outlived_the_daemon(server)


def test_a_restart_leaves_the_servers_alone(service: Service) -> None:
    daemon, server = service.pid, service.server_pid()
    goals = len(service.said("goal"))

    service.machine.systemctl("restart", UNIT)

    assert service.pid != daemon
    assert service.said("asked systemd for its job")[-1]["job"] == "restart"
    assert "down" not in [change["to"] for change in service.said("goal")[goals:]], "the old daemon stopped nothing"
    service.assert_server_outlived_the_daemon(server)


@pytest.mark.slow
def test_an_upgrade_keeps_process_servers_and_systemds_view(service: Service) -> None:
    """The new version comes first on the path of modules, where nothing was when the daemon was started."""
    daemon, server, restarts = service.pid, service.server_pid(), service.restarts()
    began = service.machine.property(UNIT, "ExecMainStartTimestampMonotonic")
    parent = service.machine.ok("ps", "-o", "ppid=", "-p", str(server)).strip()
    install(service.machine, "9.9.9")

    try:
        told = service.ctl("upgrade")

        assert told.endswith("-> 9.9.9\n")
        assert service.ctl("version") == "9.9.9\n"
        until(lambda: service.machine.state(UNIT) == "active", LIMIT_S, "READY follows RELOADING", service.status)
        assert (service.pid, service.restarts()) == (daemon, restarts)
        assert service.machine.property(UNIT, "ExecMainStartTimestampMonotonic") == began
        assert service.machine.ok("ps", "-o", "ppid=", "-p", str(server)).strip() == parent
        service.assert_server_outlived_the_daemon(server)
        service.machine.ok("sleep", "4")  # longer than WatchdogSec
        assert (service.pid, service.machine.state(UNIT)) == (daemon, "active"), "the watchdog is fed"
        assert service.machine.property(UNIT, "WatchdogUSec") == "3s"
        assert service.said("upgraded")[-1]["after"] == "9.9.9"
        service.machine.systemctl("reload", UNIT)
        assert service.pid == daemon
    finally:
        install(service.machine, supervisor.__version__)
        service.ctl("upgrade")  # the other tests are about the version as it is
    service.assert_server_outlived_the_daemon(server)


def install(machine: Machine, version: str) -> None:
    """A copy of the package that says that it is of another version."""
    package = os.path.dirname(supervisor.__file__)
    machine.ok("mkdir", "-p", f"{SITE}.new")
    machine.ok("cp", "-r", package, f"{SITE}.new/supervisor")
    machine.ok("sed", "-i", f's/^__version__ = .*/__version__ = "{version}"/', f"{SITE}.new/supervisor/__init__.py")
    machine.ok("sh", "-c", f"rm -rf {SITE}; mv {SITE}.new {SITE}")


@pytest.mark.slow
def test_an_upgrade_keeps_the_socket_that_systemd_passed(service: Service) -> None:
    service.machine.systemctl("stop", UNIT)
    service.machine.systemctl("start", SOCKET_UNIT)
    service.ctl("wait", "kimi", "--timeout", f"{LIMIT_S:g}s")
    inode, daemon = service.machine.ok("stat", "-c", "%i", SOCKET), service.pid

    service.ctl("upgrade")

    assert (service.machine.ok("stat", "-c", "%i", SOCKET), service.pid) == (inode, daemon)
    assert service.machine.state(SOCKET_UNIT) == "active"
    service.ctl("status")
    service.machine.systemctl("stop", SOCKET_UNIT, UNIT)
    assert service.copies() == set()


@pytest.mark.slow
def test_a_stop_during_an_upgrade_is_no_less_a_stop(service: Service) -> None:
    service.machine.run("sh", "-c", f"{BIN}/sglctl upgrade --timeout 1s >/dev/null 2>&1 &")
    until(lambda: service.said("makes way for the new code"), LIMIT_S, "the upgrade is under way", service.status)

    service.machine.systemctl("stop", UNIT)

    assert service.machine.property(UNIT, "Result") == "success"
    assert service.copies() == set()


def test_a_stop_stops_the_servers(service: Service) -> None:
    service.machine.systemctl("stop", UNIT)

    assert service.said("asked systemd for its job")[-1]["job"] == "stop"
    assert service.machine.state(UNIT) == "inactive"
    assert service.machine.property(UNIT, "Result") == "success"
    assert service.copies() == set()
    assert not (service.cgroup / "servers/kimi").exists()


def test_a_plain_sigterm_stops_the_servers_too_and_systemd_starts_another_daemon(service: Service) -> None:
    daemon, before = service.pid, service.copies()

    service.machine.ok("kill", "-TERM", str(daemon))
    service.wait_for_another(daemon)

    assert service.said("asked systemd for its job")[-1]["job"] == "none"
    service.wait_until_running()
    assert len(service.copies()) == 1
    assert not service.copies() & before


def test_a_reload_keeps_the_daemon_and_tells_what_the_file_would_change(service: Service) -> None:
    daemon = service.pid
    service.machine.path(CONFIG).write_text(_CONFIG.replace('grace = "5s"', 'grace = "7s"'))

    service.machine.systemctl("reload", UNIT)

    assert service.pid == daemon
    until(lambda: service.said("configuration differs"), 10, "the difference is told", service.status)
    assert service.said("configuration differs")[-1]["server"] == "kimi"


def test_a_reload_of_a_broken_file_changes_nothing_and_says_where(service: Service) -> None:
    daemon, server = service.pid, service.server_pid()
    service.machine.path(CONFIG).write_text(_CONFIG + "\nsize = 5\n")

    service.machine.systemctl("reload", UNIT)

    until(lambda: service.said("configuration refused"), 10, "it is told", service.status)
    assert "server.kimi.size" in service.said("configuration refused")[-1]["problems"][0]
    assert (service.pid, service.server_pid()) == (daemon, server)


def test_a_file_that_cannot_be_used_is_not_tried_for_ever(service: Service) -> None:
    service.machine.systemctl("stop", UNIT)
    service.machine.path(CONFIG).write_text(_CONFIG + "\nsize = 5\n")

    started = service.machine.run("systemctl", "start", UNIT)

    assert started.returncode != 0
    assert service.machine.state(UNIT) == "failed"
    assert service.restarts() == 0
    assert any("server.kimi.size" in str(line["MESSAGE"]) for line in service.machine.journal(UNIT))


def test_journald_gets_one_json_line_a_decision(service: Service) -> None:
    until(lambda: service.said("lifecycle"), 10, "decisions reach the journal", service.status)
    last = service.said("lifecycle")[-1]

    assert (last["server"], last["to"]) == ("kimi", "running")
    assert {"level", "reason", "from"} <= last.keys()
    assert service.priorities()["ready"] == "6"
    assert service.priorities()["configuration refused"] == "3", "journalctl -p err finds it"


def test_the_daemons_log_file_is_read_through_the_socket(service: Service) -> None:
    assert '"event": "ready"' in service.ctl("maintail", "--lines", "1000")


def test_requests_wait_on_the_sockets_unit_while_the_daemon_restarts(service: Service) -> None:
    service.machine.systemctl("stop", UNIT)
    service.machine.systemctl("start", SOCKET_UNIT)
    mode = service.machine.ok("stat", "-c", "%a %G", SOCKET).split()

    service.ctl("wait", "kimi", "--timeout", f"{LIMIT_S:g}s")  # nobody has started the daemon: the request does

    assert mode == ["660", "sglang-supervisor"]
    assert service.machine.state(UNIT) == "active"
    inode = service.machine.ok("stat", "-c", "%i", SOCKET)
    service.machine.systemctl("restart", "--no-block", UNIT)
    for _ in range(5):
        service.ctl("status")  # never refused
    until(lambda: service.machine.state(UNIT) == "active", LIMIT_S, "the restart is over", service.status)
    assert service.machine.ok("stat", "-c", "%i", SOCKET) == inode, "it is still systemd's own socket"


def test_the_daemon_starts_after_the_fabric_manager(service: Service) -> None:
    """On NVSwitch machines CUDA fails before it is up."""
    service.machine.systemctl("stop", UNIT)

    service.machine.systemctl("start", BOOT)  # both at once, as a boot does

    ready = int(service.machine.property(FABRIC, "ActiveEnterTimestampMonotonic"))
    began = int(service.machine.property(UNIT, "ExecMainStartTimestampMonotonic"))
    assert began >= ready


def test_the_daemon_outlives_its_own_socket_directory(service: Service) -> None:
    """RuntimeDirectoryPreserve: the directory with systemd's socket is not swept away at a stop."""
    service.machine.systemctl("stop", UNIT)

    assert service.machine.run("test", "-d", "/run/sglang-supervisor").returncode == 0


def test_nothing_that_tests_start_outlives_the_machine() -> None:
    """Its processes are children of an init that is killed: the kernel ends them all."""
    command = f"sleep 1000.{os.getpid()}"  # of nobody else on this machine
    with Machine({}) as other:
        assert other.ok("sh", "-c", f"setsid {command} >/dev/null 2>&1 & echo $!").strip()
        leader = other.leader
        os.kill(leader, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{leader}/ns/pid").exists(), 10, "the init is gone")
        namespace = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and _command(entry) == command]
    assert namespace == []


def _command(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""
