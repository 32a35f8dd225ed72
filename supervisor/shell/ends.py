"""Ends servers in the order in which they need each other, and restarts those together that only live together."""

from __future__ import annotations

from collections.abc import Callable

from anyio.abc import TaskGroup
from msgspec.structs import replace

from supervisor.actions import Announce
from supervisor.api.control import Request
from supervisor.core.fleet.ends import by_need, dependants, in_the_way
from supervisor.core.lifecycle import GIVEN_UP, State
from supervisor.core.restart import Next
from supervisor.events import MateFailed, RestartRequested, StartRequested, StopRequested
from supervisor.shell import clock
from supervisor.shell.fleet import FleetKeeper
from supervisor.shell.hub import Hub
from supervisor.shell.loop import ServerLoop
from supervisor.snapshot import IncidentView, ServerSnapshot

_PRESENT = (State.STARTING, State.RUNNING)
_FRESH_S = 60.0  # given up longer ago than this: whoever lives beside it has been told, or was left alone on purpose


class Ends:
    """One for the daemon. An end that is due later is carried out by a task of the daemon's."""

    def __init__(
        self,
        keeper: FleetKeeper,
        loop_of: Callable[[str], ServerLoop | None],
        hub: Hub,
        tasks: TaskGroup,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._keeper = keeper
        self._loop_of = loop_of
        self._hub = hub
        self._tasks = tasks
        self._monotonic = monotonic
        self._due: dict[str, StopRequested | RestartRequested] = {}

    # --- what is asked -----------------------------------------------------------------------------------------------

    async def request(self, name: str, event: Request) -> None:
        """Deliver a request, or of an end that others come before the intention. KeyError: there is no such server."""
        if self._loop_of(name) is None:
            raise KeyError(name)
        match event:
            case StopRequested():
                await self._stop(name, event)
            case RestartRequested():
                await self._restart(name, event)
            case StartRequested():
                self._forget(name)
                await self._ask(name, event)
            case _:
                await self._ask(name, event)

    async def stop_all(self, by: str) -> None:
        """Everybody, whoever needs others first."""
        for name in reversed(by_need(self._keeper.ties, list(self._keeper.members()))):
            await self._stop(name, StopRequested(by))

    async def go_on(self) -> None:
        """An earlier daemon has ended while a stop was held: it is asked again; or before mates knew of a failure."""
        members = self._keeper.members()
        for name, one in members.items():
            if not one.wanted and one.state in _PRESENT:
                await self._stop(name, StopRequested("an earlier daemon"))
        for name in members:
            await self._tell_late(name)

    def why(self, name: str) -> str:
        """What a running server waits for until it is ended, "" when it is not about to end."""
        if name not in self._due:
            return ""
        verb = "stopped" if isinstance(self._due[name], StopRequested) else "restarted"
        others = in_the_way(self._keeper.ties, name, self._keeper.members(), self._keeper.held)
        return f"to be {verb} after {' and '.join(others)}" if others else f"about to be {verb}"

    async def _stop(self, name: str, event: StopRequested) -> None:
        """Those who require it are stopped, too, and first."""
        members = self._keeper.members()
        for other in dependants(self._keeper.ties, name):
            if other in members and members[other].wanted:
                await self._end(other, StopRequested(f"{event.by}, as {name}, which it requires, is to stop"))
        await self._end(name, event)

    async def _restart(self, name: str, event: RestartRequested) -> None:
        """Those who require it restart as well, and those whom it restarts together with."""
        known, members = self._keeper.ties, self._keeper.members()
        mates = [mate for mate in self._keeper.mates(name) if mate in members and members[mate].wanted]
        needing = [
            other
            for one in (name, *mates)
            for other in dependants(known, one)
            if other in members and members[other].wanted and members[other].alive
        ]
        everybody = list(dict.fromkeys((*needing, *mates, name)))
        self._keeper.held.update(everybody)
        reason = f"{event.reason or f'restart asked by {event.by}'}; it goes with {name}"
        for other in reversed(by_need(known, everybody)):
            await self._end(other, event if other == name else replace(event, reason=reason))

    # --- one after another -------------------------------------------------------------------------------------------

    async def _end(self, name: str, event: StopRequested | RestartRequested) -> None:
        """At once, or as soon as nobody is in its way; each of those is bounded by its own deadlines."""
        if not self._blocked(name):
            self._forget(name)
            await self._ask(name, event)
            return
        known = name in self._due
        self._due[name] = event
        self._keeper.held.add(name)
        if isinstance(event, StopRequested):
            await self._ask(name, replace(event, hold=True))
        if not known:
            self._tasks.start_soon(self._when_free, name, name=f"{name}: end, when others have ended")
        self._hub.publish()

    async def _when_free(self, name: str) -> None:
        seen = self._hub.count
        while name in self._due and self._blocked(name):
            seen = await self._hub.changed(seen)
        event = self._due.pop(name, None)
        if event is not None:
            await self._ask(name, event)
            if name not in self._due:
                self._forget(name)

    def _blocked(self, name: str) -> bool:
        members = self._keeper.members()
        one = members.get(name)
        return one is not None and one.alive and bool(in_the_way(self._keeper.ties, name, members, self._keeper.held))

    def _forget(self, name: str) -> None:
        """What was asked last counts."""
        self._due.pop(name, None)
        self._keeper.held.discard(name)
        self._hub.publish()

    async def _ask(self, name: str, event: Request | MateFailed) -> None:
        loop = self._loop_of(name)
        if loop is not None:
            await loop.ask(event)

    # --- what happens by itself --------------------------------------------------------------------------------------

    def changed(self, name: str, change: Announce) -> None:
        """A server's lifecycle has changed: its mates follow it, and those that it was missed by may come back."""
        loop = self._loop_of(name)
        mates = self._keeper.mates(name)
        if loop is not None and mates and (failure := _failure(loop, change, self._monotonic())) is not None:
            self._keeper.held.update(mates)
            for mate in mates:
                self._tasks.start_soon(self._tell, mate, failure, name=f"{mate}: told that {name} has failed")
        for other in self._keeper.may_start_again():
            self._keeper.refused.discard(other)
            self._tasks.start_soon(self._ask, other, StartRequested("the return of what it requires"))

    async def _tell_late(self, name: str) -> None:
        """A server has failed when no daemon was there, or before all of them were taken up again."""
        loop = self._loop_of(name)
        failure = _missed(loop, self._monotonic()) if loop is not None else None
        if loop is None or failure is None:
            return
        for mate in self._keeper.mates(name):
            other = self._loop_of(mate)
            if other is not None and other.server.state in _PRESENT and _began(other) <= _failed_at(loop):
                self._keeper.held.add(mate)
                await self._tell(mate, failure)

    async def _tell(self, mate: str, failure: MateFailed) -> None:
        await self._ask(mate, failure)
        if mate not in self._due:
            self._forget(mate)


def _failure(loop: ServerLoop, change: Announce, now: float) -> MateFailed | None:
    """What its mates must be told; None when nobody has failed."""
    snapshot, follows = loop.snapshot(), loop.server.follows
    if snapshot.goal != "up" or snapshot.maintenance is not None:
        return None  # its end is somebody's work
    if change.after in GIVEN_UP:
        return MateFailed(loop.name, _briefly(snapshot, change.reason))
    ended = change.after == State.RECLAIMING and change.before in (State.STOPPING, State.STARTING)
    if not ended or not _own(snapshot.incidents, change.attempt):
        return None
    if follows.next is Next.BACKOFF:
        return MateFailed(loop.name, _briefly(snapshot, follows.reason), max(0.0, follows.due - now))
    return MateFailed(loop.name, _briefly(snapshot, follows.reason))


def _missed(loop: ServerLoop, now: float) -> MateFailed | None:
    """What its mates should know since before this daemon; None when it has not failed, or long ago."""
    snapshot, follows = loop.snapshot(), loop.server.follows
    lifecycle = snapshot.lifecycle
    if snapshot.goal != "up" or snapshot.maintenance is not None:
        return None
    own = _own(snapshot.incidents, snapshot.attempt)
    if own and lifecycle.value in (State.RECLAIMING, State.BACKOFF):
        again = follows.next in (Next.BACKOFF, Next.RELAUNCH)
        delay_s = max(0.0, follows.due - now) if again else None
        return MateFailed(loop.name, _briefly(snapshot, follows.reason), delay_s)
    if own and lifecycle.value in GIVEN_UP and now - _failed_at(loop) <= _FRESH_S:
        return MateFailed(loop.name, _briefly(snapshot, lifecycle.reason))
    before = lifecycle.value == State.STARTING and _own(snapshot.incidents, snapshot.attempt - 1)
    if before and now - _failed_at(loop) <= _FRESH_S:
        return MateFailed(loop.name, snapshot.incidents[-1].reason, 0.0)  # it has been quicker than we
    return None


def _briefly(snapshot: ServerSnapshot, reason: str) -> str:
    """What to change is told of whom it concerns, not of its mates."""
    remedy = snapshot.diagnosis.remedy if snapshot.diagnosis is not None else ""
    return reason.removesuffix(f": {remedy}") if remedy else reason


def _began(loop: ServerLoop) -> float:
    return loop.snapshot().started or 0.0


def _failed_at(loop: ServerLoop) -> float:
    return loop.snapshot().incidents[-1].ended


def _own(incidents: tuple[IncidentView, ...], attempt: int) -> bool:
    """Whether the attempt ended without anybody asking."""
    return bool(incidents) and incidents[-1].attempt == attempt
