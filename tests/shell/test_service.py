"""What systemd is told: alive only while every loop turns, patience for other code, and how many servers are how."""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from supervisor.edge.notify import Notifier
from supervisor.shell.service import LOOP_HUNG_S, UPGRADE_WATCHDOG_S, Service


class Systemd:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.setblocking(False)

    async def hears(self) -> dict[str, str]:
        with anyio.fail_after(10):
            await anyio.wait_readable(self._socket)
        return dict(line.split("=", 1) for line in self._socket.recv(4096).decode().splitlines())

    def has_heard(self) -> bool:
        try:
            return bool(self._socket.recv(4096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path):
    one = Systemd(tmp_path)
    yield one
    one.close()


def loop(state: str = "running", overdue_s: float = 0.0) -> Any:
    return SimpleNamespace(server=SimpleNamespace(state=state), overdue_s=lambda: overdue_s)


def service(systemd: Systemd, *loops: Any, watchdog_usec: str = "30000000", fed: list[int] | None = None) -> Service:
    notifier = Notifier({"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": watchdog_usec})
    return Service(notifier, lambda: loops, lambda: (fed if fed is not None else []).append(1))


async def test_ready_comes_with_a_summary(systemd):
    service(systemd, loop(), loop(), loop("fatal")).ready()
    assert await systemd.hears() == {"READY": "1", "STATUS": "1 fatal, 2 running"}


async def test_nobody_to_sum_up(systemd):
    service(systemd).ready()
    assert (await systemd.hears())["STATUS"] == "no servers"


async def test_it_is_alive_while_the_loops_turn(systemd):
    fed: list[int] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service(systemd, loop(overdue_s=LOOP_HUNG_S), watchdog_usec="60000", fed=fed).run)
        assert await systemd.hears() == {"WATCHDOG": "1", "STATUS": "1 running"}
        assert await systemd.hears() == {"WATCHDOG": "1", "STATUS": "1 running"}
        tasks.cancel_scope.cancel()
    assert len(fed) >= 2


async def test_one_loop_that_hangs_lets_systemd_kill_us(systemd):
    fed: list[int] = []
    with anyio.move_on_after(0.3):
        await service(systemd, loop(), loop(overdue_s=LOOP_HUNG_S + 0.1), watchdog_usec="60000", fed=fed).run()
    assert not systemd.has_heard()
    assert fed == []


async def test_a_reload_is_told_with_its_moment(systemd):
    service(systemd, loop()).reloading()
    told = await systemd.hears()
    assert told["RELOADING"] == "1"
    assert int(told["MONOTONIC_USEC"]) > 0


async def test_other_code_gets_more_patience_and_the_configured_one_comes_back(systemd):
    one = service(systemd, loop())
    one.makes_way()
    assert (await systemd.hears())["WATCHDOG"] == "1"
    assert await systemd.hears() == {"WATCHDOG_USEC": str(int(UPGRADE_WATCHDOG_S * 1e6))}
    one.took_over()
    assert await systemd.hears() == {"WATCHDOG": "1", "WATCHDOG_USEC": "30000000"}


async def test_a_longer_patience_is_kept(systemd):
    service(systemd, loop(), watchdog_usec="120000000").makes_way()
    await systemd.hears()
    assert await systemd.hears() == {"WATCHDOG_USEC": "120000000"}


async def test_without_a_watchdog_nothing_is_said_of_it(systemd):
    one = service(systemd, loop(), watchdog_usec="")
    one.makes_way()
    await systemd.hears()
    one.took_over()
    one.stopping()
    assert await systemd.hears() == {"STOPPING": "1"}


async def test_without_systemd_there_is_nothing_to_do():
    one = Service(Notifier({}), lambda: [loop()], lambda: None)
    assert not one.active
    with anyio.fail_after(5):
        await one.run()
    one.ready()
