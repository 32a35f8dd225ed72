"""Reads memory and use of the GPUs beside the daemon, so that what it says of them can be judged."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Self

import pynvml

PERIOD_S = 0.2
IDLE_MIB = 64  # what an idle device may hold beyond its own: processes that only enumerate devices cost 3 MiB each
_MIB = 1 << 20


class Witness(threading.Thread):
    """Use as a context manager. Without GPUs it sees none."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, list[int], list[int]]] = []  # wall time, MiB in use, per cent of use
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(10)

    def run(self) -> None:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(one) for one in range(pynvml.nvmlDeviceGetCount())]
            while not self._over.wait(PERIOD_S):
                used = [pynvml.nvmlDeviceGetMemoryInfo(one, version=pynvml.nvmlMemory_v2).used for one in handles]
                rates = [pynvml.nvmlDeviceGetUtilizationRates(one).gpu for one in handles]
                self.seen.append((time.time(), [one // _MIB for one in used], rates))

    def used(self) -> list[int]:
        """MiB of each GPU at the last look."""
        return self.seen[-1][1] if self.seen else []

    def held_before(self, moment: float) -> list[int]:
        """The most of each GPU within the ten seconds before."""
        return [
            max(column) for column in zip(*(used for at, used, _ in self._between(moment - 10, moment)), strict=True)
        ]

    def busy_between(self, begin: float, end: float) -> list[Any]:
        """Median use of each GPU in per cent."""
        columns = zip(*(rates for _, _, rates in self._between(begin, end)), strict=True)
        return [sorted(column)[len(column) // 2] for column in columns]

    def idle_from(self, moment: float) -> float | None:
        """When first after the moment no GPU held anything; None when that was not seen."""
        return next((at for at, used, _ in list(self.seen) if at > moment and max(used, default=0) <= IDLE_MIB), None)

    def _between(self, begin: float, end: float) -> list[tuple[float, list[int], list[int]]]:
        return [row for row in list(self.seen) if begin <= row[0] <= end]
