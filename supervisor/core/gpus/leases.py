"""Keeps the leases: which server has which devices."""

from __future__ import annotations

import msgspec

from supervisor.config import GpuPlan


class Lease(msgspec.Struct, frozen=True):
    """The devices that a server has, in order."""

    server: str
    devices: tuple[int, ...]

    @property
    def environment(self) -> dict[str, str]:
        """CUDA numbers devices by speed unless told to go by bus, as NVML does."""
        visible = ",".join(str(device) for device in self.devices)
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": visible}


class LeaseRefused(msgspec.Struct, frozen=True):
    """Why a server cannot have devices now; no restart budget is spent.

    Waiting helps (another server has them), or a release of those quarantined, or nothing (`refuse`).
    """

    server: str
    reason: str
    quarantined: tuple[int, ...] = ()
    refuse: bool = False


class Standing(msgspec.Struct, frozen=True):
    """What matters of a device for a lease: why it is out of use ("" when it is not), and whether memory is held."""

    index: int
    out: str = ""
    held: bool = False


class Leases:
    """No device is leased to two servers."""

    def __init__(self) -> None:
        self._holders: dict[int, str] = {}

    def give(self, server: str, plan: GpuPlan, standings: tuple[Standing, ...], blindness: str) -> Lease | LeaseRefused:
        """Leases what the plan names or counts. `blindness` says why the devices cannot be seen, "" when they can."""
        if plan.indices:
            chosen = self._named(server, plan.indices, standings, blindness)
        else:
            chosen = self._any(server, plan.count, standings, blindness)
        if isinstance(chosen, LeaseRefused):
            return chosen
        self.end(server)
        self._holders |= dict.fromkeys(chosen, server)
        return Lease(server, chosen)

    def adopt(self, lease: Lease) -> None:
        """Notes a lease that was given earlier."""
        self._holders |= dict.fromkeys(lease.devices, lease.server)

    def end(self, server: str) -> None:
        """Takes the server's devices back."""
        self._holders = {device: holder for device, holder in self._holders.items() if holder != server}

    def of(self, server: str) -> tuple[int, ...]:
        """The server's devices."""
        return tuple(device for device, holder in self._holders.items() if holder == server)

    def holder(self, device: int) -> str:
        """The server that has the device, "" if none."""
        return self._holders.get(device, "")

    def _named(
        self, server: str, wanted: tuple[int, ...], standings: tuple[Standing, ...], blindness: str
    ) -> tuple[int, ...] | LeaseRefused:
        known = {standing.index: standing for standing in standings}
        out = tuple(index for index in wanted if index in known and known[index].out)
        if out:
            reasons = "; ".join(f"GPU {index} is quarantined: {known[index].out}" for index in out)
            return LeaseRefused(server, reasons, out)
        taken = [index for index in wanted if self._is_taken(index, server)]
        if taken:
            return LeaseRefused(server, ", ".join(f"GPU {index} is leased to {self.holder(index)}" for index in taken))
        absent = [] if blindness else [index for index in wanted if index not in known]
        if absent:
            return LeaseRefused(server, f"there is no GPU {absent[0]}: the machine has {len(known)}", refuse=True)
        return wanted

    def _any(
        self, server: str, count: int, standings: tuple[Standing, ...], blindness: str
    ) -> tuple[int, ...] | LeaseRefused:
        if count and not standings:
            return LeaseRefused(server, f"cannot choose {count} GPUs: {blindness or 'there is none'}")
        free = [standing for standing in standings if not self._is_taken(standing.index, server)]
        healthy = [standing for standing in free if not standing.out]
        if len(healthy) < count:
            return self._too_few(server, count, standings, len(healthy))
        # The same as before, else one whose memory is free, else the lowest number.
        best = sorted(healthy, key=lambda one: (self.holder(one.index) != server, one.held, one.index))
        return tuple(sorted(standing.index for standing in best[:count]))

    def _too_few(self, server: str, count: int, standings: tuple[Standing, ...], healthy: int) -> LeaseRefused:
        out = tuple(standing.index for standing in standings if standing.out)
        taken = sum(self._is_taken(standing.index, server) for standing in standings)
        text = f"{count} GPUs wanted, {healthy} to be had: {len(out)} are quarantined, {taken} leased to others"
        if len(standings) - len(out) >= count:
            return LeaseRefused(server, text)
        return LeaseRefused(server, text, out, refuse=len(standings) < count)

    def _is_taken(self, device: int, server: str) -> bool:
        return self.holder(device) not in ("", server)
