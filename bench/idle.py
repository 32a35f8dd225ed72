"""What the daemon costs while nothing happens, with healthy servers: memory, CPU, wake-ups."""

import contextlib
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.harness import Measurement, bench
from bench.resting import resting_circus, resting_supervisord, resting_systemd
from bench.site import our_daemon

COUNTS = (1, 8, 64)
BUDGETS = {8: (55.0, 0.5)}  # MiB and percent of a core, helpers counted in
SETTLE_S = 15.0  # the GPU feed slows down once it has found out that there is nothing to see
WATCH_S = 30.0
MIB = 2**20
HELPER = "supervisor.edge"  # child processes that are ours, not the servers'
PEERS = {"supervisord": resting_supervisord, "circus": resting_circus, "systemd": resting_systemd}


class Cost(NamedTuple):
    """Of a daemon and its helper processes, while nothing happens."""

    memory_mib: float  # proportional set size
    busy: float  # percent of one core
    wakes: float  # times a second that a thread was put on a CPU
    helpers: int


@bench("idle")
def idle() -> Iterator[Measurement]:
    for count in COUNTS:
        with our_daemon(count) as (daemon, _socket):
            ours = watch(daemon)
        what = f"{count} healthy server{'s' * (count != 1)}, {ours.helpers} helper process{'es' * (ours.helpers != 1)}"
        for name, rest in PEERS.items():
            with rest(count) as process:
                peer = watch(process) if process else None
            yield from compared(what, ours, name, peer, BUDGETS.get(count, (None, None)))


def compared(
    what: str, ours: Cost, name: str, peer: Cost | None, budgets: tuple[float | None, float | None] = (None, None)
) -> Iterator[Measurement]:
    """The three figures of a cost beside those of a peer with as many sleepers."""
    memory, busy, wakes = (peer.memory_mib, peer.busy, peer.wakes) if peer else (None, None, None)
    beside = f"{name}, as many sleepers"
    yield Measurement(f"PSS, {what}", "MiB", ours.memory_mib, beside, memory, budget=budgets[0])
    yield Measurement(f"idle CPU, {what}", "% core", ours.busy, beside, busy, budget=budgets[1])
    yield Measurement(f"wake-ups, {what}", "/s", ours.wakes, beside, wakes)


def watch(daemon: psutil.Process, settle_s: float = SETTLE_S) -> Cost:
    """What it costs over half a minute, after it has had time to settle."""
    time.sleep(settle_s)
    pids = [daemon.pid, *helpers_of(daemon)]
    before, began = scheduled(pids), time.monotonic()
    time.sleep(WATCH_S)
    after, passed_s = scheduled(pids), time.monotonic() - began
    stayed = before.keys() & after.keys()  # a worker thread that has ended took its account along
    busy_ns = sum(after[thread].busy_ns - before[thread].busy_ns for thread in stayed)
    wakes = sum(after[thread].turns - before[thread].turns for thread in stayed)
    memory_mib = sum(map(pss_bytes, pids)) / MIB
    return Cost(memory_mib, busy_ns / 1e7 / passed_s, wakes / passed_s, len(pids) - 1)


def helpers_of(daemon: psutil.Process) -> list[int]:
    return [child.pid for child in daemon.children() if any(word.startswith(HELPER) for word in child.cmdline())]


def pss_bytes(pid: int) -> int:
    """Shared pages count by the number of processes that share them."""
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found, pid
    return int(found[1]) * 1024


class Scheduled(NamedTuple):
    """What the scheduler has given a thread since its start."""

    busy_ns: int
    turns: int


def scheduled(pids: Iterable[int]) -> dict[str, Scheduled]:
    """By thread. The ticks of /proc/PID/stat (10 ms) are too coarse for who is idle."""
    found = {}
    for path in (path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")):
        with contextlib.suppress(OSError):  # it has just ended
            busy_ns, _, turns = path.read_text().split()
            found[path.parent.name] = Scheduled(int(busy_ns), int(turns))
    return found
