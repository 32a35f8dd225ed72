"""Restarts or updates servers one after another, and goes on when whoever has asked for it has left."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio

from supervisor.api.control import ChangeRefusedError, Request
from supervisor.config import ServerConfig
from supervisor.core.rolling import (
    Failed,
    Member,
    MemberState,
    Roll,
    RollKind,
    RollState,
    Wait,
    judge,
    summary,
    turn,
)
from supervisor.events import RestartRequested
from supervisor.shell import clock
from supervisor.shell.changes import Changes
from supervisor.shell.hub import Hub
from supervisor.shell.rollbook import RollBook, Tell
from supervisor.shell.roster import Roster
from supervisor.shell.writer import StateWriter
from supervisor.snapshot import ServerSnapshot

JOIN_LIMIT_S = 60.0  # a healthy server that a router does not take by then is a failure
_ENDING = ("draining", "stopping", "reclaiming")


class Site(NamedTuple):
    """What a rolling needs of the daemon: how a server is, what it misses, who ends and starts with it, a request."""

    snapshot: Callable[[str], ServerSnapshot | None]
    missing: Callable[[str], str]  # routers that do not have it
    mates: Callable[[str], Collection[str]]
    request: Callable[[str, Request], Awaitable[None]]


class Rolling:
    """One for the daemon, and one rolling at a time. `tell` is told each change of it."""

    def __init__(
        self,
        roster: Roster,
        changes: Changes,
        site: Site,
        hub: Hub,
        path: Path,
        boot_id: str,
        tell: Tell = lambda *_: None,
        join_limit_s: float = JOIN_LIMIT_S,
        monotonic: Callable[[], float] = clock.monotonic,
        writer: StateWriter | None = None,
    ) -> None:
        self._roster = roster
        self._changes = changes
        self._snapshot, self._missing, self._mates, self._request = site
        self._hub = hub
        self._join_limit_s = join_limit_s
        self._monotonic = monotonic
        self._book = RollBook(path, boot_id, tell, writer or StateWriter())
        self._asked = anyio.Event()
        if self._book.running:
            self._asked.set()

    # --- what is asked -------------------------------------------------------------------------------------------

    @property
    def last(self) -> Roll | None:
        """The one under way, else the last one; None when there never was any."""
        return self._book.roll

    async def begin(
        self, kind: RollKind, names: Sequence[str], by: str, grace_s: float, reason: str = ""
    ) -> tuple[Roll, str]:
        """Begin with the first, and return when the next daemon would know of it; why it would not, else "".

        ChangeRefusedError while another one is under way.
        """
        if self._book.roll is not None and self._book.running:
            raise ChangeRefusedError(f"cannot begin: a {summary(self._book.roll)}; wait for it, or cancel it")
        roll = self._book.begin(kind, names, by, grace_s, reason)
        self._asked.set()  # before the wait: whoever asked may leave meanwhile
        return roll, await self._book.written()

    async def cancel(self, by: str) -> str | None:
        """The one under way comes back first, unless its start waits; nobody follows. None when nothing is under way.

        As `begin`: returns why the next daemon would not know of it, else "".
        """
        if not self._book.running:
            return None
        self._book.cancel(by)
        self._hub.publish()  # a start that waits is left at once
        return await self._book.written()

    def abandon(self, why: str) -> None:
        """The servers are about to be stopped for another reason; the one under way, if any, is over."""
        self._book.end(RollState.ABANDONED, why)

    # --- one after another ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carry out what is asked, until cancelled."""
        while True:
            await self._asked.wait()  # as long as nobody asks for one
            self._asked = anyio.Event()
            await self._all()

    async def _all(self) -> None:
        while (roll := self._book.roll) is not None and (member := turn(roll)) is not None:
            if roll.cancelled_by and member.state is MemberState.WAITING:
                self._end_cancelled()
                return
            problem = await (self._update if roll.kind is RollKind.UPDATE else self._restart)(member, roll)
            if problem:
                self._book.end(RollState.FAILED, f"{member.name}: {problem}")
                return
        self._book.end(RollState.DONE, "")

    def _end_cancelled(self) -> None:
        self._book.end(RollState.CANCELLED, f"cancelled by {self._book.cancelled_by}")

    async def _restart(self, member: Member, roll: Roll) -> str:
        """Why nobody is to follow, "" when the next may."""
        await self._returned(member.name)
        snapshot = self._snapshot(member.name)
        if snapshot is None:
            return self._failed(member.name, "there is no such server any more")
        if member.state is MemberState.WAITING:
            if snapshot.goal != "up":
                self._book.note(member.name, MemberState.SKIPPED, "it is not wanted up")
                return ""
            if with_whom := self._done_with(member.name, roll):
                self._book.note(member.name, MemberState.DONE, f"it has restarted together with {with_whom}")
                return ""
            if problem := await self._may_leave(member.name):
                return self._failed(member.name, problem)
            if self._is_cancelled():
                return ""
            member = await self._begun(member.name)
        now = self._snapshot(member.name)
        if now is not None and now.attempt == member.attempt and now.lifecycle.value not in _ENDING:
            await self._request(member.name, RestartRequested(roll.by, _reason(roll), roll.grace_s))
        problem = await self._settled(member.name, member.attempt)
        if problem:
            return self._failed(member.name, problem)
        self._book.note(member.name, MemberState.DONE)
        return ""

    async def _begun(self, name: str) -> Member:
        """On disk before it is ended. An attempt that begins while the disk is waited for is not its restart."""
        while True:
            member = self._under_way(name, self._snapshot(name))
            await self._book.written()
            if _attempt(self._snapshot(name)) == member.attempt:
                return member

    async def _returned(self, name: str) -> None:
        """Whom an update has end only to start again nobody wants down; until then its own deadlines bound it."""
        while name in self._roster.returning and not self._is_cancelled():
            await self._hub.changed(self._hub.count)

    def _done_with(self, name: str, roll: Roll) -> str:
        """Whose restart was this server's, too: a group that lives together is one step."""
        mates = self._mates(name)
        return next((one.name for one in roll.members if one.name in mates and one.state is MemberState.DONE), "")

    async def _may_leave(self, name: str) -> str:
        """Why a serving server is better left where it is: a router that cannot be told would go on sending to it."""
        limit = self._monotonic() + self._join_limit_s
        while (missing := self._missing(name)) and _serves(self._snapshot(name)) and not self._is_cancelled():
            seen = self._hub.count
            if self._monotonic() >= limit:
                return f"{missing}; it was left as it is"
            with anyio.move_on_after(limit - self._monotonic()):
                await self._hub.changed(seen)
        return ""

    async def _settled(self, name: str, before: int) -> str:
        """Wait until the server serves again and its routers have it; why it does not, "" when it does.

        What its start waits for, without a limit, is told, and ends a rolling that was cancelled. The start itself is
        bounded by the server's own deadlines, the routers by ours.
        """
        healthy_until = math.inf
        while not self._ended():
            seen, missing, now = self._hub.count, self._missing(name), self._monotonic()
            coming = name in self._roster.returning  # an update has it end only to start it again
            outcome = Wait() if coming else judge(before, self._snapshot(name), missing, now)
            if not isinstance(outcome, Wait):
                return outcome.reason if isinstance(outcome, Failed) else ""
            healthy_until = min(healthy_until, now + self._join_limit_s) if outcome.healthy else math.inf
            self._waits(name, outcome.start)
            if now >= healthy_until:
                return f"it is healthy, but not every router has taken it within {self._join_limit_s:g} s: {missing}"
            if not self._ended():
                with anyio.move_on_after(max(0.0, min(healthy_until, outcome.again) - now)):
                    await self._hub.changed(seen)
        return "it is over"

    def _waits(self, name: str, start: str) -> None:
        """Note what its start waits for. A rolling that was cancelled does not stay for that."""
        if start and self._book.cancelled_by:
            self._book.note(name, MemberState.LEFT_WAITING, f"its start {start}")
            self._end_cancelled()
        else:
            self._book.note_wait(name, start)

    # --- with another configuration ------------------------------------------------------------------------------

    async def _update(self, member: Member, roll: Roll) -> str:
        """As `_restart`; a server that has run before and does not come back gets its old configuration again."""
        name, before = member.name, self._roster.configs()
        snapshot = self._snapshot(name)
        served = _serves(snapshot)
        if change := self._changes.ending(name):  # else it serves on, and leaves nobody
            if problem := await self._may_leave(name):
                return self._failed(name, problem)
            if self._is_cancelled():
                return ""
            member = self._under_way(name, snapshot, "it is removed" if change.kind == "disappeared" else "")
            await self._book.written()
        applied = await self._changes.roll(name, roll.by, roll.grace_s)
        if applied.problem:
            return self._failed(name, applied.problem)
        if applied.kind != "restarted":
            self._book.note(name, MemberState.DONE, applied.kind)
            return ""
        attempt = _attempt_before(self._snapshot(name))  # only now: it may have waited long for its end
        problem = await self._settled(name, attempt)
        if not problem:
            self._book.note(name, MemberState.DONE)
            return ""
        if name not in before or not served or self._ended():
            return self._failed(name, problem)
        now = self._roster.configs()
        changed = [before[one] for one in self._mates(name) if one in before and now.get(one) != before[one]]
        return await self._put_back([before[name], *changed], problem, roll)

    async def _put_back(self, old: Sequence[ServerConfig], problem: str, roll: Roll) -> str:
        """The first one's, and those of mates whose change has come in by the same restart."""
        name = old[0].name
        applied = await self._changes.put_back(old, roll.by)
        again = applied.problem or await self._settled(name, _attempt_before(self._snapshot(name)))
        if again:
            return self._failed(name, f"{problem}; and with its old configuration: {again}")
        self._book.note(name, MemberState.ROLLED_BACK, problem)
        return f"{problem}; it runs with its old configuration again"

    # --- notes ---------------------------------------------------------------------------------------------------

    def _ended(self) -> bool:
        return not self._book.running

    def _is_cancelled(self) -> bool:
        """Whether nobody is to be begun with any more."""
        return self._ended() or bool(self._book.cancelled_by)

    def _under_way(self, name: str, snapshot: ServerSnapshot | None, reason: str = "") -> Member:
        attempt = _attempt(snapshot)
        self._book.note(name, MemberState.UNDER_WAY, reason, attempt)
        return Member(name, MemberState.UNDER_WAY, attempt=attempt)

    def _failed(self, name: str, problem: str) -> str:
        if not self._ended():
            self._book.note(name, MemberState.FAILED, problem)
        return problem


def _reason(roll: Roll) -> str:
    return roll.reason or f"rolling restart asked by {roll.by}"


def _serves(snapshot: ServerSnapshot | None) -> bool:
    return snapshot is not None and snapshot.healthy


def _attempt(snapshot: ServerSnapshot | None) -> int:
    return 0 if snapshot is None else snapshot.attempt


def _attempt_before(snapshot: ServerSnapshot | None) -> int:
    """The attempt before the one that has just been asked for, which may have begun already."""
    if snapshot is None:
        return 0
    return snapshot.attempt - 1 if snapshot.lifecycle.value in ("starting", "running") else snapshot.attempt
