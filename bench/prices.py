"""Prints what importing a package costs, for docs/decisions: CPU time and resident memory, each in a fresh interpreter.

`python -m bench.prices` tells those of the decisions, `python -m bench.prices NAME ...` others; what a bare
interpreter costs is taken off.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

DECIDED = (
    "httpx", "structlog", "transitions", "psutil", "pynvml", "msgspec",
    "starlette.applications", "uvicorn", "argparse",
)  # fmt: skip
RUNS = 5
_LIMIT_S = 60.0
_CHILD = """
import resource, sys
exec(sys.argv[1])
used = resource.getrusage(resource.RUSAGE_SELF)
pages = int(open("/proc/self/statm").read().split()[1])
print((used.ru_utime + used.ru_stime) * 1000, pages * resource.getpagesize() / 2**20)
"""


class Price(NamedTuple):
    """CPU milliseconds and resident MiB."""

    ms: float
    mib: float


def main(names: Sequence[str]) -> int:
    """A line a package; 1 when one cannot be imported."""
    bare, wrong = price("pass"), 0
    for name in names or DECIDED:
        try:
            found = price(f"import {name}")
        except subprocess.CalledProcessError as failed:
            print(f"cannot import {name}: {failed.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            wrong = 1
        else:
            print(f"{name:<24} {found.ms - bare.ms:6.0f} ms  {found.mib - bare.mib:5.1f} MiB")
    return wrong


def price(statement: str) -> Price:
    """Of a fresh interpreter that does this, median of some runs. Raises CalledProcessError."""
    command = [sys.executable, "-c", _CHILD, statement]
    runs = [
        subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True).stdout.split()
        for _ in range(RUNS)
    ]
    return Price(*(statistics.median(float(run[at]) for run in runs) for at in range(2)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
