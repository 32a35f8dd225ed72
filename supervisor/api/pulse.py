"""What the daemon knows about its own health and its books, as metrics, probes and the page read it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from supervisor.core.tally import Account
from supervisor.core.traffic import HostTraffic


class Disk(msgspec.Struct, frozen=True):
    """A file system that we write to. `use` is log or state."""

    use: str
    free_bytes: int
    total_bytes: int


class Stored(msgspec.Struct, frozen=True):
    """What was found of a server on disk: logs of its attempts, evidence bundles, the engine's version."""

    log_bytes: int = 0
    evidence_bytes: int = 0
    evidence_bundles: int = 0
    engine_version: str = ""


class Pulse(msgspec.Struct, frozen=True):
    """Facts about the daemon at one moment; what was measured was measured by a task, not by who asks."""

    overdue_s: float = 0.0  # how late the latest decision loop is
    lag_s: float = 0.0  # how late the event loop woke us lately, at worst
    config_loaded_wall: float = 0.0
    config_ok: bool = True
    watchdog_wall: float | None = None  # when systemd's watchdog was last fed; None when nobody watches
    disks: tuple[Disk, ...] = ()
    stored: Mapping[str, Stored] = {}
    accounts: Mapping[str, Account] = {}
    xids: Mapping[str, int] = {}
    host: HostTraffic = HostTraffic()
    state_problem: str = ""  # why not all that the next daemon must know is on disk
    processes: Mapping[str, int] = {}  # of servers that have any
    log_lag_bytes: Mapping[str, int] = {}  # of logs that are being read
    hanging: int = 0  # calls that were given up seconds ago and have not come back: each of them is a thread
    unanswered: str = ""  # the same in words, with the oldest
    journal_lost: int = 0  # rows that came to no disk since the daemon began
    journal_problem: str = ""  # why the journal cannot be written
