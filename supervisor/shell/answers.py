"""Answers what the API asks of the daemon (`supervisor.api.control.Control`)."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec
import structlog

from supervisor import __version__
from supervisor.api.control import Applied, ChangeRefusedError, Clock, DaemonInfo, EventRecord, Request, Upgrading
from supervisor.api.files import in_thread
from supervisor.api.pulse import Pulse
from supervisor.config import Config, ConfigError, Differences, GroupConfig
from supervisor.core.fleet.view import FleetView
from supervisor.core.gpus.views import GpusView
from supervisor.core.rolling import Roll, RollKind, RollState, summary
from supervisor.events import StopRequested
from supervisor.shell import clock
from supervisor.shell.changes import Changes, costs
from supervisor.shell.devices import Devices
from supervisor.shell.ends import Ends
from supervisor.shell.eventlog import EventLog
from supervisor.shell.fleet import FleetKeeper
from supervisor.shell.history import HistoryStore
from supervisor.shell.hub import Hub
from supervisor.shell.pulse import PulseKeeper
from supervisor.shell.rolling import Rolling
from supervisor.shell.roster import Roster
from supervisor.shell.routing import Routing
from supervisor.shell.upgrade.books import Prospect, Upgrades
from supervisor.shell.views import Views
from supervisor.snapshot import ServerSnapshot

log = structlog.get_logger()


@dataclass(frozen=True)
class Parts:
    """What the daemon is made of. `ending` is set when it is to end, for good or for other code."""

    config: Config
    config_path: str
    started: Clock
    hub: Hub
    roster: Roster
    views: Views
    devices: Devices
    routing: Routing
    fleet: FleetKeeper
    ends: Ends
    changes: Changes
    rolling: Rolling
    events: EventLog
    history: HistoryStore
    pulse: PulseKeeper
    upgrades: Upgrades
    ending: anyio.Event
    ask_to_end: Callable[[str], None]


class Answers:
    """One for the daemon. `requests` counts what was asked, by operation, status and role."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.requests: Counter[str] = Counter()

    def snapshots(self) -> Sequence[ServerSnapshot]:
        """All servers in the order of the configuration."""
        return self._parts.views.all()

    def snapshot(self, name: str) -> ServerSnapshot | None:
        """One server."""
        return self._parts.views.one(name)

    def gpus(self) -> GpusView:
        """All devices."""
        return self._parts.devices.view()

    def release_gpu(self, device: int) -> bool:
        """Put a quarantined device back into use; False when it was not quarantined."""
        return self._parts.devices.release(device)

    def clock(self) -> Clock:
        """Now."""
        return clock.now()

    async def request(self, name: str, event: Request) -> None:
        """Deliver a request and wait until it has been handled."""
        if isinstance(event, StopRequested):
            self._parts.roster.stay_down(name)
        await self._parts.ends.request(name, event)

    def change(self) -> int:
        """Grows with every change."""
        return self._parts.hub.count

    async def changed(self, after: int) -> int:
        """Wait for a change."""
        return await self._parts.hub.changed(after)

    async def events(self, since: int | None, server: str | None, limit: int) -> Sequence[EventRecord]:
        """Changes as people follow them."""
        return self._parts.events.read(since, server, limit)

    def config(self) -> Config:
        """The configuration that is in force."""
        servers, routers = self._parts.roster.configs(), dict(self._parts.routing.configs)
        return msgspec.structs.replace(self._parts.config, servers=servers, groups=self._groups(), routers=routers)

    def _groups(self) -> dict[str, GroupConfig]:
        return self._parts.config.groups if self._parts.changes.groups is None else self._parts.changes.groups

    def available(self) -> Config:
        """The file as it was last read."""
        return self._parts.changes.available

    async def reread(self) -> Differences:
        """What the file would change now."""
        return await self._parts.changes.reread()

    async def update(self, names: Sequence[str], by: str, *, free_only: bool) -> Sequence[Applied]:
        """Bring the file into force."""
        return await self._parts.changes.apply(names, by, free_only=free_only)

    async def update_routers(self, by: str, *, free_only: bool) -> Sequence[Applied]:
        """Bring the routers of the file into force."""
        return await self._parts.changes.reroute(by, free_only=free_only)

    def restarts(self, found: Differences) -> Sequence[tuple[str, ...]]:
        """Whom bringing the file into force would restart."""
        return self._parts.changes.restarts(found)

    async def add_server(self, name: str, by: str) -> None:
        """Add a server of the file as it was last read."""
        await self._parts.changes.add(name, by)

    async def remove_server(self, name: str, by: str) -> None:
        """Take out a server that is at rest."""
        await self._parts.changes.remove(name, by)

    def fleet(self) -> FleetView:
        """Who starts, who waits for a start, and when all will be ready."""
        return self._parts.fleet.view()

    def rolling(self) -> Roll | None:
        """The rolling restart or update under way, else the last one."""
        return self._parts.rolling.last

    async def begin_rolling(
        self, kind: RollKind, names: Sequence[str], by: str, grace_s: float, reason: str
    ) -> tuple[Roll, str]:
        """Restart or update these one after another."""
        return await self._parts.rolling.begin(kind, names, by, grace_s, reason)

    async def cancel_rolling(self, by: str) -> str | None:
        """After the server under way nobody follows."""
        return await self._parts.rolling.cancel(by)

    async def last_start_s(self, name: str) -> float | None:
        """Seconds of the last good start; None as well when the disk does not answer."""
        with contextlib.suppress(TimeoutError):
            records = await in_thread(self._parts.history.read, name)
            return records[-1].total_s if records else None
        return None

    def audit(self, server: str, command: str, by: str) -> None:
        """Note who asked for what."""
        self._parts.events.add(clock.now(), server, "request", "", command, by, 0)
        self._parts.hub.publish()
        log.info("request", server=server, command=command, by=by)

    def answered(self, operation: str, role: str, status: int) -> None:
        """Count a request."""
        self.requests[f"{operation} {status} {role}"] += 1

    def daemon_info(self) -> DaemonInfo:
        """Facts about the daemon."""
        daemon = self._parts.config.daemon
        return DaemonInfo(
            __version__,
            os.getpid(),
            self._parts.started.wall,
            self._parts.config_path,
            daemon.state_dir,
            daemon.log_dir,
            log_path=daemon.log_file or "",
            upgrades=self._parts.upgrades.number,
            upgrade_problem=self._parts.upgrades.problem,
            routers=self._parts.routing.facts(),
            state_problem=self._parts.pulse.state_problem,
            rolling=summary(self._parts.rolling.last) if self._parts.rolling.last is not None else "",
        )

    def pulse(self) -> Pulse:
        """The daemon's own health and books."""
        return self._parts.pulse.pulse(self._parts.roster.names())

    async def shutdown(self, by: str) -> None:
        """Stop every server, then end."""
        self._parts.ask_to_end(by)

    async def upgrade(self, by: str) -> Upgrading:
        """Try the installed code; when it comes up, make way for it."""
        begun = await self._parts.upgrades.begin(by, self._prospect)
        log.info("upgrade begins", before=begun.before, after=begun.after, by=by)
        self._parts.ending.set()
        return begun

    async def _prospect(self) -> Prospect:
        """What the next code would go by, and why it cannot take over now: a server must not pay for that."""
        # A disk that hangs shows itself when it is asked; the exec would wait for whoever waits for it in the kernel.
        await self._parts.roster.saved()
        if obstacle := self._under_way():
            return Prospect(obstacle)
        changes = self._parts.changes
        try:
            found = await changes.reread()
        except (ConfigError, ChangeRefusedError) as problem:
            return Prospect("; ".join(str(problem).splitlines()[:3]))
        return Prospect(self._cost(found), changes.files, changes.available)

    def _under_way(self) -> str:
        if self._parts.ending.is_set():
            return "the daemon ends"
        if problem := self._parts.pulse.state_problem:
            return f"{problem}: the new code would go by what is on disk"
        if hangs := self._parts.pulse.hangs:
            return f"{hangs}: the new code could not begin before that comes back"
        if self._parts.changes.busy:
            return "a change of the configuration is under way; try again when it is done"
        if self._parts.rolling.last is not None and self._parts.rolling.last.state is RollState.RUNNING:
            return f"a {summary(self._parts.rolling.last)}; wait for it, or cancel it"
        return ""

    def _cost(self, found: Differences) -> str:
        """What servers would pay for the file as it is."""
        costly = [change.name for change in found.servers if costs(change)]
        if costly:
            return f"the file wants {', '.join(costly)} stopped or restarted; sglctl update first, or take that back"
        wanted = self._parts.changes.available.daemon.state_dir
        if Path(wanted) != Path(self._parts.config.daemon.state_dir):
            advice = "sglctl shutdown, then start the daemon again, or take that back"
            return f"the file names another state_dir, {wanted}, where none of these servers is known; {advice}"
        return ""
