"""Operations on the host's GPUs: who holds which, what is wrong with them, put one back into use."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from starlette.responses import Response

from supervisor.api.access import Role
from supervisor.api.control import Clock
from supervisor.api.operation import Call, Operation, RefusedError, answer, excerpt
from supervisor.api.public import public_gpus
from supervisor.api.wire import Done, iso
from supervisor.api.wire.moments import ago, seconds
from supervisor.core.gpus.views import GpusView, GpuView
from supervisor.events import Holder


class GpuHolder(msgspec.Struct, frozen=True):
    """Somebody who holds memory: kind is server (one of ours), foreign (a process that is not) or unattributed."""

    kind: str
    bytes: int
    pid: int
    user: str
    command: str
    server: str


class GpuMemory(msgspec.Struct, frozen=True):
    """Bytes. `used` is the baseline, the holders' by their kind, and the overhead of their contexts."""

    total: int | None
    used: int | None
    reserved: int | None
    baseline: int | None
    server: int
    foreign: int
    unattributed: int
    overhead: int


class LastXid(msgspec.Struct, frozen=True):
    """The newest Xid that the driver has reported on the device."""

    xid: int
    text: str
    at: str
    seconds: float


class Gpu(msgspec.Struct, frozen=True):
    """One device. `state` is free, leased, in-use (held without a lease), quarantined, lost, missing or unknown."""

    index: int
    uuid: str
    name: str
    state: str
    reason: str
    server: str
    memory: GpuMemory
    holders: tuple[GpuHolder, ...]
    last_xid: LastXid | None
    quarantined_since: str | None
    temperature_c: int | None
    power_w: float | None
    clock_limits: tuple[str, ...]
    ecc_uncorrectable: int | None
    recovery: str | None
    problems: tuple[str, ...]


class Gpus(msgspec.Struct, frozen=True):
    """All devices as of `looked_s` ago. `sight` is seeing, blind (the driver cannot be asked) or absent (no GPU)."""

    at: str
    sight: str
    since: str
    seconds: float
    reason: str
    driver: str
    pids_trusted: bool
    looked_s: float | None
    gpus: tuple[Gpu, ...]


async def list_gpus(call: Call) -> Response:
    view = call.control.gpus()
    return answer(describe(view if call.local else public_gpus(view), call.control.clock()))


async def release(call: Call) -> Response:
    text = str(call.request.path_params["index"])
    known = {gpu.index for gpu in call.control.gpus().gpus}
    index = int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else -1
    if index not in known:
        raise RefusedError(404, f"no such GPU: {excerpt(text)}")
    if not call.control.release_gpu(index):
        raise RefusedError(409, f"cannot release GPU {index}: it is not quarantined")
    return answer(Done())


def describe(view: GpusView, clock: Clock) -> Gpus:
    """The view for readers outside."""
    return Gpus(
        at=iso(clock.wall),
        sight=view.sight,
        since=iso(clock.wall_of(view.since)),
        seconds=seconds(clock.monotonic - view.since),
        reason=view.reason,
        driver=view.driver,
        pids_trusted=view.pids_trusted,
        looked_s=ago(view.at, clock),
        gpus=tuple(_gpu(gpu, clock) for gpu in view.gpus),
    )


def _gpu(view: GpuView, clock: Clock) -> Gpu:
    since = view.quarantined_since_wall_s
    return Gpu(
        index=view.index,
        uuid=view.uuid,
        name=view.name,
        state=view.state,
        reason=view.reason,
        server=view.server,
        memory=_memory(view),
        holders=tuple(_holder(holder) for holder in view.holders),
        last_xid=_last_xid(view, clock),
        quarantined_since=None if since is None else iso(since),
        temperature_c=view.temperature_c,
        power_w=view.power_w,
        clock_limits=view.clock_limits,
        ecc_uncorrectable=view.ecc_uncorrectable,
        recovery=view.recovery,
        problems=view.problems,
    )


def _memory(view: GpuView) -> GpuMemory:
    server, foreign, nobody = (_held(view.holders, kind) for kind in ("server", "foreign", "unattributed"))
    rest = (view.used or 0) - (view.baseline or 0) - server - foreign - nobody
    return GpuMemory(
        view.total, view.used, view.reserved, view.baseline, server, foreign, nobody, overhead=max(0, rest)
    )


def _held(holders: Iterable[Holder], kind: str) -> int:
    return sum(holder.bytes for holder in holders if holder.kind == kind)


def _holder(holder: Holder) -> GpuHolder:
    return GpuHolder(holder.kind, holder.bytes, holder.pid, holder.user, holder.command, holder.server)


def _last_xid(view: GpuView, clock: Clock) -> LastXid | None:
    if view.last_xid is None or view.last_xid_at is None:
        return None
    at = view.last_xid_at
    return LastXid(view.last_xid, view.last_xid_text, iso(clock.wall_of(at)), seconds(clock.monotonic - at))


OPERATIONS = (
    Operation("GET", "/v1/gpus", "listGpus", "All GPUs, who holds them, what is wrong", list_gpus, Gpus, on_tcp=True),
    Operation(
        "POST",
        "/v1/gpus/{index}/release",
        "releaseGpu",
        "Put a quarantined GPU back into use",
        release,
        Done,
        Role.ADMIN,
        failures=(409,),
    ),
)
