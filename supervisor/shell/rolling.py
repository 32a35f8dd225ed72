"""Restarts or updates servers one after another, and goes on when whoever has asked for it has left."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import structlog

from supervisor.api.control import ChangeRefusedError, Request
from supervisor.config import ServerConfig
from supervisor.core.rolling import (
    Done,
    Failed,
    Member,
    MemberState,
    Roll,
    RollKind,
    RollState,
    Wait,
    begin,
    ended,
    judge,
    noted,
    summary,
    turn,
)
from supervisor.events import RestartRequested
from supervisor.shell import clock
from supervisor.shell.changes import Changes
from supervisor.shell.hub import Hub
from supervisor.shell.roster import Roster
from supervisor.shell.writer import Change, StateWriter
from supervisor.smallfile import UnusableFileError, read_json, replace_json
from supervisor.snapshot import ServerSnapshot

JOIN_LIMIT_S = 60.0  # a healthy server that a router does not take by then is a failure
_ENDING = ("draining", "stopping", "reclaiming")

log = structlog.get_logger()


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
        tell: Callable[[str, str, str, str], None] = lambda *_: None,
        join_limit_s: float = JOIN_LIMIT_S,
        monotonic: Callable[[], float] = clock.monotonic,
        writer: StateWriter | None = None,
    ) -> None:
        self._roster = roster
        self._changes = changes
        self._snapshot, self._missing, self._mates, self._request = site
        self._hub = hub
        self._path = path
        self._boot_id = boot_id
        self._tell = tell
        self._join_limit_s = join_limit_s
        self._writer = writer or StateWriter()
        self._kept: Change | None = None
        self._monotonic = monotonic
        self._roll: Roll | None = None
        self._cancelled_by = ""
        self._asked = anyio.Event()
        self._take_up(self._read())  # a small file, before anybody is served: who asks first must be told of it

    # --- what is asked -------------------------------------------------------------------------------------------

    @property
    def last(self) -> Roll | None:
        """The one under way, else the last one; None when there never was any."""
        return self._roll

    def begin(self, kind: RollKind, names: Sequence[str], by: str, grace_s: float, reason: str = "") -> Roll:
        """Begin with the first; returns at once. ChangeRefusedError while another one is under way."""
        if self._roll is not None and self._roll.state is RollState.RUNNING:
            raise ChangeRefusedError(f"cannot begin: a {summary(self._roll)}; wait for it, or cancel it")
        self._cancelled_by = ""
        roll = begin(kind, names, by, grace_s, clock.now().wall, reason, self._boot_id)
        self._keep(roll, "", "", "running", f"rolling {kind} of {', '.join(names) or 'nobody'} asked by {by}")
        self._asked.set()
        return roll

    def cancel(self, by: str) -> bool:
        """The one under way comes back first; nobody follows. False when nothing is under way."""
        if self._ended():
            return False
        self._cancelled_by = by
        return True

    def abandon(self, why: str) -> None:
        """The servers are about to be stopped for another reason; the one under way, if any, is over."""
        self._end(RollState.ABANDONED, why)

    # --- one after another ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carry out what is asked, until cancelled."""
        while True:
            await self._asked.wait()  # as long as nobody asks for one
            self._asked = anyio.Event()
            await self._all()

    async def _all(self) -> None:
        while self._roll is not None and (member := turn(self._roll)) is not None:
            if self._cancelled_by and member.state is MemberState.WAITING:
                self._end(RollState.CANCELLED, f"cancelled by {self._cancelled_by}")
                return
            update = self._roll.kind is RollKind.UPDATE
            problem = await (self._update(member, self._roll) if update else self._restart(member, self._roll))
            if problem:
                self._end(RollState.FAILED, f"{member.name}: {problem}")
                return
        self._end(RollState.DONE, "")

    async def _restart(self, member: Member, roll: Roll) -> str:
        """Why nobody is to follow, "" when the next may."""
        snapshot = self._snapshot(member.name)
        if snapshot is None:
            return self._failed(member.name, "there is no such server any more")
        if member.state is MemberState.WAITING:
            if snapshot.goal != "up":
                self._note(member.name, MemberState.SKIPPED, "it is not wanted up")
                return ""
            if with_whom := self._done_with(member.name, roll):
                self._note(member.name, MemberState.DONE, f"it has restarted together with {with_whom}")
                return ""
            if problem := await self._may_leave(member.name):
                return self._failed(member.name, problem)
            member = self._under_way(member.name, self._snapshot(member.name))
        now = self._snapshot(member.name)
        if now is not None and now.attempt == member.attempt and now.lifecycle.value not in _ENDING:
            await self._written()
            await self._request(member.name, RestartRequested(roll.by, _reason(roll), roll.grace_s))
        problem = await self._settled(member.name, member.attempt)
        if problem:
            return self._failed(member.name, problem)
        self._note(member.name, MemberState.DONE)
        return ""

    def _done_with(self, name: str, roll: Roll) -> str:
        """Whose restart was this server's, too: a group that lives together is one step."""
        mates = self._mates(name)
        return next((one.name for one in roll.members if one.name in mates and one.state is MemberState.DONE), "")

    async def _may_leave(self, name: str) -> str:
        """Why a serving server is better left where it is: a router that cannot be told would go on sending to it."""
        limit = self._monotonic() + self._join_limit_s
        while (missing := self._missing(name)) and _serves(self._snapshot(name)) and not self._ended():
            seen = self._hub.count
            if self._monotonic() >= limit:
                return f"{missing}; it was left as it is"
            with anyio.move_on_after(limit - self._monotonic()):
                await self._hub.changed(seen)
        return ""

    async def _settled(self, name: str, before: int) -> str:
        """Wait until the server serves again and its routers have it; why it does not, "" when it does.

        The start is bounded by the server's own deadlines, the routers by ours.
        """
        healthy_until = math.inf
        while not self._ended():
            seen, missing = self._hub.count, self._missing(name)
            match judge(before, self._snapshot(name), missing):
                case Done():
                    return ""
                case Failed(reason):
                    return reason
                case Wait(healthy):
                    limit = self._monotonic() + self._join_limit_s if healthy else math.inf
                    healthy_until = min(healthy_until, limit) if healthy else math.inf
            if self._monotonic() >= healthy_until:
                return f"it is healthy, but not every router has taken it within {self._join_limit_s:g} s: {missing}"
            with anyio.move_on_after(max(0.0, healthy_until - self._monotonic())):
                await self._hub.changed(seen)
        return "it is over"

    # --- with another configuration ------------------------------------------------------------------------------

    async def _update(self, member: Member, roll: Roll) -> str:
        """As `_restart`; a server that has run before and does not come back gets its old configuration again."""
        name, before = member.name, self._roster.configs()
        snapshot = self._snapshot(name)
        served = _serves(snapshot)
        if change := self._changes.ending(name):  # else it serves on, and leaves nobody
            if problem := await self._may_leave(name):
                return self._failed(name, problem)
            member = self._under_way(name, snapshot, "it is removed" if change.kind == "disappeared" else "")
            await self._written()
        applied = await self._changes.roll(name, roll.by, roll.grace_s)
        if applied.problem:
            return self._failed(name, applied.problem)
        if applied.kind != "restarted":
            self._note(name, MemberState.DONE, applied.kind)
            return ""
        problem = await self._settled(name, _attempt(snapshot))
        if not problem:
            self._note(name, MemberState.DONE)
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
        self._note(name, MemberState.ROLLED_BACK, problem)
        return f"{problem}; it runs with its old configuration again"

    # --- notes ---------------------------------------------------------------------------------------------------

    def _ended(self) -> bool:
        return self._roll is None or self._roll.state is not RollState.RUNNING

    def _under_way(self, name: str, snapshot: ServerSnapshot | None, reason: str = "") -> Member:
        attempt = _attempt(snapshot)
        self._note(name, MemberState.UNDER_WAY, reason, attempt)
        return Member(name, MemberState.UNDER_WAY, attempt=attempt)

    def _failed(self, name: str, problem: str) -> str:
        if not self._ended():
            self._note(name, MemberState.FAILED, problem)
        return problem

    def _note(self, name: str, state: MemberState, reason: str = "", attempt: int | None = None) -> None:
        if self._roll is None:
            return
        before = next((one.state for one in self._roll.members if one.name == name), "")
        self._keep(noted(self._roll, name, state, reason, attempt), name, str(before), str(state), reason)

    def _end(self, state: RollState, note: str) -> None:
        if self._roll is None or self._ended():
            return
        over = ended(self._roll, state, clock.now().wall, note)
        self._keep(over, "", "running", str(state), summary(over))

    def _keep(self, roll: Roll, server: str, before: str, after: str, reason: str) -> None:
        self._roll = roll
        self._kept = self._writer.ask(self._path, partial(replace_json, self._path, roll), "it ends with this daemon")
        log.info("rolling", server=server, **{"from": before, "to": after}, reason=reason)
        self._tell(server, before, after, reason)

    async def _written(self) -> None:
        """Before what was noted is done; a disk that refuses, or does not answer, costs the next daemon its memory."""
        if self._kept is not None:
            await self._writer.tried(self._kept)

    # --- across the daemon's own death ---------------------------------------------------------------------------

    def _read(self) -> Roll | None:
        try:
            return read_json(self._path, Roll)
        except UnusableFileError as problem:
            log.warning("rolling", problem=str(problem))
            return None

    def _take_up(self, roll: Roll | None) -> None:
        """A restart goes on; the old configurations that an update could go back to are gone."""
        self._roll = roll
        if roll is None or roll.state is not RollState.RUNNING:
            return
        if roll.boot_id != self._boot_id:
            self._end(RollState.ABANDONED, "the host was restarted meanwhile")
        elif roll.kind is RollKind.UPDATE:
            self._end(RollState.ABANDONED, "the daemon ended meanwhile; the file as it is now is in force")
        else:
            self._asked.set()


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
