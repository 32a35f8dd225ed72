"""Samples of the host's GPUs. What the hardware says of itself (temperature, power) is other exporters' affair."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.api.control import Clock
from supervisor.core.gpus.views import GpusView, GpuView
from supervisor.metrics import families as f
from supervisor.metrics.sheet import Sheet

STATES = ("free", "leased", "in-use", "quarantined", "lost", "missing", "unknown")
SIGHTS = ("seeing", "blind", "absent")
FOREIGN, UNATTRIBUTED, DRIVER, SERVER = "foreign", "unattributed", "driver", "server"


def write(sheet: Sheet, view: GpusView, xids: Mapping[str, int], clock: Clock) -> None:
    """All devices, and how well they are seen."""
    sheet.one_of(f.GPU_FEED, SIGHTS, view.sight)
    sheet.add(f.GPU_FEED_SINCE, clock.wall_of(view.since))
    if view.at is not None:
        sheet.add(f.GPU_FEED_TIME, clock.wall_of(view.at))
    for gpu in view.gpus:
        _device(sheet, gpu, xids, clock)


def _device(sheet: Sheet, gpu: GpuView, xids: Mapping[str, int], clock: Clock) -> None:
    uuid = gpu.uuid or f"index-{gpu.index}"
    sheet.add(f.GPU, 1, uuid, str(gpu.index), gpu.name, gpu.server)
    sheet.one_of(f.GPU_STATE, STATES, gpu.state, uuid)
    sheet.add(f.GPU_TOTAL, gpu.total, uuid)
    sheet.add(f.GPU_QUARANTINED, int(gpu.state == "quarantined"), uuid, gpu.quarantine)
    sheet.add(f.GPU_FOREIGN, sum(holder.kind == FOREIGN and holder.pid > 0 for holder in gpu.holders), uuid)
    sheet.add(f.GPU_XIDS, xids.get(gpu.uuid, 0), uuid)
    if gpu.last_xid is not None and gpu.last_xid_at is not None:
        sheet.add(f.GPU_LAST_XID, clock.wall_of(gpu.last_xid_at), uuid, str(gpu.last_xid))
    for (owner, server), held in memory_by_owner(gpu).items():
        sheet.add(f.GPU_USED, held, uuid, owner, server)


def memory_by_owner(gpu: GpuView) -> dict[tuple[str, str], int]:
    """Bytes by (owner, server); they add up to what is used. The driver's share is what nobody else has."""
    held = {(FOREIGN, ""): 0, (UNATTRIBUTED, ""): 0, (DRIVER, ""): 0}
    if gpu.used is None:
        return {}
    for holder in gpu.holders:
        key = (holder.kind, "") if holder.kind in (FOREIGN, UNATTRIBUTED) else (SERVER, holder.server or gpu.server)
        held[key] = held.get(key, 0) + holder.bytes
    held[DRIVER, ""] = max(0, gpu.used - sum(held.values()))
    return held
