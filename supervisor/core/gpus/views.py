"""The facts about all GPUs at one moment, as every reader gets them."""

from __future__ import annotations

import msgspec

from supervisor.events import Holder


class GpuView(msgspec.Struct, frozen=True):
    """One device for people. state: free · leased · in-use · quarantined · lost · missing · unknown.

    in-use: held by somebody without a lease. Times are monotonic unless they say wall.
    """

    index: int
    uuid: str
    name: str
    state: str
    reason: str = ""
    server: str = ""
    total: int | None = None
    used: int | None = None
    reserved: int | None = None
    baseline: int | None = None
    holders: tuple[Holder, ...] = ()
    last_xid: int | None = None
    last_xid_text: str = ""
    last_xid_at: float | None = None
    quarantined_since_wall_s: float | None = None
    quarantine: str = ""  # its kind, of a small set
    temperature_c: int | None = None
    power_w: float | None = None
    clock_limits: tuple[str, ...] = ()
    ecc_uncorrectable: int | None = None
    recovery: str | None = None
    problems: tuple[str, ...] = ()


class GpusView(msgspec.Struct, frozen=True):
    """All devices, and how well they can be seen: sight is seeing, blind or absent."""

    sight: str
    since: float
    reason: str
    driver: str = ""
    pids_trusted: bool = True
    at: float | None = None
    gpus: tuple[GpuView, ...] = ()
