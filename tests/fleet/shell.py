"""What one daemon does about several servers at once: slots, needs, ends, changes and rollings are the product's own.

Here are what they stand on: loops that take requests, and a roster that hands a server another configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, cast

import anyio
from anyio.abc import TaskGroup

from supervisor import actions as a
from supervisor import events as e
from supervisor.api.control import ChangeRefusedError, Request
from supervisor.config import Config, ServerConfig
from supervisor.core.fleet.ends import by_need
from supervisor.core.lifecycle import RESTING, State
from supervisor.core.rolling import RollKind
from supervisor.core.server import Server
from supervisor.shell.changes import Changes
from supervisor.shell.ends import Ends
from supervisor.shell.fleet import FleetKeeper
from supervisor.shell.hub import Hub
from supervisor.shell.loop import ServerLoop
from supervisor.shell.rolling import Rolling, Site
from supervisor.shell.roster import ChangeProblem
from supervisor.shell.roster import Roster as RealRoster
from supervisor.shell.writer import Change, StateWriter
from supervisor.snapshot import ServerSnapshot
from tests.fleet.loop import VirtualLoop

if TYPE_CHECKING:
    from tests.fleet.fleet import Fleet, Seat

BOOT = "boot"
_MAILBOX_S = 0.0002
_SETTLE_LIMIT_S = 15.0  # as the daemon's: for a spawn, or the end of an attempt, that an upgrade would break off
_CALM = (*RESTING, State.BACKOFF, State.RUNNING)


class Loop:
    """One server towards the others: as `shell.loop.ServerLoop`."""

    def __init__(self, shell: Shell, seat: Seat) -> None:
        self._shell = shell
        self._seat = seat
        self.name = seat.name

    @property
    def server(self) -> Server:
        """The core."""
        return self._seat.server

    def snapshot(self) -> ServerSnapshot:
        """As of the last event."""
        return self._seat.snapshot()

    async def ask(self, event: e.AnyEvent) -> None:
        """Return when it has been handled; of a daemon that is gone nobody waits for anything."""
        shell = self._shell
        if not shell.alive:
            return
        handled = shell.loop.create_future()
        shell.fleet.later(_MAILBOX_S, lambda: self._deliver(event, handled))
        await handled

    def _deliver(self, event: e.AnyEvent, handled: asyncio.Future[None]) -> None:
        self._shell.fleet.tell(self._seat, event)
        if not handled.done():
            handled.set_result(None)


class Roster:
    """All servers that have been taken up: as `shell.roster.Roster`."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._fleet = shell.fleet
        self.loops: dict[str, Loop] = {}
        self.returning: Collection[str] = ()

    def loop(self, name: str) -> ServerLoop | None:
        """Of one server."""
        return cast("ServerLoop | None", self.loops.get(name))

    def snapshots(self) -> Iterator[ServerSnapshot]:
        """In order."""
        return iter([loop.snapshot() for loop in self.loops.values()])

    def configs(self) -> dict[str, ServerConfig]:
        """In force."""
        return {name: self._fleet.seat(name).config for name in self.loops}

    def is_up(self, name: str) -> bool:
        """Whether it is wanted up, or not at rest yet."""
        loop = self.loops[name]
        return loop.snapshot().goal == "up" or loop.server.state not in RESTING

    def is_wanted(self, name: str) -> bool:
        """Whether it is wanted up."""
        return self.loops[name].snapshot().goal == "up"

    async def start(self, name: str, by: str) -> None:
        """Want it up."""
        await self.loops[name].ask(e.StartRequested(by))

    async def stop(self, name: str, by: str, grace_s: float | None = None) -> None:
        """Until it rests. ChangeProblem when it cannot be killed, or is wanted up again."""
        self._fleet.overseer.taken_out(name, by)
        loop = self.loops[name]
        await loop.ask(e.StopRequested(by, grace_s))
        await self._until(lambda: loop.server.state in RESTING or loop.snapshot().goal == "up")
        if loop.server.state is State.QUARANTINED:
            raise ChangeProblem(f"cannot change {name}: {loop.snapshot().lifecycle.reason}")
        if loop.snapshot().goal == "up":
            raise ChangeProblem(f"cannot change {name}: somebody wants it up again")

    async def replace(self, config: ServerConfig) -> None:
        """Another core for the same processes, as soon as nothing is under way."""
        loop = self.loops[config.name]
        while True:
            await self._until(lambda: self._calm(loop))
            await loop.ask(e.Ticked())
            if not self._shell.alive:
                return
            if self._calm(loop):
                break
        self._fleet.sit_again(config)
        self._shell.hub.publish()

    async def replace_by_restart(self, config: ServerConfig, by: str, grace_s: float | None = None) -> None:
        """Stop, replace, start again if it was wanted up."""
        loop = self.loops[config.name]
        wanted = loop.snapshot().goal == "up"
        with self.coming_back([config.name] if wanted else []):
            if loop.server.state is not State.STOPPED:
                await self.stop(config.name, by, grace_s)
            await self.replace(config)
            await self.start_again(config.name, by)

    @contextmanager
    def coming_back(self, names: Collection[str]) -> Iterator[None]:
        """Around what stops these and starts them again."""
        self.returning = (*self.returning, *names)
        self._fleet.overseer.comes_back(names)
        try:
            yield
        finally:
            self.returning = [one for one in self.returning if one not in names]
            if self._shell.alive:
                self._fleet.overseer.came_back(names)

    async def start_again(self, name: str, by: str) -> None:
        """Unless somebody has asked meanwhile that it stays down."""
        if name in self.returning:
            await self.start(name, by)

    def stay_down(self, name: str) -> None:
        """Somebody stops it who does not know that it is to be started again."""
        self.returning = [one for one in self.returning if one != name]
        self._fleet.overseer.came_back([name])

    def unsettled(self) -> list[str]:
        """Who is at something short that the next daemon could only begin anew."""
        return [name for name, loop in self.loops.items() if loop.server.state is State.STOPPING or _is_spawning(loop)]

    def _calm(self, loop: Loop) -> bool:
        calm = loop.server.state in _CALM or (loop.server.state is State.STARTING and not _is_spawning(loop))
        return calm or loop.server.pauses or bool(self._shell.keeper.told(loop.snapshot()))

    async def _until(self, reached: Callable[[], bool]) -> None:
        seen = -1
        while not reached() and self._shell.alive:
            seen = await self._shell.hub.changed(seen)


