"""A host with GPUs that are not there: the daemon sees the fake driver, fake servers hold its memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e import api
from tests.e2e.host import Host, until
from tests.nvml import FakeNvml

GIB = 1 << 30


class GpuHost(Host):
    """Use as a context manager, as any host."""

    def __init__(self, nvml: FakeNvml, *, cgroups: str = "off") -> None:
        super().__init__(cgroups=cgroups)
        self.nvml = nvml

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | self.nvml.environment

    def engine(self, name: str, *arguments: str, **table: Any) -> int:
        """A fake server whose ranks hold memory of the fake GPUs."""
        return self.fake(name, *arguments, "--gpu-dir", str(self.nvml.allocations), **table)

    def gpus(self) -> dict[str, Any]:
        answer: dict[str, Any] = api.get(self.socket, "/v1/gpus")
        return answer

    def gpu(self, index: int) -> dict[str, Any]:
        """One device; before the first look there is none."""
        known: dict[int, dict[str, Any]] = {gpu["index"]: gpu for gpu in self.gpus()["gpus"]}
        return known.get(index, {"state": "not seen yet"})

    def wait_sight(self, sight: str, limit_s: float = 20.0) -> None:
        until(lambda: self.gpus()["sight"] == sight, limit_s, f"the GPUs are {sight}")

    def wait_gpu(self, index: int, state: str, limit_s: float = 20.0) -> dict[str, Any]:
        until(lambda: self.gpu(index)["state"] == state, limit_s, f"GPU {index} is {state}")
        return self.gpu(index)

    def wait_reason(self, name: str, text: str, limit_s: float = 20.0) -> str:
        """Until the server's lifecycle gives this as its reason: reasons alone are no events."""

        def reason() -> str:
            return str(self.show(name)["lifecycle"]["reason"])

        until(lambda: text in reason(), limit_s, f"{name} is in its state because of {text!r}")
        return reason()


class MemoryHolder:
    """A process of somebody else that holds memory. Use as a context manager."""

    def __init__(self, host: GpuHost, device: int, size: int, **environment: str) -> None:
        own = {**os.environ, **environment, "MEMORY_HOLDER_OF": str(host.root)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", "input()", "train.py"], stdin=subprocess.PIPE, env=own, stdout=subprocess.DEVNULL
        )
        host.nvml.allocate(self._process.pid, device, size)
        self.pid = self._process.pid

    def __enter__(self) -> MemoryHolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def ended_by(self, limit_s: float = 20.0) -> int:
        """The negated signal that ended it."""
        return self._process.wait(limit_s)


def devices_of(nvml: FakeNvml, pids: set[int]) -> set[int]:
    """On which devices these processes hold memory."""
    held = set()
    for path in Path(nvml.allocations).iterdir():
        if path.name.isdigit() and int(path.name) in pids:
            held.add(int(path.read_text().partition('"device": ')[2].partition(",")[0]))
    return held
