"""How soon after a kill a server's tree is proven empty and its devices free: the daemon, with the fake driver."""

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Measurement, bench
from tests.e2e.gpus import GpuHost
from tests.nvml.fake import FakeNvml, build, compiler

RANKS = 8
ROUNDS = 5
LAG_S = 0.3  # for which the driver keeps a dead process's memory; the real one was seen to take 0.12 to 0.7 s


@bench("reclaim")
def reclaim() -> Iterator[Measurement]:
    if compiler() is None:
        raise RuntimeError("cannot measure: no C compiler to build the stand-in for NVML with")
    with tempfile.TemporaryDirectory() as folder:
        machine = FakeNvml(Path(folder), build(Path(folder)), RANKS)
        machine.lag_s = LAG_S
        machine.write()
        with GpuHost(machine, cgroups="auto") as host:
            host.engine("kimi", "--tp", str(RANKS), gpus=list(range(RANKS)), autostart=False)
            host.start()
            stops = [one_stop(host) for _ in range(ROUNDS)]
    empty_ms, free_ms = (statistics.median(column) * 1000 for column in zip(*stops, strict=True))
    yield Measurement(f"kill to empty, {RANKS} ranks", "ms", empty_ms, "-", None)
    yield Measurement(f"kill to free, {RANKS} GPUs", "ms", free_ms, "driver's lag", LAG_S * 1000)


def one_stop(host: GpuHost) -> tuple[float, float]:
    """Seconds from SIGKILL of the leader to the last process's end, and to memory back."""
    seen = max([0, *(event["id"] for event in host.events("kimi", "lifecycle"))])
    host.ctl("start", "kimi")
    host.wait_for("kimi", "lifecycle", "running", limit_s=60, since=seen)
    host.ctl("signal", "KILL", "kimi")
    host.ctl("stop", "kimi")
    stop = host.show("kimi")["stop"]
    return float(stop["empty_s"]), float(stop["free_s"])
