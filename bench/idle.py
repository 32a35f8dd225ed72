"""What the daemon costs while nothing happens, with eight healthy servers: memory shared out fairly, and CPU."""

import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from bench.harness import Measurement, bench
from bench.peers import supervisord_folder
from bench.site import our_daemon, supervisord

SERVERS = 8
SETTLE_S = 15.0  # the GPU feed slows down once it has found out that there is nothing to see
WATCH_S = 30.0
MIB = 2**20
HELPER = "supervisor.edge"  # child processes that are ours, not the servers'


@bench("idle")
def idle() -> Iterator[Measurement]:
    folder = supervisord_folder()
    with our_daemon(SERVERS) as (daemon, _socket):
        memory, busy, helpers = watch(daemon)
    peer_memory = peer_busy = None
    if folder:
        with supervisord(folder, SERVERS) as (peer, _client):
            peer_memory, peer_busy, _ = watch(peer)
    name = f"supervisord, {SERVERS} sleepers"
    what = f"{SERVERS} healthy servers, with {helpers} helper process{'es' * (helpers != 1)}"
    yield Measurement(f"PSS, {what} (budget 55)", "MiB", memory, name, peer_memory)
    yield Measurement(f"idle CPU, {what} (budget 0.5)", "% core", busy, name, peer_busy)


def watch(daemon: psutil.Process) -> tuple[float, float, int]:
    """Proportional set size in MiB, CPU in percent of one core, both with our helpers; and how many these are."""
    time.sleep(SETTLE_S)
    pids = [daemon.pid, *helpers_of(daemon)]
    begin_ns, began = on_cpu_ns(pids), time.monotonic()
    time.sleep(WATCH_S)
    share = (on_cpu_ns(pids) - begin_ns) / 1e9 / (time.monotonic() - began)
    return sum(map(pss_bytes, pids)) / MIB, 100 * share, len(pids) - 1


def helpers_of(daemon: psutil.Process) -> list[int]:
    return [child.pid for child in daemon.children() if any(word.startswith(HELPER) for word in child.cmdline())]


def pss_bytes(pid: int) -> int:
    """Shared pages count by the number of processes that share them."""
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found, pid
    return int(found[1]) * 1024


def on_cpu_ns(pids: Iterable[int]) -> int:
    """All threads' time on a CPU; the ticks of /proc/PID/stat (10 ms) are too coarse for an idle process."""
    files = (path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(path.read_text().split()[0]) for path in files)