def _is_spawning(loop: Loop) -> bool:
    return loop.server.state is State.STARTING and loop.snapshot().pid is None


class LateWriter(StateWriter):
    """A change is made a moment after it was asked for; a daemon that was killed before has not made it."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(monotonic=lambda: fleet.now)
        self._fleet = fleet
        self._chance = Random(fleet.writes)  # its own: a history is the same whatever the disk does
        self._last = 0.0

    def ask(self, path: Path, make: Callable[[], None], cost: str) -> Change:
        """One after another."""
        now = self._fleet.now
        change = Change(path, make, cost, now)
        self._last = max(self._last, now + self._chance.choice((0.0, 0.001, 0.02, 3.0)))
        self._fleet.later(self._last - now, partial(self._arrive, change))
        return change

    def _arrive(self, change: Change) -> None:
        change.make()
        change.settled.set()


class FileChanges(Changes):
    """The file is read at once and can always be used."""

    file: Config

    @property
    def available(self) -> Config:
        """As it is now."""
        return self.file


class Shell:
    """One daemon's. When it is killed, `end` leaves nothing that goes on."""

    def __init__(self, fleet: Fleet, file: Config, folder: Path) -> None:
        self.fleet = fleet
        self.alive = True
        self.open = False  # for requests
        self.leaving = False  # other code takes over soon
        self.loop = VirtualLoop(self._now, lambda at, deed: fleet.later(at - fleet.now, deed))
        self.hub = Hub()
        self.roster = Roster(self)
        self.config = file
        self.keeper = FleetKeeper(self.hub, lambda: self.config, self.roster.snapshots, self._now)
        tasks = cast("TaskGroup", self.loop)
        self.ends = Ends(self.keeper, self.roster.loop, self.hub, tasks, self._now)
        roster = cast("RealRoster", self.roster)
        self.changes = FileChanges(roster, lambda: self.config, "", tasks, lambda: self.keeper.ties)
        self.changes.file = file
        site = Site(self._one, fleet.missing, self.keeper.mates, self._roll)
        self.rolling = Rolling(
            *(roster, self.changes, site, self.hub, folder / "rolling.json", BOOT, fleet.overseer.rolling),
            monotonic=self._now,
            writer=LateWriter(fleet),
        )
        fleet.overseer.knows(self.rolling.last)

    def _now(self) -> float:
        return self.fleet.now

    def _one(self, name: str) -> ServerSnapshot | None:
        loop = self.roster.loops.get(name)
        return loop.snapshot() if loop else None

    async def _roll(self, name: str, event: Request) -> None:
        self.fleet.overseer.taken_out(name, event.by)
        await self.ends.request(name, event)

    async def pause(self, seconds: float) -> None:
        """Time passes."""
        over = self.loop.create_future()
        self.fleet.later(seconds, lambda: over.done() or over.set_result(None))
        await over

    # --- its life ----------------------------------------------------------------------------------------------------

    def begin(self, take_up: Callable[[Seat], bool]) -> None:
        """Take up all servers, one after another; `take_up` tells whether an earlier daemon has left it."""
        self.loop.start_soon(self._begin, take_up, name="begin")
        self.loop.start_soon(self.rolling.run, name="rolling")
        self.loop.turn()

    async def _begin(self, take_up: Callable[[Seat], bool]) -> None:
        left: set[str] = set()
        for seat in self.fleet.seats:
            self.roster.loops[seat.name] = Loop(self, seat)
            if take_up(seat):
                left.add(seat.name)
            self.hub.publish()
            await self.pause(self.fleet.recall_s)
        self.open = True
        await self.ends.go_on()
        for name in by_need(self.keeper.ties, list(self.config.servers)):
            if name not in left:
                await self.roster.start(name, "autostart")
        if self.alive:
            self.fleet.overseer.all_taken_up()

    def end(self) -> None:
        """Killed."""
        self.alive = False
        self.loop.end()

    def announced(self, name: str, change: a.Announce) -> None:
        """A lifecycle has changed."""
        self.ends.changed(name, change)

    # --- what people ask ---------------------------------------------------------------------------------------------

    def request(self, name: str, event: Request) -> None:
        """Over the socket; before it is open, and once other code takes over, nobody hears it."""
        if self.open and not self.leaving:
            self.loop.start_soon(self._request, name, event, name=f"request for {name}")

    async def _request(self, name: str, event: Request) -> None:
        if isinstance(event, e.StopRequested):
            self.roster.stay_down(name)
        await self.ends.request(name, event)

    def request_group(self, names: tuple[str, ...], event: Request) -> None:
        """One after another, as clients do it for a group."""
        if self.open and not self.leaving:
            self.loop.start_soon(self._each, names, event, name="request for a group")

    async def _each(self, names: tuple[str, ...], event: Request) -> None:
        for name in names:
            await self._request(name, event)

    def roll(self, kind: RollKind, names: list[str], grace_s: float) -> None:
        """A rolling restart, or an update to the file as it is now; refused while another one is under way."""
        if self.open and not self.leaving:
            self.loop.start_soon(self._begin_roll, kind, names, grace_s, name="begin a rolling")

    async def _begin_roll(self, kind: RollKind, names: list[str], grace_s: float) -> None:
        with contextlib.suppress(ChangeRefusedError):
            roll, problem = await self.rolling.begin(kind, names, "rolling", grace_s)
            if self.alive and not problem:
                self.fleet.overseer.answered(roll)

    def cancel(self) -> None:
        """Of the rolling under way nobody else is to be touched."""
        if self.open and not self.leaving:
            self.loop.start_soon(self._cancel, name="cancel the rolling")

    async def _cancel(self) -> None:
        last = self.rolling.last
        if await self.rolling.cancel("test") == "" and self.alive:
            self.fleet.overseer.cancelled(last)

    def upgrade(self) -> None:
        """Other code takes this daemon's place as soon as nothing is half done."""
        if self.open and not self.leaving:
            self.leaving = True
            self.loop.start_soon(self._make_way, name="upgrade")

    async def _make_way(self) -> None:
        with anyio.move_on_after(_SETTLE_LIMIT_S):
            await self.changes.hold()
            seen = -1
            while self.roster.unsettled():
                seen = await self.hub.changed(seen)
        self.fleet.hand_over()
