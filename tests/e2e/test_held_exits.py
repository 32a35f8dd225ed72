"""A server ends while there is no daemon, and systemd has held its leader's pidfd: the next daemon knows how it ended."""

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.edge.process import become_subreaper
from tests.e2e.host import BIN, Host, catches, until
from tests.edge.firstprocess import Systemd

KERNEL_TELLS = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)
HEIR = str(Path(__file__).with_name("heir.py"))
SERVER = ["sh", "-c", "trap 'exit 7' USR1; while :; do sleep 0.05; done"]
LIMIT_S = 20.0

pytestmark = pytest.mark.skipif(not KERNEL_TELLS, reason="this kernel tells an exit status to the parent alone")


class Unit(Host):
    """A host whose daemon is a service of a systemd that holds descriptors, and hands them to whoever comes next."""

    def __init__(self) -> None:
        super().__init__(cgroups="off")
        self.systemd = Systemd(self.root)
        self._given = str(self.root / "given")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self._given)
        self._listener.listen()
        self._quit, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def __exit__(self, *arguments: object) -> None:
        try:
            super().__exit__(*arguments)  # type: ignore[arg-type]
        finally:
            os.close(self._wake)
            self._thread.join()
            os.close(self._quit)
            self._listener.close()
            self.systemd.close()

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {"NOTIFY_SOCKET": self.systemd.path}

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([self.systemd.socket, self._listener, self._quit], [], [])
            self.systemd.listen()
            if self._listener in ready:
                with self._listener.accept()[0] as asked:
                    names = ":".join(name for name, _ in self.systemd.held)
                    socket.send_fds(asked, [names.encode() or b"-"], [held for _, held in self.systemd.held])
            if self._quit in ready:
                return

    def held(self) -> list[str]:
        return [name for name, _ in self.systemd.held]

    def serve(self) -> None:
        self.start_with(
            [sys.executable, HEIR, self._given, str(BIN / "sglsup"), "daemon", "-c", str(self.write_config())]
        )

    def pid_of(self, name: str) -> int:
        self.wait_for(name, "phase", "launch")
        return int(self.show(name)["pid"])


@pytest.fixture
def subreaper() -> Iterator[None]:
    """We are the init of the daemon's orphans: one that takes its time would be waited for in vain."""
    before = children()
    assert become_subreaper()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    for pid in children() - before:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def children() -> set[int]:
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for one in lists for pid in one.read_text().split()}


@pytest.fixture
def unit(subreaper: None) -> Iterator[Unit]:
    with Unit() as one:
        yield one


def test_the_next_daemon_tells_how_a_server_ended_that_nobody_watched(unit: Unit) -> None:
    ends = {"one": (signal.SIGUSR1, "exited with status 7"), "killed": (signal.SIGKILL, "ended by signal 9")}
    for name in (*ends, "lives"):
        unit.add(name, SERVER, restart={"budget": 0})
    unit.serve()
    pids = {name: unit.pid_of(name) for name in (*ends, "lives")}
    until(lambda: len(unit.held()) == 3, LIMIT_S, "each leader's pidfd is held")
    until(lambda: catches(Path(f"/proc/{pids['one']}"), signal.SIGUSR1), LIMIT_S, "the shell has set its trap")
    assert unit.daemon is not None
    unit.daemon.kill()
    for name, (number, _) in ends.items():
        os.kill(pids[name], number)
        until(lambda name=name: os.waitpid(pids[name], os.WNOHANG)[0] == pids[name], LIMIT_S, f"{name} is reaped")

    unit.serve()

    for name, (_, said) in ends.items():
        until(lambda name=name, said=said: said in unit_reasons(unit, name), LIMIT_S, f"{name}: {said}")
    until(lambda: [name.split("/")[1] for name in unit.held()] == ["lives"], LIMIT_S, "the others' are dropped")
    assert unit.show("lives")["pid"] == pids["lives"]
    assert unit.ctl("stop", "lives").returncode == 0
    until(lambda: not unit.held(), LIMIT_S, "nothing is held of nobody")


def unit_reasons(unit: Unit, name: str) -> list[str]:
    return [event["reason"] for event in unit.events(name, "lifecycle")]
