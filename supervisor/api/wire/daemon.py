"""The JSON about the daemon itself and its configuration, and the answers that carry nothing else."""

from __future__ import annotations

import msgspec

from supervisor.api.control import Applied, Clock, DaemonInfo, RouterFacts
from supervisor.api.wire.fleet import Starts
from supervisor.api.wire.moments import iso, seconds
from supervisor.config import Differences, KeyChange

API_VERSION = "1.0"


class Info(msgspec.Struct, frozen=True):
    """Facts about the daemon."""

    version: str
    api_version: str
    pid: int
    started: str
    uptime_s: float
    config_path: str
    state_dir: str
    log_dir: str
    log_path: str
    role: str
    upgrades: int = 0
    upgrade_problem: str = ""
    state_problem: str = ""
    routers: tuple[RouterFacts, ...] = ()
    rolling: str = ""
    starts: Starts | None = None


class Configured(msgspec.Struct, frozen=True):
    """A server of the configuration in force or of the file; `in_use` says that it is in force."""

    name: str
    in_use: bool
    autostart: bool


class Reread(msgspec.Struct, frozen=True):
    """What the file has now beside what is in force. Nothing has been changed.

    `last_start_s`: how long the last good start of each server took that would have to be restarted. `restarts` are
    those that an update would make now: each with all whom it restarts, first one that has changed.
    """

    path: str
    servers: tuple[Configured, ...]
    differences: Differences
    last_start_s: dict[str, float]
    restarts: tuple[tuple[str, ...], ...] = ()


class Updated(msgspec.Struct, frozen=True):
    """What became of each server and router that the file has changed; `daemon` comes with the daemon's next start."""

    servers: tuple[Applied, ...]
    daemon: tuple[KeyChange, ...]
    routers: tuple[Applied, ...] = ()


class Done(msgspec.Struct, frozen=True):
    """It was done."""

    ok: bool = True


class Error(msgspec.Struct, frozen=True):
    """What could not be done, to what, and why."""

    error: str


def info(daemon: DaemonInfo, clock: Clock, role: str, starts: Starts | None) -> Info:
    """The daemon's facts for a reader of this role."""
    return Info(
        version=daemon.version,
        api_version=API_VERSION,
        pid=daemon.pid,
        started=iso(daemon.started_wall),
        uptime_s=seconds(clock.wall - daemon.started_wall),
        config_path=daemon.config_path,
        state_dir=daemon.state_dir,
        log_dir=daemon.log_dir,
        log_path=daemon.log_path,
        role=role,
        upgrades=daemon.upgrades,
        upgrade_problem=daemon.upgrade_problem,
        state_problem=daemon.state_problem,
        routers=daemon.routers,
        rolling=daemon.rolling,
        starts=starts,
    )
