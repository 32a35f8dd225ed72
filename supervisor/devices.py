"""GPUs as the driver describes them: what a look at them says, and what an Xid means.

Every field that a driver or a GPU does not offer is None: unsupported is no error, and never a reason to act.
Times are seconds of CLOCK_MONOTONIC, which the reading child shares with the daemon.
"""

from __future__ import annotations

import enum
import functools
import importlib.resources
from typing import TypeAlias

import msgspec


class GpuMemory(msgspec.Struct, frozen=True):
    """Bytes. NVML's second version keeps the driver's own share (`reserved`) apart; the first counts it as used."""

    total: int
    used: int
    free: int
    reserved: int | None = None


class GpuProcess(msgspec.Struct, frozen=True):
    """A process that the driver lists. It stays listed, with all its memory, for a moment after it has ended."""

    pid: int
    bytes: int | None = None
    alive: bool = True  # it exists in our /proc and is no zombie


class RemappedRows(msgspec.Struct, frozen=True):
    """Rows of memory that the GPU has to replace: `pending` waits for a reset, `failure` cannot be mended."""

    pending: bool = False
    failure: bool = False


class Gpu(msgspec.Struct, frozen=True):
    """One device at one moment. `lost` says why it can no longer be reached, "" while it can."""

    index: int
    uuid: str = ""
    name: str = ""
    pci: str = ""
    lost: str = ""
    memory: GpuMemory | None = None
    processes: tuple[GpuProcess, ...] | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    clock_limits: tuple[str, ...] | None = None  # why the clocks are lower than they could be
    ecc_volatile: int | None = None  # uncorrectable errors since the driver was loaded
    ecc_aggregate: int | None = None  # uncorrectable errors of the GPU's whole life
    rows: RemappedRows | None = None
    recovery: str | None = None  # what the driver wants done: none, gpu-reset, node-reboot, ...
    problems: tuple[str, ...] = ()  # fields that failed otherwise than by being unsupported


class Look(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """Base of everything that the feed reports."""


class GpuSample(Look, frozen=True):
    """All devices, read between `at` and `at + took_s`."""

    at: float
    took_s: float = 0.0
    driver: str = ""
    own_pid_namespace: bool = False  # we are in a container: the driver's pids need not be ours
    devices: tuple[Gpu, ...] = ()


class XidSeen(Look, frozen=True):
    """The driver reported an Xid on a device; device -1 when it could not be told which."""

    at: float
    device: int
    xid: int


class GpuBlind(Look, frozen=True):
    """There are GPUs (or may be), but the driver cannot be asked at present. Never means healthy, never failed."""

    at: float
    reason: str


class GpuAbsent(Look, frozen=True):
    """This machine has no NVML or no GPU: everything else works."""

    at: float
    reason: str


GpuReport: TypeAlias = GpuSample | XidSeen | GpuBlind | GpuAbsent


class ProcessOwner(msgspec.Struct, frozen=True):
    """Who a living process is. `server` names the server whose present or earlier tree it belongs to, "" if none."""

    pid: int
    user: str = ""
    uid: int | None = None
    command: str = ""
    server: str = ""
    start_ticks: int = 0


class QuarantineRecord(msgspec.Struct, frozen=True):
    """A device that no server may start on until somebody releases it. Identified by UUID: indices can move."""

    device: int
    uuid: str
    kind: str
    reason: str
    since_wall_s: float


class DeviceRecord(msgspec.Struct, frozen=True):
    """What must survive the daemon about one device."""

    device: int
    uuid: str
    baseline: int | None = None
    ecc_uncorrectable: int | None = None
    quarantine: QuarantineRecord | None = None
    acknowledged: tuple[str, ...] = ()


def pci_address(text: str) -> tuple[int, ...]:
    """Domain, bus and device of "0000:18:00" (the kernel's log) or "00000000:18:00.0" (NVML); () when it is neither."""
    parts = text.partition(".")[0].split(":")
    try:
        return tuple(int(part, 16) for part in parts) if len(parts) == 3 else ()
    except ValueError:
        return ()


class XidFault(enum.StrEnum):
    """Whose fault an Xid is as a rule."""

    PROGRAM = "program"
    DEVICE = "device"
    DRIVER = "driver"
    FOLLOW_UP = "follow-up"  # tells of the consequences of another one


class XidRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the Xid table. With `unless_recovery_none` the driver's own "nothing to do" outweighs the row."""

    code: int
    name: str
    fault: XidFault
    quarantine: bool
    meaning: str
    action: str
    unless_recovery_none: bool = False


class XidTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows of `profiles/gpu/xid.toml`."""

    xid: tuple[XidRule, ...]

    def rule(self, code: int) -> XidRule | None:
        """The row of an Xid, None for one that the table does not know."""
        return next((rule for rule in self.xid if rule.code == code), None)


@functools.cache
def xid_table() -> XidTable:
    """The table that comes with the package."""
    path = importlib.resources.files("supervisor") / "profiles" / "gpu" / "xid.toml"
    return msgspec.toml.decode(path.read_bytes(), type=XidTable)
