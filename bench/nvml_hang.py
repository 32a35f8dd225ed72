"""What a driver call that never returns costs the daemon, and what looking at GPUs costs at all."""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio

from bench.harness import Measurement, bench
from supervisor.devices import GpuBlind, GpuSample
from supervisor.edge.gpu.feed import FeedTimings, GpuFeed
from supervisor.edge.gpu.process import launch_reader
from tests.nvml.fake import FakeNvml, build, client_environment, compiler

GPUS = 8
LAG_LIMIT_MS = 50.0
SLOW_CALL_S = 2.0
TICK_S = 0.005
SAMPLES = 30
WAIT_S = 60.0


class Lag:
    """How late the event loop comes back to a task that wants to run every few milliseconds."""

    def __init__(self) -> None:
        self.worst_ms = 0.0

    async def watch(self) -> None:
        while True:
            begun = time.monotonic()
            await anyio.sleep(TICK_S)
            self.worst_ms = max(self.worst_ms, (time.monotonic() - begun - TICK_S) * 1000)


@bench("nvml-hang")
def nvml_hang() -> Iterator[Measurement]:
    if compiler() is None:
        raise RuntimeError("cannot measure: no C compiler to build the stand-in for NVML with")
    with tempfile.TemporaryDirectory() as folder:
        machine = FakeNvml(Path(folder), build(Path(folder)), GPUS)
        idle_ms, hang_ms, blind_s = anyio.run(hang, machine)
        machine.mend()
        sample_ms, memory_mib = anyio.run(cost, machine)
    naive_ms = anyio.run(slow_call_on_the_loop)
    yield Measurement("worst loop lag, NVML hangs", "ms", hang_ms, f"a {SLOW_CALL_S:.0f} s call on the loop", naive_ms)
    yield Measurement("worst loop lag, NVML hangs", "ms", hang_ms, "our limit", LAG_LIMIT_MS)
    yield Measurement("worst loop lag, NVML hangs", "ms", hang_ms, "the same loop, NVML well", idle_ms)
    yield Measurement("hang to blind, limit 5 s", "s", blind_s, "silence allowed", FeedTimings().silent_min_s)
    yield Measurement(f"one look at {GPUS} GPUs", "CPU ms", sample_ms, "-", None)
    yield Measurement("reader process", "MiB PSS", memory_mib, "-", None)


async def hang(machine: FakeNvml) -> tuple[float, float, float]:
    """Worst lag with a driver that answers; worst lag and time to blindness with one that hangs."""
    async with feed_of(machine) as feed, anyio.create_task_group() as tasks:
        await next_sample(feed)
        well = Lag()
        tasks.start_soon(well.watch)
        for _ in range(5):
            await next_sample(feed)
        machine.hang("nvmlDeviceGetMemoryInfo_v2")
        ill = Lag()
        tasks.start_soon(ill.watch)
        begun = time.monotonic()
        with anyio.fail_after(WAIT_S):
            while not isinstance(await anext(feed), GpuBlind):
                begun = time.monotonic()
        blind_s = time.monotonic() - begun
        tasks.cancel_scope.cancel()
    return well.worst_ms, ill.worst_ms, blind_s


async def cost(machine: FakeNvml) -> tuple[float, float]:
    """CPU of one look, in milliseconds, and the reader's memory."""
    async with feed_of(machine) as feed:
        await next_sample(feed)
        pid = feed.status.pid or 0
        readings = []
        for _ in range(SAMPLES):
            before = cpu_ns(pid)
            feed.hurry()
            await next_sample(feed)
            readings.append((cpu_ns(pid) - before) / 1e6)
        return statistics.median(readings), pss_mib(pid)


async def slow_call_on_the_loop() -> float:
    """What a driver call costs that is made where the decisions are made."""
    lag = Lag()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lag.watch)
        await anyio.sleep(TICK_S * 4)
        time.sleep(SLOW_CALL_S)  # noqa: ASYNC251 - the very thing that is measured
        await anyio.sleep(TICK_S * 4)
        tasks.cancel_scope.cancel()
    return lag.worst_ms


def feed_of(machine: FakeNvml) -> GpuFeed:
    return GpuFeed(FeedTimings(backoff_s=60), partial(launch_reader, environment=client_environment(machine)))


async def next_sample(feed: GpuFeed) -> GpuSample:
    with anyio.fail_after(WAIT_S):
        while not isinstance(report := await anext(feed), GpuSample):
            pass
        return report


def cpu_ns(pid: int) -> int:
    """Of all threads. /proc/PID/schedstat has the main thread's alone."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((tasks / name / "schedstat").read_text().split()[0]) for name in os.listdir(tasks))


def pss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
