"""Holds the servers of the daemon, each with its loop and its hands, and changes who is among them while it runs.

A server whose configuration changes in ways that its process need not notice is handed to a new core as an adopted
one is to a new daemon: same record, same tree, same log; its tasks end in between, its processes do not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import anyio
import anyio.abc
import msgspec
import structlog
from anyio.abc import TaskGroup

from supervisor.actions import Announce, StartRecord
from supervisor.config import ServerConfig
from supervisor.core.lifecycle import State
from supervisor.core.memory import started_again
from supervisor.core.resolve import resolve
from supervisor.core.server import Server
from supervisor.events import StartRequested, StopRequested, Ticked
from supervisor.profile import facts, load_profile
from supervisor.saved import SavedServer
from supervisor.shell import clock
from supervisor.shell.adoption import Inheritance, recollected
from supervisor.shell.effects import Effects
from supervisor.shell.host import Host
from supervisor.shell.logfeed import LogFeed
from supervisor.shell.loop import ServerLoop
from supervisor.shell.router import Door
from supervisor.shell.seat import Seat
from supervisor.shell.states import COST, StateStore
from supervisor.shell.writer import Change
from supervisor.snapshot import ServerSnapshot
from supervisor.threads import Threads

log = structlog.get_logger()

NOTHING = Inheritance(None)
_READ_LIMIT_S = 5.0
Found = TypeVar("Found")


class ChangeProblem(Exception):  # noqa: N818 - a fact for the operator, not a bug
    """A server cannot be added, replaced or removed; the text says why."""


class Roster:
    """All servers in order of the configuration. `announce` and `observe` are told what happens to them."""

    def __init__(
        self,
        host: Host,
        states: StateStore,
        announce: Callable[[str, Announce], None],
        observe: Callable[[ServerSnapshot], None],
    ) -> None:
        self._host = host
        self._states = states
        self._announce = announce
        self._observe = observe
        self._seats: dict[str, Seat] = {}
        self.returning: Collection[str] = ()  # who is down, or about to be, only to be started again
        self._tasks: TaskGroup | None = None
        self._reads = Threads("the disk of its state or of its logs", 4)

    # --- who is there --------------------------------------------------------------------------------------------

    def loops(self) -> Iterator[ServerLoop]:
        """Of all servers, in order."""
        return iter([seat.loop for seat in self._seats.values()])

    def overdue_s(self) -> float:
        """For how long the most belated decision has been due."""
        return max((loop.overdue_s() for loop in self.loops()), default=0.0)

    def loop(self, name: str) -> ServerLoop | None:
        """Of one server."""
        seat = self._seats.get(name)
        return seat.loop if seat else None

    def effects(self) -> Iterator[Effects]:
        """The hands of all servers."""
        return iter([seat.effects for seat in self._seats.values() if seat.effects is not None])

    def hands(self, name: str) -> Effects | None:
        """The hands of one server."""
        seat = self._seats.get(name)
        return seat.effects if seat else None

    def readers(self) -> dict[str, LogFeed]:
        """Who reads the logs of the servers that have one."""
        feeds = ((name, seat.effects.feed) for name, seat in self._seats.items() if seat.effects is not None)
        return {name: feed for name, feed in feeds if feed is not None}

    def configs(self) -> dict[str, ServerConfig]:
        """The configurations in force."""
        return {name: seat.config for name, seat in self._seats.items()}

    def doors(self) -> dict[str, Door]:
        """Where requests go, of the servers that can have any."""
        return {name: door for name, seat in self._seats.items() if (door := seat.door) is not None}

    def is_up(self, name: str) -> bool:
        """Whether it is wanted up, or not at rest yet."""
        loop = self._seats[name].loop
        return loop.snapshot().goal == "up" or not loop.rests

    def is_wanted(self, name: str) -> bool:
        """Whether it is wanted up: one that people have asked to end, and that is at it still, is not."""
        return self._seats[name].loop.snapshot().goal == "up"

    def names(self) -> list[str]:
        """All names, in order."""
        return list(self._seats)

    # --- changes -------------------------------------------------------------------------------------------------

    def work_in(self, tasks: TaskGroup) -> None:
        """Servers' tasks are children of this group's; before the first one is added."""
        self._tasks = tasks

    async def add(self, config: ServerConfig, inherited: Inheritance = NOTHING) -> None:
        """One more server, at rest or as it was left."""
        if config.name in self._seats:
            raise ChangeProblem(f"cannot add {config.name}: there is one already")
        await self._sit(config, inherited, await self._remembered(config.name))

    async def add_again(self, config: ServerConfig) -> None:
        """One more server; what was remembered of it when it was removed still holds, but nobody wants it up yet."""
        saved = await self._read(partial(self._states.read, config.name), config.name)
        saved, past = recollected(saved, self._states.boot_id)
        fresh = saved is None or saved.tree_alive
        await self.add(config, Inheritance(None if fresh else saved, past=past))

    async def remove(self, name: str) -> None:
        """Take a server out that is at rest. ChangeProblem when it is not."""
        seat = self._seats[name]
        await self._until(seat, lambda _: not seat.keeps_evidence)
        await seat.loop.ask(Ticked())  # what has arrived until now is taken in
        if not seat.loop.rests or seat.tree is not None:
            raise ChangeProblem(f"cannot remove {name}: it is still running; stop it first")
        await self._vacate(seat)
        del self._seats[name]
        self._host.release(name)
        self._host.hub.publish()

    async def replace(self, config: ServerConfig) -> None:
        """Another configuration for the same processes, as soon as nothing is under way that must not be broken off."""
        seat, remembered = self._seats[config.name], await self._remembered(config.name)
        while True:
            await self._until(seat, lambda _: self._calm(seat))
            await seat.loop.ask(Ticked())  # what has arrived until now is taken in
            if self._calm(seat):
                break  # nothing comes between this and the end of its tasks
        await self._vacate(seat)
        await self._sit(config, Inheritance(self._saved(seat.loop.server), seat.tree), remembered)

    async def heed_routers(self) -> list[str]:
        """Have the cores know how long their routers may hold an end up. Who is at something now is named, and left."""
        late: list[str] = []
        for name, seat in list(self._seats.items()):
            if seat.loop.server.settings.stop.leave_limit_s == self._host.routing.limit_s(name):
                continue
            if not self._calm(seat):  # a drain may take hours
                late.append(name)
                continue
            try:
                await self.replace(seat.config)
            except ChangeProblem as problem:  # the next change of it brings it in
                log.error("configuration", server=name, problem=str(problem))
        return late

    async def one_is_calm(self, names: Collection[str]) -> None:
        """Wait until one of them is at nothing that must not be broken off, or is gone; without a limit."""
        seen = -1
        while all(name in self._seats and not self._calm(self._seats[name]) for name in names):
            seen = await self._host.hub.changed(seen)

    async def replace_by_restart(self, config: ServerConfig, by: str, grace_s: float | None = None) -> None:
        """Another configuration, which takes a new process: stop, replace, start again if it was wanted up.

        `grace_s` as in StopRequested: it drains.
        """
        seat = self._seats[config.name]
        wanted = seat.loop.snapshot().goal == "up"
        with self.coming_back([config.name] if wanted else []):
            if seat.loop.server.state is not State.STOPPED:
                await self.stop(config.name, by, grace_s)
            await self.replace(config)
            await self.start_again(config.name, by)

    @contextmanager
    def coming_back(self, names: Collection[str]) -> Iterator[None]:
        """Around what stops these and starts them again: a daemon that comes back in between starts them, too."""
        self.returning = (*self.returning, *names)
        try:
            yield
        finally:
            self.returning = [one for one in self.returning if one not in names]
            self._host.hub.publish()

    async def start_again(self, name: str, by: str) -> None:
        """Start one of those that are coming back, unless somebody has asked meanwhile that it stays down."""
        if name in self.returning:
            await self.start(name, by)

    def stay_down(self, name: str) -> None:
        """Somebody stops it who does not know, or does not want, that it is to be started again."""
        self.returning = [one for one in self.returning if one != name]

    async def stop(self, name: str, by: str, grace_s: float | None = None) -> None:
        """Stop it and wait until it rests: its own deadlines bound that.

        ChangeProblem when it cannot be killed, or is wanted up again before it rests: then it may never rest.
        """
        seat = self._seats[name]
        await seat.loop.ask(StopRequested(by, grace_s))
        await self._until(seat, lambda loop: loop.rests or loop.snapshot().goal == "up")
        if seat.loop.server.state is State.QUARANTINED:
            raise ChangeProblem(f"cannot change {name}: {seat.loop.snapshot().lifecycle.reason}")
        if seat.loop.snapshot().goal == "up":
            raise ChangeProblem(f"cannot change {name}: somebody wants it up again before it has ended")

    async def start(self, name: str, by: str) -> None:
        """Want it up."""
        await self._seats[name].loop.ask(StartRequested(by))

    def _calm(self, seat: Seat) -> bool:
        """Whoever waits for another server, a slot or a device, perhaps for ever, has nothing under way either."""
        waits = seat.loop.server.pauses or bool(self._host.fleet.told(seat.loop.snapshot()))
        calm = seat.calm or (seat.loop.settled and waits)
        return calm and not seat.keeps_evidence

    async def _until(self, seat: Seat, reached: Callable[[ServerLoop], bool]) -> None:
        seen = -1
        while not reached(seat.loop):
            seen = await self._host.hub.changed(seen)

    # --- taking and leaving a seat -------------------------------------------------------------------------------

    async def _remembered(self, name: str) -> tuple[tuple[StartRecord, ...], int]:
        """How its healthy starts went, and the last attempt that has a log."""
        return await self._read(lambda: (self._host.history.read(name), self._host.last_attempt(name)), name)

    async def _read(self, read: Callable[[], Found], name: str) -> Found:
        """ChangeProblem when the disk does not answer in time."""
        try:
            return await self._reads.run(read, limit_s=_READ_LIMIT_S, thing=name)
        except TimeoutError as problem:
            why = problem.strerror
            raise ChangeProblem(f"cannot read what is known of {name}: {why}; nothing was changed") from None

    async def _sit(
        self, config: ServerConfig, inherited: Inheritance, remembered: tuple[tuple[StartRecord, ...], int]
    ) -> None:
        assert self._tasks is not None  # noqa: S101 - `work_in` comes first
        profile = load_profile(config.engine)
        known = facts(profile, config.command, config.host)
        settings = resolve(config, profile, known, leave_limit_s=self._host.routing.limit_s(config.name))
        learnt, last = remembered
        past = inherited.past if inherited.saved is None else ()
        server = Server(settings, profile, known, clock.monotonic(), last, learnt, past)
        loop = ServerLoop(server, self._host, self._announce, self._save)
        seat = Seat(config, profile, known, loop, self._host, self._announce)
        if self._host.cgroups is not None:
            self._host.places[self._host.cgroups.server(config.name).path] = config.name
        await self._tasks.start(self._occupy, seat, inherited, name=f"{config.name}: server")
        self._host.hub.publish()

    async def _occupy(
        self, seat: Seat, inherited: Inheritance, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            with seat.scope:
                async with anyio.create_task_group() as tasks:
                    effects = seat.equip(tasks)
                    self._seats[seat.config.name] = seat
                    if inherited.saved is not None:
                        await seat.resume(effects, inherited.saved, inherited)
                    self._observe(seat.loop.snapshot())
                    task_status.started()
                    await seat.loop.run(effects.carry)
        finally:
            seat.left.set()

    async def _vacate(self, seat: Seat) -> None:
        """Its tasks end; whatever runs in a thread meanwhile is waited for, and bounded by its own limits."""
        seat.scope.cancel()
        await seat.left.wait()

    # --- what must survive us ------------------------------------------------------------------------------------

    def save(self) -> list[Change]:
        """Have it written down how every server is now."""
        return [self._keep(self._record(seat.loop.server)) for seat in self._seats.values()]

    async def saved(self) -> None:
        """As `save`, and wait for the disk as long as it answers. What is missing then the writer's `problem` tells."""
        for change in self.save():
            await self._host.writer.tried(change)

    def unsettled(self) -> list[str]:
        """Who is at something short that must not be broken off: a spawn, the end of an attempt, its evidence."""
        return [name for name, seat in self._seats.items() if seat.unsettled]

    async def evidence_kept(self) -> None:
        """Wait until no evidence is being kept any more, as its own limit bounds it."""
        for seat in list(self._seats.values()):
            await self._until(seat, lambda _: not seat.keeps_evidence)  # noqa: B023 - awaited

    async def _save(self, server: Server) -> None:
        """A disk that refuses, or does not answer, costs the next daemon its memory: what was decided is done."""
        name = server.settings.name
        if name in self._seats:
            await self._host.writer.tried(self._keep(self._record(server)))

    def forget(self, name: str) -> None:
        """The next daemon starts the server as configured, whatever was asked of it last; its past stays known."""
        seat = self._seats[name]
        leave = partial(self._states.leave, self._saved(seat.loop.server))
        self._host.writer.ask(self._states.path(name), leave, COST)

    def _keep(self, saved: SavedServer) -> Change:
        return self._host.writer.ask(self._states.path(saved.name), partial(self._states.put, saved), COST)

    def _record(self, server: Server) -> SavedServer:
        """As the next daemon is to find it."""
        saved = self._saved(server)
        again = "the daemon ended before what it was stopped for was done"
        return started_again(saved, again, clock.monotonic()) if saved.name in self.returning else saved

    def _saved(self, server: Server) -> SavedServer:
        saved = server.save(self._states.boot_id)
        at, devices = clock.now(), self._host.devices.leased(saved.name)
        return msgspec.structs.replace(saved, devices=devices, at=at.monotonic, wall=at.wall)
