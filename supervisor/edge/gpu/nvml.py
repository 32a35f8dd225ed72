"""Reads the devices from NVML, as values that JSON can carry."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from supervisor import procstat

EVENT_WAIT_MS = 5000  # of the thread that waits for Xids: it wakes at once when there is one
XID_EVENT = 0x8  # nvmlEventTypeXidCriticalError
INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, linux/proc_ns.h: the same on every kernel

CLOCK_LIMITS = {
    0x4: "power-cap",
    0x8: "hardware-slowdown",
    0x20: "software-thermal",
    0x40: "hardware-thermal",
    0x80: "power-brake",
}  # nvmlClocksEventReason*; idle and clocks that somebody has set are no limits
RECOVERY = (
    "none",
    "gpu-reset",
    "node-reboot",
    "drain-p2p",
    "drain-and-reset",
    "recover-imex-domain",
    "bus-reset",
    "system-reboot",
)  # NVML_GPU_RECOVERY_ACTION_*


class NoDevice(Exception):  # noqa: N818 - a fact, not an error
    """NVML works, and says that there is no GPU."""


class Reader:
    """NVML's devices as JSON-ready values."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        nvml.nvmlInit()
        self._driver = str(nvml.nvmlSystemGetDriverVersion())
        self._own_pid_namespace = in_own_pid_namespace()
        self._devices = [Device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        if not self._devices:
            raise NoDevice("NVML finds no GPU")

    def sample(self) -> dict[str, Any]:
        """A `GpuSample`."""
        at = time.monotonic()
        devices = [device.look() for device in self._devices]
        took_s = round(time.monotonic() - at, 6)
        return {
            "type": "GpuSample",
            "at": at,
            "took_s": took_s,
            "driver": self._driver,
            "own_pid_namespace": self._own_pid_namespace,
            "devices": devices,
        }

    def subscribe(self) -> Any:
        """The set of events to wait for; None on a driver that has none: samples must do."""
        try:
            events = self.nvml.nvmlEventSetCreate()
            for device in self._devices:
                device.register(events)
        except self.nvml.NVMLError:
            return None
        return events

    def xids(self, events: Any) -> Iterator[tuple[int, int]]:
        """Device and number of each Xid, for ever."""
        while True:
            with contextlib.suppress(self.nvml.NVMLError_Timeout):
                event = self.nvml.nvmlEventSetWait_v2(events, EVENT_WAIT_MS)
                if event.eventType == XID_EVENT:
                    yield self._index_of(event.device), int(event.eventData)

    def _index_of(self, handle: Any) -> int:
        # Compared as addresses: a lost GPU answers no question about itself any more.
        address = ctypes.cast(handle, ctypes.c_void_p).value
        return next((device.index for device in self._devices if device.address == address), -1)


class Device:
    """One GPU; what never changes is asked once."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        self.index = index
        self._problems: list[str] = []
        self._lost = ""
        self._handle: Any = None
        self._constant: dict[str, Any] = {"index": index}
        try:
            self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
            self._constant |= self._identity()
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired) as error:
            self._lost = str(error)

    @property
    def address(self) -> int | None:
        """NVML's handle as a number."""
        return ctypes.cast(self._handle, ctypes.c_void_p).value if self._handle else None

    def register(self, events: Any) -> None:
        """Adds this device's Xids to the set, where it has them."""
        with contextlib.suppress(self._nvml.NVMLError):
            if self._handle:
                self._nvml.nvmlDeviceRegisterEvents(self._handle, XID_EVENT, events)

    def look(self) -> dict[str, Any]:
        """A `Gpu`. Raises only what says that NVML as a whole is gone."""
        if self._handle is None:
            return {**self._constant, "lost": self._lost}
        self._problems = []
        try:
            facts = self._facts()
        except (self._nvml.NVMLError_GpuIsLost, self._nvml.NVMLError_ResetRequired) as error:
            return {**self._constant, "lost": str(error)}
        return {**self._constant, **facts, "problems": self._problems}

    def _identity(self) -> dict[str, Any]:
        nvml, handle = self._nvml, self._handle
        return {
            "uuid": self._ask("uuid", nvml.nvmlDeviceGetUUID, handle) or "",
            "name": self._ask("name", nvml.nvmlDeviceGetName, handle) or "",
            "pci": self._ask("pci", lambda: nvml.nvmlDeviceGetPciInfo(handle).busId) or "",
        }

    def _facts(self) -> dict[str, Any]:
        nvml, handle = self._nvml, self._handle
        uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        ecc = nvml.nvmlDeviceGetTotalEccErrors
        return {
            "memory": self._memory(),
            "processes": self._processes(),
            "temperature_c": self._ask("temperature", nvml.nvmlDeviceGetTemperature, handle, 0),
            "power_w": self._ask("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            "clock_limits": self._ask("clocks", self._clock_limits),
            "ecc_volatile": self._ask("ecc", ecc, handle, uncorrected, nvml.NVML_VOLATILE_ECC),
            "ecc_aggregate": self._ask("ecc", ecc, handle, uncorrected, nvml.NVML_AGGREGATE_ECC),
            "rows": self._ask("rows", self._rows),
            "recovery": self._ask("recovery", self._recovery),
        }

    def _ask(self, field: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None: an unsupported field is nothing to speak of, another failure is named."""
        nvml = self._nvml
        try:
            return function(*arguments)
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired, nvml.NVMLError_Uninitialized):
            raise
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
            return None
        except nvml.NVMLError as error:
            self._problems.append(f"{field}: {error}")
            return None

    def _memory(self) -> dict[str, int] | None:
        nvml, handle = self._nvml, self._handle
        second = self._ask("memory", nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
        if second is not None:
            return {name: getattr(second, name) for name in ("total", "used", "free", "reserved")}
        first = self._ask("memory", nvml.nvmlDeviceGetMemoryInfo, handle)
        return None if first is None else {name: getattr(first, name) for name in ("total", "used", "free")}

    def _processes(self) -> list[dict[str, Any]] | None:
        """Compute, MPS and graphics processes; one that is listed twice counts once, with its larger number."""
        nvml = self._nvml
        kinds = (
            (nvml.nvmlDeviceGetComputeRunningProcesses_v3, nvml.nvmlDeviceGetComputeRunningProcesses_v2),
            (nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, nvml.nvmlDeviceGetMPSComputeRunningProcesses_v2),
            (nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, nvml.nvmlDeviceGetGraphicsRunningProcesses_v2),
        )
        answers = [self._newest("processes", versions) for versions in kinds]
        if answers[0] is None:
            return None
        found: dict[int, int | None] = {}
        for process in (process for answer in answers for process in answer or ()):
            known, told = found.get(process.pid), process.usedGpuMemory
            found[process.pid] = told if known is None or (told is not None and told > known) else known
        return [{"pid": pid, "bytes": size, "alive": is_alive(pid)} for pid, size in found.items()]

    def _newest(self, field: str, versions: tuple[Callable[..., Any], ...]) -> Any:
        answers = (self._ask(field, version, self._handle) for version in versions)
        return next((answer for answer in answers if answer is not None), None)

    def _clock_limits(self) -> list[str]:
        reasons = self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        return [name for bit, name in CLOCK_LIMITS.items() if reasons & bit]

    def _rows(self) -> dict[str, Any]:
        *_, pending, failure = self._nvml.nvmlDeviceGetRemappedRows(self._handle)
        return {"pending": bool(pending), "failure": bool(failure)}

    def _recovery(self) -> str | None:
        field = self._nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        answer = self._nvml.nvmlDeviceGetFieldValues(self._handle, [field])[0]
        if answer.nvmlReturn != 0:  # this field alone is unsupported
            return None
        code = answer.value.uiVal
        return RECOVERY[code] if code < len(RECOVERY) else f"action-{code}"


def is_alive(pid: int) -> bool:
    """Whether our /proc knows the process and it has not ended; NVML's pids may be of another namespace, or 0."""
    process = procstat.read(pid)
    return process is not None and process.alive


def in_own_pid_namespace() -> bool:
    """Whether we are in a container, where the driver's pids may be another namespace's. Unknown counts as yes."""
    try:
        return os.readlink("/proc/self/ns/pid") != INITIAL_PID_NAMESPACE
    except OSError:
        return True
