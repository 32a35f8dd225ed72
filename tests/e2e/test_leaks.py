"""A daemon that has started servers a thousand times holds no more descriptors, threads or memory than before."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.host import Host, until

SERVERS = tuple(f"quick{number}" for number in range(4))
WARM = 750  # by then the rings of the newest journal rows and changes are full
RESTARTS = 1000
LIMIT_S = 900.0  # for each of the two; six minutes on a crowded machine
GROWTH_BYTES = 8 << 20  # worker threads come and go, each with an arena of its own
# The window forgets: with one of an hour every failure within it is remembered, and saved each time.
ENDLESS = {
    "backoff": "0s",
    "backoff_max": "1s",
    "jitter": 0.0,
    "budget": 100_000,
    "same_cause": 100_000,
    "window": "5s",
}


class Footprint(NamedTuple):
    """What a daemon at rest holds."""

    descriptors: int
    threads: int
    pss_bytes: int
    children: int


def footprint(pid: int) -> Footprint:
    process = Path(f"/proc/{pid}")
    pss = re.search(r"^Pss:\s+(\d+) kB", (process / "smaps_rollup").read_text(), re.MULTILINE)
    assert pss is not None
    children = (process / "task" / str(pid) / "children").read_text().split()
    return Footprint(
        len(os.listdir(process / "fd")), len(os.listdir(process / "task")), int(pss[1]) << 10, len(children)
    )


def attempts(host: Host) -> int:
    return sum(int(host.show(name)["attempt"]) for name in SERVERS)


def at_rest_after(host: Host, count: int) -> Footprint:
    """Starts all until they have been started so many times, stops them, and lets what goes on after an end go on."""
    host.ctl("start", "all")
    until(lambda: attempts(host) >= count, LIMIT_S, f"{count} starts")
    host.ctl("stop", "all")
    assert host.daemon is not None
    calm = [footprint(host.daemon.pid)]
    end = time.monotonic() + 30
    while len(calm) < 5 or len({(one.descriptors, one.children) for one in calm[-5:]}) > 1:
        assert time.monotonic() < end, f"it does not come to rest: {calm}"
        host.ctl("status")
        calm.append(footprint(host.daemon.pid))
    return calm[-1]


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT_S + 60)
def test_a_thousand_restarts_leak_nothing(host: Host) -> None:
    for name in SERVERS:
        host.add(name, ["/bin/false"], autostart=False, restart=ENDLESS)
    host.start()
    before = at_rest_after(host, WARM)
    began, first = time.monotonic(), attempts(host)
    after = at_rest_after(host, first + RESTARTS)
    print(f"\n{attempts(host) - first} restarts in {time.monotonic() - began:.0f} s: {before} -> {after}")
    assert after.descriptors <= before.descriptors
    assert after.children <= before.children
    assert after.threads <= before.threads + 4, "threads of the pool come and go"
    assert after.pss_bytes - before.pss_bytes < GROWTH_BYTES
