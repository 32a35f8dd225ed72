"""What every bench shares: its registration, its result and how CPU time is taken."""

import compileall
import os
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import supervisor

WARM_UP_RUNS = 2


class Better(Enum):
    LOWER = "lower"
    HIGHER = "higher"


class Measurement(NamedTuple):
    """One figure of ours beside the same figure of a peer; PEER_VALUE is None where the peer could not be had."""

    what: str
    unit: str
    ours: float
    peer: str
    peer_value: float | None
    better: Better = Better.LOWER
    budget: float | None = None  # what we promise ourselves, in the same unit

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer: above 1 is good, whatever the unit."""
        if not self.peer_value or not self.ours:
            return None
        return self.peer_value / self.ours if self.better is Better.LOWER else self.ours / self.peer_value

    @property
    def met(self) -> bool | None:
        """Whether the budget is kept; None without one."""
        if self.budget is None:
            return None
        return self.ours <= self.budget if self.better is Better.LOWER else self.ours >= self.budget


Bench = Callable[[], Iterator[Measurement]]
BENCHES: dict[str, Bench] = {}


def bench(name: str) -> Callable[[Bench], Bench]:
    """Register a generator of measurements under NAME."""

    def register(function: Bench) -> Bench:
        BENCHES[name] = function
        return function

    return register


def compile_ours() -> None:
    """As pip leaves what it installs, the peer among it: a source that was changed since is compiled at each import."""
    compileall.compile_dir(Path(supervisor.__file__).parent, quiet=1)


def cpu_ms(command: Sequence[str], runs: int = 15, environment: Mapping[str, str] | None = None) -> float:
    """Median CPU time of COMMAND with its children: on a busy machine it tells more than wall time does."""
    samples = [one_cpu_ms(command, environment) for _ in range(WARM_UP_RUNS + runs)]
    return statistics.median(samples[WARM_UP_RUNS:])


def one_cpu_ms(command: Sequence[str], environment: Mapping[str, str] | None) -> float:
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    complaint = process.stderr.read()
    _pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode:
        raise RuntimeError(f"cannot measure {command}: exit status {process.returncode}: {complaint[-300:]!r}")
    return 1000 * (usage.ru_utime + usage.ru_stime)
