"""Machines with GPUs that are not there: builds `nvml.c`, writes its state file, names the environment to use it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"
H200_TOTAL, H200_RESERVED = 150754820096, 644939776  # measured on the real device
GPU_IS_LOST, NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN_ERROR = 15, 3, 13, 999
UNINITIALIZED, DRIVER_NOT_LOADED, VERSION_MISMATCH = 1, 9, 18


def compiler() -> str | None:
    """The C compiler, None where there is none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(folder: Path) -> Path:
    """Compiles the library into `folder`, once."""
    library = folder / LIBRARY
    command = compiler()
    if command is None:
        raise RuntimeError("cannot build the stand-in for NVML: no C compiler")
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    if not library.exists():
        subprocess.run([command, *flags, "-o", library, SOURCE, "-lpthread"], check=True, timeout=60)
    return library


@dataclass
class FakeGpu:
    """What the state file says of one device. Public: change a value, then call `FakeNvml.write`."""

    uuid: str
    name: str = "NVIDIA H200"
    total: int = H200_TOTAL
    reserved: int = H200_RESERVED
    used: int = 0
    temperature: int = 37
    power: int = 77000
    clocks: int = 0
    ecc: tuple[int, int] = (0, 0)
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    recovery: int = 0
    processes: dict[int, int | None] = field(default_factory=dict)

    def lines(self, index: int) -> list[str]:
        """This device in the state file's words."""
        held = [f"process {index} {pid} {'-' if size is None else size}" for pid, size in self.processes.items()]
        return [
            f"device {index} {self.total} {self.reserved} {self.uuid} {self.name}",
            f"used {index} {self.used}",
            f"temperature {index} {self.temperature}",
            f"power {index} {self.power}",
            f"clocks {index} {self.clocks}",
            f"ecc {index} {self.ecc[0]} {self.ecc[1]}",
            f"rows {index} {' '.join(map(str, self.rows))}",
            f"recovery {index} {self.recovery}",
            *held,
        ]


class FakeNvml:
    """One machine: `gpus` and `rules` are written by `write`; servers that are played put files into `allocations`."""

    def __init__(self, folder: Path, library: Path, count: int = 1) -> None:
        self.state = folder / "nvml-state"
        self.allocations = folder / "nvml-allocations"
        self.allocations.mkdir(parents=True, exist_ok=True)
        self.library = library
        self.driver = "580.159.04"
        self.lag_s = 0.0
        self.rules: list[str] = []
        self.gpus: list[FakeGpu] = []
        self._xids: list[str] = []
        self.set_count(count)

    @property
    def environment(self) -> dict[str, str]:
        """Added to a daemon's or client's environment, this makes it see these GPUs."""
        return {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "FAKE_NVML_STATE": str(self.state),
            "FAKE_NVML_DIR": str(self.allocations),
        }

    def set_count(self, count: int) -> None:
        """A machine with that many idle GPUs."""
        self.gpus = [FakeGpu(uuid=f"GPU-{index:08x}-0000-0000-0000-000000000000") for index in range(count)]
        self.write()

    def write(self) -> None:
        """Puts the state in place at once and whole."""
        lines = [f"driver {self.driver}", f"lag {self.lag_s}", *self.rules, *self._xids]
        for index, gpu in enumerate(self.gpus):
            lines += gpu.lines(index)
        draft = self.state.with_suffix(".new")
        draft.write_text("\n".join(lines) + "\n")
        draft.replace(self.state)

    def xid(self, device: int, code: int) -> None:
        """The driver reports an Xid to everybody who waits for one."""
        self._xids.append(f"xid {device} {code}")
        self.write()

    def fail(self, function: str, code: int, device: int | None = None) -> None:
        """From now on the function returns that error, on one device or on all."""
        self._rule("error", function, code, device)

    def delay(self, function: str, milliseconds: int, device: int | None = None) -> None:
        """From now on the function takes that much longer."""
        self._rule("delay", function, milliseconds, device)

    def hang(self, function: str, device: int | None = None) -> None:
        """From now on the function never returns."""
        self._rule("hang", function, None, device)

    def mend(self) -> None:
        """No function fails, hangs or is slow any more."""
        self.rules.clear()
        self.write()

    def allocate(self, pid: int, device: int, size: int) -> None:
        """The process takes memory; it goes `lag_s` after its death."""
        draft = self.allocations / f"new-{pid}"
        draft.write_text(json.dumps({"device": device, "bytes": size}))
        draft.replace(self.allocations / str(pid))

    def _rule(self, kind: str, function: str, value: int | None, device: int | None) -> None:
        parts = [kind, function, value, device]
        self.rules.append(" ".join(str(part) for part in parts if part is not None))
        self.write()


def client_environment(nvml: FakeNvml) -> dict[str, str]:
    """This process's environment with the fake GPUs in it."""
    return {**os.environ, **nvml.environment}
