"""Keeps the book of this machine's GPUs: who has them, who holds their memory, which are out of use.

It is told everything (`observe`, `lease`, `blame`) and asks nobody. While the feed is blind or absent the answers are
"unknown", which holds up no start.
"""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.config import GpuPlan
from supervisor.core.gpus.device import Device, Rules
from supervisor.core.gpus.leases import Lease, LeaseRefused, Leases, Standing
from supervisor.core.gpus.quarantine import OPERATOR, UNATTRIBUTED, Complaint, xid_complaint, xid_text
from supervisor.core.gpus.reclaim import Claim, Culprit, Finding, Look, combine, judge
from supervisor.core.gpus.views import GpusView, GpuView
from supervisor.devices import (
    DeviceRecord,
    GpuAbsent,
    GpuBlind,
    GpuReport,
    GpuSample,
    ProcessOwner,
    QuarantineRecord,
    XidFault,
    XidSeen,
    XidTable,
    pci_address,
    xid_table,
)
from supervisor.units import format_bytes

__all__ = ["Claim", "Culprit", "DeviceBook", "Finding", "Lease", "LeaseRefused", "Rules"]


HARDWARE_FAULT = "gpu-hardware-fault"  # of the classes of causes
_NOBODYS = "held by nobody"
SAME_XID_S = 2.0  # the driver's event set and the kernel's log tell of one Xid within this time


