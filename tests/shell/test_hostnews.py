"""News of the kernel's log reach the server and the GPU that they concern, and nobody else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from supervisor.devices import Gpu, GpuMemory, GpuSample
from supervisor.edge.hostwatch import LogLost, OomKill, XidReported
from supervisor.edge.process import Tree
from supervisor.events import HostOomKilled, Spawned
from supervisor.shell import clock
from supervisor.shell.devices import Devices
from supervisor.shell.hostnews import HostNews


class FakeCgroup:
    def __init__(self, path: str) -> None:
        self.path = path

    def pids(self) -> tuple[int, ...]:
        return ()

    def kill(self) -> None: ...

    def remove(self) -> bool:
        return True

    async def empty(self, limit_s: float) -> bool:
        return True


class FakeServer:
    """A server with a tree of which pid 4711 was seen."""

    def __init__(self, name: str, cgroup: str = "", pid: int = 4711) -> None:
        self._tree = Tree(Spawned(3, pid), name, f"{name}:3:x", None, FakeCgroup(cgroup) if cgroup else None)
        self.told: list[HostOomKilled] = []

    @property
    def tree(self) -> Tree | None:
        return self._tree

    async def tell(self, event: HostOomKilled) -> None:
        self.told.append(event)


@pytest.fixture
def devices(tmp_path: Path) -> Devices:
    return Devices(tmp_path, lambda pid: "", lambda: None)


async def test_a_kill_inside_a_servers_cgroup_is_that_servers(devices: Devices) -> None:
    kimi, glm = FakeServer("kimi", "/sys/fs/cgroup/s.service/servers/kimi"), FakeServer("glm", pid=9)
    news = HostNews(lambda: (kimi, glm), devices)
    await news.take(OomKill(77, "python", "/s.service/servers/kimi", "/s.service/servers/kimi"))
    await news.take(OomKill(77, "python"))  # the kernel's second line about the same one
    assert kimi.told == [HostOomKilled(3, 77, "python", "kernel log, the limit of /s.service/servers/kimi was used up")]
    assert glm.told == []


async def test_without_a_cgroup_the_pid_tells_if_it_was_seen_before(devices: Devices) -> None:
    kimi = FakeServer("kimi")
    news = HostNews(lambda: (kimi,), devices)
    await news.take(OomKill(4711, "python", "/"))
    await news.take(OomKill(4712, "somebody", "/user.slice"))
    assert kimi.told == [HostOomKilled(3, 4711, "python", "kernel log, the host's memory was used up")]


async def test_an_xid_goes_to_the_device_of_its_address(devices: Devices) -> None:
    look = Gpu(0, "GPU-a", pci="00000000:18:00.0", memory=GpuMemory(1, 0, 1))
    await devices.take(GpuSample(clock.monotonic(), devices=(look,)))
    news = HostNews(tuple, devices)
    await news.take(XidReported("0000:99:00", 79))
    await news.take(XidReported("0000:18:00", 79, "GPU has fallen off the bus."))
    (view,) = devices.view().gpus
    assert (view.state, view.last_xid) == ("quarantined", 79)


async def test_what_the_kernel_overwrote_concerns_nobody(devices: Devices) -> None:
    kimi = FakeServer("kimi")
    await HostNews(lambda: (kimi,), devices).take(LogLost())
    assert kimi.told == []


@pytest.fixture
def kernel_log() -> Iterator[tuple[int, int]]:
    read, write = os.pipe2(os.O_NONBLOCK)
    yield read, write
    os.close(write)


async def test_the_log_is_read_until_cancelled_and_closed(devices: Devices, kernel_log: tuple[int, int]) -> None:
    read, write = kernel_log
    kimi, told = FakeServer("kimi"), anyio.Event()
    news = HostNews(lambda: (kimi,), devices, lambda: read)

    async def until_told() -> None:
        while not kimi.told:
            await anyio.lowlevel.checkpoint()
        told.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(news.run)
        tasks.start_soon(until_told)
        os.write(write, b"3,1,1,-;Out of memory: Killed process 4711 (python) total-vm:1kB\n")
        with anyio.fail_after(10):
            await told.wait()
        tasks.cancel_scope.cancel()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)


async def test_where_the_log_may_not_be_read_it_does_nothing(devices: Devices) -> None:
    with anyio.fail_after(10):
        await HostNews(tuple, devices, lambda: None).run()
