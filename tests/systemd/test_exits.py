"""Servers end while systemd is between two daemons; the next one knows how each of them did."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.host import catches
from tests.systemd.machine import BIN, CONFIG, ROOT, UNIT, Machine, Unit, until, why_not

KERNEL_TELLS = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() != "", reason=why_not() or "-"),
    pytest.mark.skipif(
        not KERNEL_TELLS, reason="this kernel tells an exit status to the parent alone: a recorder is it"
    ),
    pytest.mark.timeout(180),
]

HOLD = "/run/hold"  # no daemon is started while it exists
LIMIT_S = 60.0

# server → how it is ended, what is to be said of it, and the cause when its log names none
ENDS = {
    "one": ("USR1", "exited with status 1", "insufficient-evidence"),
    "segfault": ("SEGV", "ended by signal 11", "native-crash"),
    "killed": ("KILL", "ended by signal 9", "host-oom-killed"),
    "done": ("USR2", "exited with status 0", "insufficient-evidence"),
}
_SCRIPT = "trap 'exit 1' USR1; trap 'exit 0' USR2; while :; do sleep 0.05; done"
_SERVER = """
[server.{name}]
command = ["sh", "-c", "{script}"]
port = {port}
gpus = []
restart = {{budget = 0}}
stop = {{grace = "5s"}}
"""
_CONFIG = '[daemon]\nlisten = ""\n' + "".join(
    _SERVER.format(name=name, script=_SCRIPT, port=30121 + number) for number, name in enumerate(ENDS)
)
_DROP_IN = f"""
[Service]
ExecStart=
ExecStart={BIN}/sglsup daemon -c {CONFIG}
ExecStartPre=/bin/sh -c 'while test -e {HOLD}; do sleep 0.05; done'
RestartSec=100ms
WatchdogSec=0
TimeoutStopSec=60s
"""


class Service(Unit):
    """The real unit with servers that end as they are told."""

    def held(self) -> int:
        """How many descriptors systemd holds for the unit."""
        return int(self.machine.property(UNIT, "NFileDescriptorStore"))

    def servers(self) -> dict[str, Any]:
        return {one["name"]: one for one in json.loads(self.ctl("status", "--json"))["servers"]}

    def wait_until_all_run(self) -> None:
        until(
            lambda: all(one["pid"] and one["lifecycle"]["value"] == "starting" for one in self.servers().values()),
            LIMIT_S,
            "every server has its process",
            self.status,
        )

    def wait_until_trapped(self, pid: int) -> None:
        """The shell has come to its loop: it catches SIGUSR2, the second of its traps."""
        process = self.machine.path(f"/proc/{pid}")
        until(lambda: catches(process, signal.SIGUSR2), LIMIT_S, f"{pid} has set its traps", self.status)

    def reasons(self, server: str) -> list[str]:
        events = [json.loads(line) for line in self.ctl("events", server, "--json").splitlines()]
        return [event["reason"] for event in events if event["facet"] == "lifecycle"]

    def wait_for_reason(self, server: str, said: str) -> None:
        until(lambda: said in self.reasons(server), LIMIT_S, f"{server}: {said}", self.status)

    def wait_for_story(self, server: str, *words: str) -> None:
        def told() -> bool:
            why = self.ctl("why", server)
            return all(word in why for word in words)

        until(told, LIMIT_S, f"why {server} says {words}", lambda: self.ctl("why", server))

    def kill_daemon(self) -> None:
        """Until `HOLD` is removed no other one comes."""
        self.machine.ok("touch", HOLD)
        daemon = self.pid
        self.machine.ok("kill", "-KILL", str(daemon))
        until(lambda: self.pid != daemon, LIMIT_S, "systemd has noticed", self.status)

    def wait_for_another(self) -> None:
        self.machine.ok("rm", HOLD)
        until(lambda: self.machine.state(UNIT) == "active", LIMIT_S, "another daemon is ready", self.status)


@pytest.fixture
def service() -> Iterator[Service]:
    files = {
        f"/etc/systemd/system/{UNIT}": (ROOT / "systemd" / UNIT).read_text(),
        f"/etc/systemd/system/{UNIT}.d/test.conf": _DROP_IN,
        CONFIG: _CONFIG,
    }
    with Machine(files) as machine:
        one = Service(machine)
        machine.systemctl("start", UNIT)
        one.wait_until_all_run()
        yield one


def gone(machine: Machine, pid: int) -> bool:
    """Its init has reaped it."""
    return not Path(f"/proc/{machine.leader}/root/proc/{pid}").exists()


def test_the_next_daemon_names_how_each_server_ended(service: Service) -> None:
    pids = {name: one["pid"] for name, one in service.servers().items()}
    until(lambda: service.held() == len(ENDS), LIMIT_S, "systemd holds one descriptor a server", service.status)
    for pid in pids.values():
        service.wait_until_trapped(pid)
    service.kill_daemon()
    for name, (number, _, _) in ENDS.items():
        service.machine.ok("kill", f"-{number}", str(pids[name]))
    for pid in pids.values():
        until(lambda pid=pid: gone(service.machine, pid), LIMIT_S, "init has reaped it", service.status)

    service.wait_for_another()

    for name, (_, said, _) in ENDS.items():
        service.wait_for_reason(name, said)
    until(lambda: service.held() == 0, LIMIT_S, "nothing is held of what is over", service.status)
    for name, (_, said, cause) in ENDS.items():
        service.wait_for_story(name, said, f"first cause: {cause};")


def test_one_descriptor_is_held_for_each_server_that_runs(service: Service) -> None:
    before = service.servers()
    service.kill_daemon()
    service.wait_for_another()
    assert {name: one["pid"] for name, one in service.servers().items()} == {
        name: one["pid"] for name, one in before.items()
    }
    until(lambda: service.held() == len(ENDS), LIMIT_S, "they are held still, and once", service.status)

    service.machine.systemctl("restart", UNIT)
    service.ctl("upgrade")
    service.ctl("restart", "one")
    service.wait_until_all_run()
    until(lambda: service.held() == len(ENDS), LIMIT_S, "an upgrade holds none twice", service.status)

    service.ctl("stop", "segfault")
    until(lambda: service.held() == len(ENDS) - 1, LIMIT_S, "one is over", service.status)
    service.machine.systemctl("stop", UNIT)
    assert service.held() == 0
