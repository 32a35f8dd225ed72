"""Runs feed, lease and reclaim against the machine's real NVML and prints the figures of docs/gpu.md.

`python -m tests.gpu_real.measure [--rounds N] [--json FILE]` from the root of the repository. Needs a GPU with 21 GiB
free, msgspec, anyio and nvidia-ml-py. Takes about two minutes. Changes no setting of the GPU.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import msgspec
import pynvml

from supervisor.config import GpuPlan
from supervisor.core.gpus.book import Claim, DeviceBook, Finding
from supervisor.devices import GpuBlind, GpuReport, GpuSample
from supervisor.edge.gpu.feed import FeedTimings, GpuFeed
from supervisor.edge.holders import identify

GIB = 1 << 30
SIZE = 20 * GIB
DEVICE = 0
PERIOD_S = 0.02  # far below the product's: it measures the driver, not our sampling
WAIT_S = 60.0
HOLDER = Path(__file__).with_name("holder.py")
CALLS = 200


class Bench:
    """Feed and book as the daemon uses them, with every report kept."""

    def __init__(self, feed: GpuFeed) -> None:
        self.feed = feed
        self.book = DeviceBook(now=time.monotonic())
        self.reports: list[GpuReport] = []
        self.owned: dict[int, str] = {}
        self.worst_lag_s = 0.0
        self._news = anyio.Event()

    async def follow(self) -> None:
        """Reads the feed for ever."""
        async for report in self.feed:
            pids = self._listed(report)
            owners = identify(pids, lambda pid: self.owned.get(pid, ""))
            self.book.observe(report, owners, time.monotonic())
            self.reports.append(report)
            self._news.set()
            self._news = anyio.Event()

    async def watch_lag(self) -> None:
        """How late the event loop is, at worst."""
        while True:
            begun = time.monotonic()
            await anyio.sleep(0.01)
            self.worst_lag_s = max(self.worst_lag_s, time.monotonic() - begun - 0.01)

    async def until(self, true: Callable[[], bool], what: str) -> float:
        """The moment at which it is first true after a report."""
        with anyio.move_on_after(WAIT_S):
            while not true():
                await self._news.wait()
            return time.monotonic()
        raise SystemExit(f"gave up waiting for {what}; last report: {self.reports[-1:]}")

    def samples(self, since: float = 0.0) -> list[GpuSample]:
        return [report for report in self.reports if isinstance(report, GpuSample) and report.at >= since]

    def used(self) -> int:
        memory = self.samples()[-1].devices[DEVICE].memory
        return memory.used if memory else -1

    def listed(self) -> dict[int, int | None]:
        return {process.pid: process.bytes for process in self.samples()[-1].devices[DEVICE].processes or ()}

    def check(self, server: str, after: float = 0.0) -> Finding:
        return self.book.check(Claim(server, (DEVICE,), after=after), time.monotonic())[0]

    @staticmethod
    def _listed(report: GpuReport) -> list[int]:
        devices = report.devices if isinstance(report, GpuSample) else ()
        return [process.pid for gpu in devices for process in gpu.processes or () if process.alive]


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    timings = FeedTimings(active_s=PERIOD_S, silent_min_s=3.0, backoff_s=0.1)
    async with GpuFeed(timings) as feed, anyio.create_task_group() as tasks:
        made = Bench(feed)
        tasks.start_soon(made.follow)
        tasks.start_soon(made.watch_lag)
        await made.until(lambda: bool(made.samples()), "a first sample")
        yield made
        tasks.cancel_scope.cancel()


async def start_holder(size: int = SIZE) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(HOLDER), str(DEVICE), str(size)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    line = await anyio.to_thread.run_sync(holder.stdout.readline)
    if line != b"up\n":
        raise SystemExit(f"the holder did not come up: {line!r}, status {holder.wait()}")
    return holder


# --- the parts ---


async def first_look() -> dict[str, Any]:
    begun = time.monotonic()
    async with bench() as made:
        first_s = time.monotonic() - begun
        await made.until(lambda: len(made.samples()) > 100, "100 samples")
        pid = made.feed.status.pid
        return {
            "first_sample_s": round(first_s, 3),
            "sample_us_idle": spread([sample.took_s * 1e6 for sample in made.samples()[1:]]),
            "reader_memory": memory_of(pid),
            "idle_sample": json.loads(msgspec.json.encode(made.samples()[-1])),
        }


async def rounds(count: int) -> dict[str, Any]:
    async with bench() as made:
        await made.until(lambda: made.check("bench").clean is True, "a clean device before the first round")
        table = [await one_round(made) for _ in range(count)]
        slow = [sample.took_s * 1e3 for sample in made.samples()]
        return {
            "rounds": table,
            "kill_to_reaped_s": spread([row["reaped_s"] for row in table]),
            "kill_to_memory_back_s": spread([row["memory_back_s"] for row in table]),
            "kill_to_clean_s": spread([row["clean_s"] for row in table]),
            "listed_after_reaped_s": spread([row["listed_after_reaped_s"] for row in table]),
            "sample_ms_all": spread(slow),
            "samples_over_20_ms": sum(took > 20 for took in slow),
            "worst_loop_lag_ms": round(made.worst_lag_s * 1e3, 1),
            "baseline": made.book.view().gpus[DEVICE].baseline,
        }


async def one_round(made: Bench) -> dict[str, Any]:
    """Lease, allocate, look at what is said of it, kill -9, wait until the book calls the device clean."""
    made.book.lease("bench", GpuPlan(indices=(DEVICE,)))
    before = time.monotonic()
    holder = await start_holder()
    made.owned = {holder.pid: "bench"}
    up = time.monotonic()
    await made.until(
        lambda: holds_all(made, holder.pid, up), "all of the memory beside the holder's pid in NVML's list"
    )
    while_held = {
        "allocate_s": round(time.monotonic() - before, 3),
        "used_bytes": made.used(),
        "listed_bytes": made.listed()[holder.pid],
        "used_minus_listed": made.used() - sum(size or 0 for size in made.listed().values()),
        "to_itself": made.check("bench").reason,
        "to_others": made.check("other").reason,
        "would_kill": [culprit.pid == holder.pid for culprit in made.check("bench").kill],
    }
    killed = time.monotonic()
    holder.kill()
    await anyio.to_thread.run_sync(holder.wait)
    reaped = time.monotonic()
    back = await made.until(lambda: made.samples()[-1].at > killed and made.used() < GIB, "the memory")
    clean = await made.until(lambda: made.check("bench", after=killed).clean is True, "a clean device")
    made.book.release_lease("bench")
    close(holder)
    return while_held | {
        "reaped_s": round(reaped - killed, 4),
        "memory_back_s": round(back - killed, 4),
        "clean_s": round(clean - killed, 4),
        "listed_after_reaped_s": round(last_listed(made, holder.pid, reaped) - reaped, 4),
        "listed_dead_as": listed_dead_as(made, holder.pid, reaped),
        "worst_sample_ms": round(max(sample.took_s for sample in made.samples(before)) * 1e3, 2),
    }


def holds_all(made: Bench, pid: int, since: float) -> bool:
    """The holder has said that it is done and is known as ours, but the newest sample may be of a moment before."""
    return made.samples()[-1].at > since and made.used() >= SIZE and (made.listed().get(pid) or 0) >= SIZE


def last_listed(made: Bench, pid: int, reaped: float) -> float:
    seen = [sample.at for sample in made.samples(reaped) if pid in pids_of(sample)]
    return max([reaped, *seen])


def listed_dead_as(made: Bench, pid: int, reaped: float) -> list[dict[str, Any]]:
    """What is said of the process after it was reaped: at most the first and last of it."""
    found = [
        {"after_s": round(sample.at - reaped, 3), "bytes": process.bytes, "alive": process.alive}
        for sample in made.samples(reaped)
        for process in sample.devices[DEVICE].processes or ()
        if process.pid == pid
    ]
    return found[:1] + found[1:][-1:]


def pids_of(sample: GpuSample) -> set[int]:
    return {process.pid for process in sample.devices[DEVICE].processes or ()}


async def zombie() -> dict[str, Any]:
    """A killed process that nobody reaps: does its memory come back all the same, and is it still listed?"""
    async with bench() as made:
        holder = await start_holder()
        up = time.monotonic()
        await made.until(lambda: holds_all(made, holder.pid, up), "the holder in NVML's list")
        killed = time.monotonic()
        os.kill(holder.pid, signal.SIGKILL)
        back = await made.until(lambda: made.samples()[-1].at > killed and made.used() < GIB, "the memory")
        still = holder.pid in made.listed()
        holder.wait()
        close(holder)
        return {"memory_back_s": round(back - killed, 4), "listed_as_zombie": still}


async def enumerator() -> dict[str, Any]:
    """A process that only initialises the driver."""
    async with bench() as made:
        idle = made.used()
        holder = await start_holder(0)
        now = time.monotonic()
        await made.until(lambda: made.samples()[-1].at > now + 0.2, "a sample")
        answer = {"costs_bytes": made.used() - idle, "listed": holder.pid in made.listed()}
        answer["clean_all_the_same"] = made.check("bench").clean
        holder.kill()
        holder.wait()
        close(holder)
        return answer


async def hang() -> dict[str, Any]:
    """A reader that is stopped stands for a driver call that hangs: blind, killed, replaced, seeing."""
    async with bench() as made:
        pid = made.feed.status.pid
        assert pid is not None
        begun = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        blind = await made.until(lambda: isinstance(made.reports[-1], GpuBlind), "blindness")
        reason = made.feed.status.reason
        unknown = made.check("bench").clean
        seeing = await made.until(lambda: isinstance(made.reports[-1], GpuSample), "sight")
        return {
            "blind_after_s": round(blind - begun, 2),
            "seeing_again_after_s": round(seeing - begun, 2),
            "reason": reason,
            "clean_while_blind": unknown,
            "worst_loop_lag_ms": round(made.worst_lag_s * 1e3, 1),
        }


async def calls() -> dict[str, Any]:
    """Latency of each NVML call that the reader makes, in microseconds."""
    pynvml.nvmlInit()
    idle = {name: latency(call) for name, call in nvml_calls().items()}
    holder = await start_holder()
    held = {name: latency(call) for name, call in nvml_calls().items()}
    holder.kill()
    holder.wait()
    close(holder)
    pynvml.nvmlShutdown()
    return {"idle": idle, "held": held}


def nvml_calls() -> dict[str, Callable[[], Any]]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(DEVICE)
    uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    recovery = [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
    return {
        "memory v2": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2),
        "compute processes": lambda: pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle),
        "MPS processes": lambda: pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(handle),
        "graphics processes": lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3(handle),
        "temperature": lambda: pynvml.nvmlDeviceGetTemperature(handle, 0),
        "power": lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
        "clocks event reasons": lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        "ECC volatile": lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, 0),
        "ECC aggregate": lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, 1),
        "remapped rows": lambda: pynvml.nvmlDeviceGetRemappedRows(handle),
        "recovery action": lambda: pynvml.nvmlDeviceGetFieldValues(handle, recovery)[0].nvmlReturn,
    }


def latency(call: Callable[[], Any]) -> dict[str, Any]:
    times, answer = [], ""
    for _ in range(CALLS):
        begun = time.perf_counter()
        try:
            answer = str(call())
        except pynvml.NVMLError as error:
            answer = f"{type(error).__name__}"
        times.append((time.perf_counter() - begun) * 1e6)
    return spread(times) | {"answer": answer[:200]}


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    ninety = ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))]
    figures = {"min": ordered[0], "p50": statistics.median(ordered), "p90": ninety, "max": ordered[-1]}
    return {name: round(value, 4) for name, value in figures.items()}


def memory_of(pid: int | None) -> dict[str, int]:
    """KiB, from smaps_rollup; empty where the kernel has none."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines[1:])
    return {field[0].rstrip(":"): int(field[1]) for field in fields if field[0] in ("Pss:", "Rss:", "Pss_Anon:")}


def close(holder: subprocess.Popen[bytes]) -> None:
    for pipe in (holder.stdin, holder.stdout):
        if pipe is not None:
            pipe.close()


def machine() -> dict[str, Any]:
    return {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "pid_namespace": read_link("/proc/self/ns/pid"),
        "pid": os.getpid(),
        "uid": os.getuid(),
    }


def read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError as error:
        return str(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], Any]] = {
        "first look": first_look,
        "calls": calls,
        "rounds": lambda: rounds(arguments.rounds),
        "zombie": zombie,
        "enumerator": enumerator,
        "hang": hang,
    }
    result: dict[str, Any] = {"machine": machine()}
    for name, part in parts.items():
        print(f"{name} ...", flush=True)
        result[name] = run_part(part)
        print(json.dumps(result[name], indent=1), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    raise SystemExit(any("failed" in str(value) for value in result.values() if isinstance(value, str)))


def run_part(part: Callable[[], Any]) -> Any:
    """One part that goes wrong must not cost the others: the machine is borrowed."""
    try:
        return anyio.run(part)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"failed: {error!r}"[:2000]


if __name__ == "__main__":
    main()
