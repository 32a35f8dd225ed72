"""What the daemon costs while nothing happens, with eight servers, and what a status call costs against it."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.harness import Measurement, bench, cpu_ms
from bench.peers import supervisord_folder
from bench.site import BIN, our_daemon, supervisord

SERVERS = 8
SETTLE_S = 5.0
WATCH_S = 20.0
MIB = 2**20


@bench("idle")
def idle() -> Iterator[Measurement]:
    folder = supervisord_folder()
    with our_daemon(SERVERS) as (daemon, socket):
        memory, busy = watch(daemon)
        status = cpu_ms([str(BIN / "sglctl"), "-s", socket, "status"])
    peer_memory = peer_busy = peer_status = None
    if folder:
        with supervisord(folder, SERVERS) as (peer, client):
            peer_memory, peer_busy = watch(peer)
            peer_status = cpu_ms([*client, "status"])
    name = f"supervisord, {SERVERS} sleepers"
    yield Measurement(f"RSS, {SERVERS} healthy servers", "MiB", memory, name, peer_memory)
    yield Measurement(f"idle CPU, {SERVERS} probed servers", "ms/min", busy, name, peer_busy)
    yield Measurement(f"sglctl status, {SERVERS} servers", "ms CPU", status, "supervisorctl status", peer_status)


def watch(daemon: psutil.Process) -> tuple[float, float]:
    """Resident memory in MiB and CPU milliseconds a minute, of the daemon alone."""
    time.sleep(SETTLE_S)
    begin_ns = on_cpu_ns(daemon.pid)
    time.sleep(WATCH_S)
    busy_ns = on_cpu_ns(daemon.pid) - begin_ns
    return daemon.memory_info().rss / MIB, busy_ns / 1e6 * 60 / WATCH_S


def on_cpu_ns(pid: int) -> int:
    """All threads' time on a CPU; the ticks of /proc/PID/stat (10 ms) are too coarse for an idle process."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