class DeviceBook:
    """All devices of the machine. One task writes it."""

    def __init__(
        self, rules: Rules | None = None, table: XidTable | None = None, wall_offset_s: float = 0.0, now: float = 0.0
    ) -> None:
        self._rules = rules or Rules()
        self._table = table or xid_table()
        self._wall_offset_s = wall_offset_s
        self._devices: dict[int, Device] = {}
        self._missing: list[Device] = []  # known once, not found any more
        self._leases = Leases()
        self._owners: dict[int, ProcessOwner] = {}
        self._sample: GpuSample | None = None
        self._pid_seen = False
        self._unseen = True  # no report yet, not even a blind one
        self._sight, self._since, self._reason = "blind", now, "not looked yet"

    # --- what is observed ---

    def observe(self, report: GpuReport, owners: Iterable[ProcessOwner], now: float) -> tuple[QuarantineRecord, ...]:
        """Takes in one report of the feed, with whom the living listed processes belong to. New quarantines return."""
        match report:
            case GpuSample():
                self._see("seeing", "", now)
                self._owners = {owner.pid: owner for owner in owners}
                return self._observe_sample(report)
            case XidSeen():
                return self._observe_xid(report, now)
            case GpuBlind(reason=reason):
                self._see("blind", reason, now)
            case GpuAbsent(reason=reason):
                self._see("absent", reason, now)
        return ()

    def is_news(self, seen: XidSeen) -> bool:
        """Whether this Xid has not been told of a moment ago by the other of its two sources."""
        known = self._devices.get(seen.device)
        told = known is not None and known.last_xid == seen.xid
        return not (known and told and abs(seen.at - (known.last_xid_at or 0.0)) < SAME_XID_S)

    @property
    def pids_trusted(self) -> bool:
        """Whether the driver's pids are ours: inside a container only once one of them was seen alive."""
        return self._sample is None or not self._sample.own_pid_namespace or self._pid_seen

    @property
    def sight(self) -> str:
        """seeing, blind or absent."""
        return self._sight

    # --- leases ---

    def lease(self, server: str, plan: GpuPlan) -> Lease | LeaseRefused:
        """Gives the server its devices, the same as before where that is possible; none for an empty plan."""
        standings = tuple(self._standing(self._devices[index]) for index in sorted(self._devices))
        return self._leases.give(server, plan, standings, self._blindness())

    def adopt(self, lease: Lease) -> None:
        """Takes over a lease that an earlier daemon gave, since its server is still running."""
        self._leases.adopt(lease)

    def release_lease(self, server: str) -> None:
        """The server is gone and its memory is back."""
        self._leases.end(server)

    def leased(self, server: str) -> tuple[int, ...]:
        """The devices that the server has."""
        return self._leases.of(server)

    def device_at(self, pci: str) -> int:
        """The device of a PCI address as the kernel's log or NVML writes it; -1 when there is none."""
        wanted = pci_address(pci)
        addresses = {pci_address(device.gpu.pci): index for index, device in self._devices.items() if device.gpu}
        return addresses.get(wanted, -1) if wanted else -1

    # --- before a start and after a stop ---

    def check(self, claim: Claim, now: float) -> tuple[Finding, tuple[QuarantineRecord, ...]]:
        """Whether the claim's devices have their memory back. Quarantines those whose memory nobody gives back."""
        finding = combine(tuple(self._check(claim, index, now) for index in claim.devices))
        records = [self._give_up(index, now, claim.limit_s) for index in finding.unaccounted]
        return finding, tuple(record for record in records if record is not None)

    # --- quarantine ---

    def blame(self, device: int, cause: str, now: float) -> QuarantineRecord | None:
        """A server's failure points at this one device. Enough of them put it out of use."""
        return self._device(device).blame(cause, now)

    def suspects(self, server: str, cause: str, since: float) -> tuple[int, ...]:
        """Devices to be blamed for a failure: those with an Xid of their own fault since, else the only one leased.

        Of several none of which has said anything, none is blamed: a guess would put healthy ones out of use.
        """
        leased = self._leases.of(server)
        spoken = tuple(index for index in leased if self._at_fault(index, since))
        if spoken or cause != HARDWARE_FAULT:
            return spoken
        return leased if len(leased) == 1 else ()

    def quarantine(self, device: int, reason: str, now: float) -> QuarantineRecord | None:
        """An operator puts a device out of use."""
        return self._device(device).put_out(Complaint(OPERATOR, reason), now)

    def release(self, device: int) -> bool:
        """An operator puts it back into use; False when it was not quarantined."""
        known = self._devices.get(device) or next((lost for lost in self._missing if lost.index == device), None)
        return known.release() if known else False

    def records(self) -> tuple[DeviceRecord, ...]:
        """What must survive the daemon."""
        return tuple(device.record() for device in (*self._devices.values(), *self._missing))

    def restore(self, records: Iterable[DeviceRecord]) -> None:
        """Takes over what an earlier daemon has stored, before anything is observed."""
        for record in records:
            device = self._new(record.device, record.uuid)
            device.restore(record)
            self._devices[record.device] = device

    # --- views ---

    def view(self) -> GpusView:
        """For `sglctl gpus`, metrics and the page."""
        devices = sorted(self._devices.values(), key=lambda device: device.index)
        views = [self._view(device) for device in devices] + [self._view(device, "missing") for device in self._missing]
        driver, at = (self._sample.driver, self._sample.at) if self._sample else ("", None)
        return GpusView(self._sight, self._since, self._reason, driver, self.pids_trusted, at, tuple(views))

    # --- inside ---

    def _see(self, sight: str, reason: str, now: float) -> None:
        self._unseen = False
        if sight != self._sight:
            self._since = now
        self._sight, self._reason = sight, reason

    def _observe_sample(self, sample: GpuSample) -> tuple[QuarantineRecord, ...]:
        self._sample = sample
        processes = [process for gpu in sample.devices for process in gpu.processes or ()]
        self._pid_seen = self._pid_seen or any(process.alive for process in processes)
        self._recognise(sample)
        records = []
        for gpu in sample.devices:
            lessee = self._leases.holder(gpu.index)
            device = self._devices[gpu.index]
            records.append(device.observe(gpu, sample.at, self._owners, self.pids_trusted, lessee))
        return tuple(record for record in records if record is not None)

    def _recognise(self, sample: GpuSample) -> None:
        """Devices are known by UUID, since indices move when one is gone; a lost one may have no UUID to tell."""
        known = [*self._devices.values(), *self._missing]
        by_uuid = {device.uuid: device for device in known if device.uuid}
        before, self._devices = self._devices, {}
        for gpu in sample.devices:
            nameless = before.get(gpu.index)
            fallback = nameless if nameless and not (gpu.uuid and nameless.uuid) else None
            self._devices[gpu.index] = by_uuid.get(gpu.uuid) or fallback or self._new(gpu.index, gpu.uuid)
        here = {id(device) for device in self._devices.values()}
        self._missing = [device for device in known if id(device) not in here]

    def _observe_xid(self, seen: XidSeen, now: float) -> tuple[QuarantineRecord, ...]:
        if seen.device < 0 or not self.is_news(seen):
            return ()
        device = self._device(seen.device)
        device.last_xid, device.last_xid_at = seen.xid, seen.at
        complaint = xid_complaint(self._table, seen.xid, device.gpu.recovery if device.gpu else None)
        record = device.put_out(complaint, now) if complaint else None
        return (record,) if record else ()

    def _check(self, claim: Claim, index: int, now: float) -> Finding:
        device = self._devices.get(index)
        if device is not None and device.quarantine is not None and not claim.rest:
            reason = f"GPU {index} is quarantined: {device.quarantine.reason}"
            return Finding(False, reason, (index,), quarantined=(index,))
        if self._unseen and now - self._since < self._rules.first_look_s:
            return Finding(False, "waiting for the first look at the GPUs", (index,), waiting=True)
        if self._blindness():
            return Finding(None, self._blindness(), (index,))
        if device is None or device.gpu is None:
            there = len(self._devices)
            if claim.rest:
                return Finding(None, f"GPU {index} is not there any more", (index,))
            return Finding(False, f"there is no GPU {index}: the machine has {there}", (index,), refuse=True)
        look = Look(index, device.accounts, device.unattributed_since, self._owners, self.pids_trusted)
        return judge(claim, look, now)

    def _at_fault(self, index: int, since: float) -> bool:
        device = self._devices.get(index)
        if device is None or device.last_xid is None or (device.last_xid_at or 0.0) < since:
            return False
        rule = self._table.rule(device.last_xid)
        return rule is not None and rule.fault is XidFault.DEVICE

    def _give_up(self, index: int, now: float, limit_s: float) -> QuarantineRecord | None:
        """Inside a container memory without a name may be a neighbour's at work: there we wait without end."""
        device = self._devices[index]
        since = device.unattributed_since
        contained = self._sample is not None and self._sample.own_pid_namespace
        if contained or since is None or now - since < limit_s:
            return None
        if device.quarantine is not None and _NOBODYS in device.quarantine.reason:
            return None  # said already; that it lasts is no news
        held = format_bytes(device.accounts[0].excess)
        text = f"{held} {_NOBODYS} for {now - since:.0f} s: reset it, or sglctl gpu release {index}"
        return device.put_out(Complaint(UNATTRIBUTED, text), now)

    def _standing(self, device: Device) -> Standing:
        out = device.quarantine.reason if device.quarantine else ""
        return Standing(device.index, out, device.held)

    def _blindness(self) -> str:
        return "" if self._sight == "seeing" else f"the GPU feed is {self._sight}: {self._reason}"

    def _device(self, index: int) -> Device:
        return self._devices.setdefault(index, self._new(index, ""))

    def _new(self, index: int, uuid: str) -> Device:
        return Device(self._rules, index, uuid, self._wall_offset_s)

    def _view(self, device: Device, state: str = "") -> GpuView:
        gpu, record = device.gpu, device.quarantine
        memory = gpu.memory if gpu else None
        xid = device.last_xid
        return GpuView(
            index=device.index,
            uuid=device.uuid,
            name=gpu.name if gpu else "",
            state=state or self._state(device),
            reason=record.reason if record else (gpu.lost if gpu else ""),
            server=self._leases.holder(device.index),
            total=memory.total if memory else None,
            used=memory.used if memory else None,
            reserved=memory.reserved if memory else None,
            baseline=device.baseline,
            holders=device.accounts[0].holders if device.accounts else (),
            last_xid=xid,
            last_xid_text=xid_text(self._table.rule(xid), xid) if xid is not None else "",
            last_xid_at=device.last_xid_at,
            quarantined_since_wall_s=record.since_wall_s if record else None,
            quarantine=record.kind if record else "",
            temperature_c=gpu.temperature_c if gpu else None,
            power_w=gpu.power_w if gpu else None,
            clock_limits=gpu.clock_limits or () if gpu else (),
            ecc_uncorrectable=gpu.ecc_volatile if gpu else None,
            recovery=gpu.recovery if gpu else None,
            problems=gpu.problems if gpu else (),
        )

    def _state(self, device: Device) -> str:
        if device.gpu is not None and device.gpu.lost:
            return "lost"
        if device.quarantine is not None:
            return "quarantined"
        if self._leases.holder(device.index):
            return "leased"
        if self._sight != "seeing" or not device.accounts or device.accounts[0].used is None:
            return "unknown"
        return "in-use" if device.held else "free"
