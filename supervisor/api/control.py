"""What the API needs of the daemon, as a protocol that the daemon and the tests' fake both fulfil."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec

from supervisor.api.pulse import Pulse
from supervisor.config import Config, Differences
from supervisor.core.fleet.view import FleetView
from supervisor.core.gpus.views import GpusView
from supervisor.core.rolling import Roll, RollKind
from supervisor.events import (
    PauseRequested,
    RestartRequested,
    ResumeRequested,
    SignalRequested,
    StartRequested,
    StopRequested,
)
from supervisor.snapshot import ServerSnapshot

Request: TypeAlias = (
    StartRequested | StopRequested | RestartRequested | SignalRequested | PauseRequested | ResumeRequested
)


class Clock(msgspec.Struct, frozen=True):
    """One moment on both clocks: CLOCK_MONOTONIC for arithmetic, seconds of the epoch for people."""

    monotonic: float
    wall: float

    def wall_of(self, monotonic: float) -> float:
        """The epoch seconds of another moment of the monotonic clock."""
        return self.wall + (monotonic - self.monotonic)


class EventRecord(msgspec.Struct, frozen=True):
    """One row of the journal as people follow it: a facet of a server changed, or somebody asked for something."""

    id: int
    wall: float
    server: str
    facet: str
    before: str = ""
    after: str = ""
    reason: str = ""
    attempt: int = 0


class RouterFacts(msgspec.Struct, frozen=True):
    """One router: whether it can be asked (null: not asked yet), what it refuses, to how many servers it hands out."""

    name: str
    kind: str
    reachable: bool | None
    problem: str = ""
    servers: int = 0


class DaemonInfo(msgspec.Struct, frozen=True):
    """Facts about the daemon itself. `rolling` is what rolls or has rolled last, in a line."""

    version: str
    pid: int
    started_wall: float
    config_path: str
    state_dir: str
    log_dir: str
    log_path: str = ""
    upgrades: int = 0  # in the life of this process
    upgrade_problem: str = ""  # why the last one has left the old code in place
    state_problem: str = ""  # why not all that the next daemon must know is on disk
    routers: tuple[RouterFacts, ...] = ()
    rolling: str = ""


class Upgrading(msgspec.Struct, frozen=True):
    """An upgrade that has begun: the version that runs, and the one that will.

    `showInfo` shows more `upgrades` than these when it is over, well or not.
    """

    before: str
    after: str
    upgrades: int


class Applied(msgspec.Struct, frozen=True):
    """What became of one server's change: added, removed, restarted, changed (no restart), skipped or failed.

    Or of one router's, which knows no restart: `problem` is then what the router says to it.
    """

    name: str
    kind: str
    problem: str = ""


class ChangeRefusedError(Exception):
    """The configuration cannot be changed like that; the text says why."""


class UpgradeRefusedError(Exception):
    """The code cannot be replaced now; the text says why. Nothing has changed."""


class Control(Protocol):
    """The daemon as the API sees it. Reading never waits for a server; nothing here is called from another thread."""

    def snapshots(self) -> Sequence[ServerSnapshot]:
        """All servers in the order of the configuration."""
        ...

    def snapshot(self, name: str) -> ServerSnapshot | None:
        """One server, None when there is no such name."""
        ...

    def gpus(self) -> GpusView:
        """All devices of the host."""
        ...

    def release_gpu(self, device: int) -> bool:
        """Put a quarantined device back into use; False when it was not quarantined."""
        ...

    def clock(self) -> Clock:
        """Now."""
        ...

    async def request(self, name: str, event: Request) -> None:
        """Deliver the event; returns when the server has handled it, so that the next snapshot shows its effect.

        Raises KeyError when the server has gone meanwhile.
        """
        ...

    def change(self) -> int:
        """A counter that grows with every change of any snapshot and with every new event record."""
        ...

    async def changed(self, after: int) -> int:
        """Wait until `change()` is above `after`; returns it. Only cancellation ends the wait otherwise."""
        ...

    async def events(self, since: int | None, server: str | None, limit: int) -> Sequence[EventRecord]:
        """At most `limit` records in order of id: those above `since`, or the last ones when it is None."""
        ...

    def config(self) -> Config:
        """The configuration that is in force."""
        ...

    def available(self) -> Config:
        """The configuration file as it was last read."""
        ...

    async def reread(self) -> Differences:
        """Read the file again and compare. Raises ConfigError, or ChangeRefusedError when there is no file."""
        ...

    async def update(self, names: Sequence[str], by: str, *, free_only: bool) -> Sequence[Applied]:
        """Read the file again and bring it into force for these servers (none: all). Raises as `reread`."""
        ...

    async def update_routers(self, by: str, *, free_only: bool) -> Sequence[Applied]:
        """Read the file again and bring its routers into force. Raises as `reread`."""
        ...

    def restarts(self, found: Differences) -> Sequence[tuple[str, ...]]:
        """The restarts that these changes take now: each with all whom it restarts, first one that has changed."""
        ...

    async def add_server(self, name: str, by: str) -> None:
        """Add a server of the file as it was last read. Raises ChangeRefusedError."""
        ...

    async def remove_server(self, name: str, by: str) -> None:
        """Take out a server that is at rest. Raises ChangeRefusedError; KeyError when there is no such server."""
        ...

    def fleet(self) -> FleetView:
        """Who starts, who waits for a start, and when all will be ready."""
        ...

    def rolling(self) -> Roll | None:
        """The rolling restart or update under way, else the last one."""
        ...

    async def begin_rolling(
        self, kind: RollKind, names: Sequence[str], by: str, grace_s: float, reason: str
    ) -> tuple[Roll, str]:
        """Restart or update these one after another. Raises ChangeRefusedError.

        Returns when the next daemon would know of it, or with the reason why it would not, which the disk bounds.
        """
        ...

    async def cancel_rolling(self, by: str) -> str | None:
        """After the server under way nobody follows; None when nothing is under way, else as `begin_rolling`."""
        ...

    async def last_start_s(self, name: str) -> float | None:
        """How long the server's last good start took, None when none is remembered."""
        ...

    def audit(self, server: str, command: str, by: str) -> None:
        """Note who asked for what; "" is the daemon itself."""
        ...

    def answered(self, operation: str, role: str, status: int) -> None:
        """Count a request that was answered, or refused."""
        ...

    def daemon_info(self) -> DaemonInfo:
        """Facts about the daemon."""
        ...

    def pulse(self) -> Pulse:
        """The daemon's own health and books."""
        ...

    async def shutdown(self, by: str) -> None:
        """Ask the daemon to stop its servers and end; returns at once."""
        ...

    async def upgrade(self, by: str) -> Upgrading:
        """Try the installed code, and have it replace this one in place soon. Raises UpgradeRefusedError."""
        ...
