"""Shows servers as people and programs are to see them: what their loops say, and what others know of them."""

from __future__ import annotations

import msgspec

from supervisor.shell.devices import Devices
from supervisor.shell.ends import Ends
from supervisor.shell.fleet import FleetKeeper
from supervisor.shell.roster import Roster
from supervisor.shell.routing import Routing
from supervisor.snapshot import ServerSnapshot


class Views:
    """Snapshots with devices, routers, the turn that a start waits for, and what a stop waits for."""

    def __init__(self, roster: Roster, devices: Devices, routing: Routing, fleet: FleetKeeper, ends: Ends) -> None:
        self._roster = roster
        self._devices = devices
        self._routing = routing
        self._fleet = fleet
        self._ends = ends

    def all(self) -> list[ServerSnapshot]:
        """Every server in the order of the configuration."""
        return [self.whole(loop.snapshot()) for loop in self._roster.loops()]

    def one(self, name: str) -> ServerSnapshot | None:
        """One server; None when there is none of that name."""
        loop = self._roster.loop(name)
        return self.whole(loop.snapshot()) if loop else None

    def whole(self, snapshot: ServerSnapshot) -> ServerSnapshot:
        """A loop's snapshot with what others know of its server."""
        leased, routers = self._devices.leased(snapshot.name), self._routing.views(snapshot.name)
        turn, came, ends = self._fleet.told(snapshot), self._fleet.came(snapshot), self._ends.why(snapshot.name)
        if not (leased or routers or turn or came or ends):
            return snapshot
        gpus = leased or snapshot.gpus
        return msgspec.structs.replace(snapshot, gpus=gpus, routers=routers, turn=turn, turn_came=came, ends=ends)
