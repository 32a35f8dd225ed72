"""Says who holds each byte of a device's memory."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from supervisor.devices import Gpu, GpuProcess, ProcessOwner
from supervisor.events import Holder

MIB = 1 << 20
# On H200s `used` exceeds the sum of the listed processes by a little for each, and one that only enumerates devices is
# not listed at all and takes a little as well.
OVERHEAD_PER_PROCESS = 16 * MIB

OWN, SERVER, FOREIGN, UNATTRIBUTED = "own", "server", "foreign", "unattributed"


class Account(msgspec.Struct, frozen=True):
    """used = baseline + the holders' bytes + overhead, as far as the driver's two answers agree.

    `used` is None when it could not be read. `ended`: processes that are gone and still listed with their memory.
    """

    device: int
    at: float
    used: int | None = None
    baseline: int = 0
    holders: tuple[Holder, ...] = ()
    overhead: int = 0
    ended: tuple[int, ...] = ()

    @property
    def excess(self) -> int:
        """Bytes above what the idle device holds."""
        return 0 if self.used is None else max(0, self.used - self.baseline)


def account(
    gpu: Gpu, at: float, baseline: int, owners: Mapping[int, ProcessOwner], pids_trusted: bool, lessee: str
) -> Account:
    """`owners` are the living processes that we know; `lessee` is the server that has the device, "" if none has.

    Without trustworthy pids memory alone counts: what is held is the lessee's, or nobody's we could name.
    """
    if gpu.memory is None:
        return Account(device=gpu.index, at=at)
    excess = max(0, gpu.memory.used - baseline)
    listed = tuple(gpu.processes or ()) if pids_trusted else ()
    holders = _sized(tuple(_holder(gpu.index, process, owners) for process in listed), listed, excess)
    rest = max(0, excess - sum(holder.bytes for holder in holders))
    overhead = min(rest, OVERHEAD_PER_PROCESS * len(listed))
    return Account(
        device=gpu.index,
        at=at,
        used=gpu.memory.used,
        baseline=baseline,
        holders=holders + _nobody(gpu.index, rest - overhead, lessee if not pids_trusted else ""),
        overhead=overhead,
        ended=tuple(process.pid for process in listed if not process.alive),
    )


def seen_by(server: str, holders: tuple[Holder, ...]) -> tuple[Holder, ...]:
    """The same holders from that server's point of view: what it left itself is its own."""
    return tuple(
        msgspec.structs.replace(holder, kind=OWN) if server and holder.server == server else holder
        for holder in holders
    )


def idle_bytes(gpu: Gpu) -> int | None:
    """What the device holds apart from the listed processes: a candidate for its baseline. None if unknown."""
    if gpu.memory is None or gpu.processes is None:
        return None
    sizes = [process.bytes for process in gpu.processes]
    known = [size for size in sizes if size is not None]
    return max(0, gpu.memory.used - sum(known)) if len(known) == len(sizes) else None


def _holder(device: int, process: GpuProcess, owners: Mapping[int, ProcessOwner]) -> Holder:
    owner, size = owners.get(process.pid), process.bytes or 0
    if not process.alive:
        server = owner.server if owner else ""
        return Holder(device, size, process.pid, "", "(ended, still listed)", UNATTRIBUTED, server)
    if owner is None:
        return Holder(device, size, process.pid, kind=FOREIGN)
    kind = SERVER if owner.server else FOREIGN
    return Holder(device, size, process.pid, owner.user, owner.command, kind, owner.server)


def _sized(holders: tuple[Holder, ...], listed: tuple[GpuProcess, ...], excess: int) -> tuple[Holder, ...]:
    """A single process whose size the driver does not tell holds what the others leave."""
    unknown = [position for position, process in enumerate(listed) if process.bytes is None]
    if len(unknown) != 1:
        return holders
    rest = max(0, excess - sum(holder.bytes for holder in holders))
    return tuple(
        msgspec.structs.replace(holder, bytes=rest) if position == unknown[0] else holder
        for position, holder in enumerate(holders)
    )


def _nobody(device: int, size: int, lessee: str) -> tuple[Holder, ...]:
    if size <= 0:
        return ()
    if lessee:
        return (Holder(device, size, command="(by lease)", kind=SERVER, server=lessee),)
    return (Holder(device, size),)
