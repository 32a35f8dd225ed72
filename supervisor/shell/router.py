"""Keeps one router as it is to be: looks whom it has, tells it what is missing, again and again."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path

import anyio
import msgspec
import structlog

from supervisor.config import RouterConfig
from supervisor.core.routing import Membership, Plan, membership_of, plan, retry_s, settled, view
from supervisor.edge.probe import connectable
from supervisor.edge.router import Listed, Router, Trouble, Worker
from supervisor.shell import clock
from supervisor.shell.writer import StateWriter
from supervisor.smallfile import UnusableFileError, read_json, replace_json
from supervisor.snapshot import RouterView, ServerSnapshot
from supervisor.threads import Threads

log = structlog.get_logger()

OFFER_AGAIN_S = 5.0  # an addition that a gateway has queued needs the server's answer first
_SOON_S = 0.1
_SOON_MAX_S = 1.0
_HOW_LONG = re.compile(r"for \d+ s")  # a disk has not answered: that is news once
_NOBODY = Listed(frozenset(), frozenset())


class Door(msgspec.Struct, frozen=True):
    """Where requests to a server go, and how it is now."""

    host: str
    port: int
    role: str
    key: str
    snapshot: ServerSnapshot
    bootstrap_port: int = 0


Doors = Callable[[], Mapping[str, Door]]  # the servers that can have requests, by name
Tell = Callable[[str, RouterView, RouterView], None]  # of a server: how it stood with the router, how it stands now


class RouterKeeper:
    """One router. `run` looks; `let_go` looks at once, and again until a server is out; `dissolve` until all are."""

    def __init__(
        self,
        config: RouterConfig,
        router: Router,
        doors: Doors,
        directory: Path,
        tell: Tell = lambda *_: None,
        writer: StateWriter | None = None,
    ) -> None:
        self.config = config
        self.reachable: bool | None = None  # None: not asked yet
        self.trouble = ""
        self._router = router
        self._doors = doors
        self._path = directory / f"{config.name}.json"
        self._tell = tell
        self._writer = writer or StateWriter()
        self._lock = anyio.Lock()
        self._life = anyio.CancelScope()
        self._disk = Threads("the disk")
        self._recalled = False
        self._parting = False  # nobody of ours is to be in it any more
        self._over = False
        self._listed = _NOBODY
        self._failures = 0
        self._hasty = 0  # looks in a row that found it not settled
        self._earlier: set[str] = set()  # addresses that were ours: they are taken out when nobody has them any more
        self._offered: dict[str, float] = {}
        self._seen: dict[str, Membership] = {}
        self._views: dict[str, RouterView] = {}

    @property
    def has(self) -> int:
        """How many servers of ours it hands requests to, as far as it can be asked."""
        return len(self._listed.ready & self._memberships().keys())

    # --- looking again and again ---------------------------------------------------------------------------------

    async def run(self, changed: Callable[[int], Awaitable[int]]) -> None:
        """Until cancelled, or dissolved. `changed` waits for the next change of any server."""
        with self._life:
            await self._recall()
            while True:
                await self.look()
                await self._pause(changed)

    async def _pause(self, changed: Callable[[int], Awaitable[int]]) -> None:
        """Until the next look is due, or whom the router is to have has changed."""
        seen = -1
        with anyio.move_on_after(self._pause_s()):
            while self._memberships() == self._seen:
                seen = await changed(seen)

    def _pause_s(self) -> float:
        if self._failures:
            return min(retry_s(self._failures), max(self.config.period_s, 1.0))
        if self._hasty:
            return min(_SOON_S * self._hasty, _SOON_MAX_S)
        return self.config.period_s

    async def let_go(self, server: str) -> None:
        """Return when the router has confirmed that the server gets no new requests; the caller bounds it."""
        while not self._over:
            await self.look()
            if self.reachable and not self._may_have(self._url_of(server)):
                return
            await self._moment()

    async def _moment(self) -> None:
        await anyio.sleep(min(_SOON_S * max(1, self._hasty, self._failures), _SOON_MAX_S))

    # --- another table, or none ----------------------------------------------------------------------------------

    async def adapt(self, config: RouterConfig, router: Router | None) -> None:
        """Another table for the same router, and how to speak to it where that is new.

        Waits for a look that is under way, which its own limits bound.
        """
        async with self._lock:
            self.config, self._router = config, router or self._router
            self._failures, self._offered = 0, {}
        await self.look()

    def keep(self, doors: Doors) -> None:
        """It has no table any more; until it is dissolved, it goes on with those that it has had."""
        self._doors = doors

    async def dissolve(self, *, quiet: bool) -> str:
        """Take all that is ours out of the router, and end; why it has not let go in time, "" when it has.

        `quiet`: another one of its name tells how servers stand with it.
        """
        self._parting = True
        self._tell = (lambda *_: None) if quiet else self._tell
        with anyio.move_on_after(self.config.leave_limit_s) as limit:
            await self._recall()
            await self.look()
            while not self._is_rid():
                await self._moment()
                await self.look()
        await self.end()
        why = self.trouble or "it still lists some"
        return f"it did not let go within {self.config.leave_limit_s:g} s: {why}" if limit.cancelled_caught else ""

    def _is_rid(self) -> bool:
        """Whether nothing of ours is left, as the router has confirmed."""
        ours = self._memberships().keys() | self._earlier
        return bool(self.reachable) and not self.trouble and not self._listed.owed and not ours & self._listed.urls

    async def end(self) -> None:
        """Leave the router as it is. A look that is under way is broken off, or has come to its end."""
        self._over = True
        self._life.cancel()
        async with self._lock:
            pass

    async def take_over(self, other: RouterKeeper) -> None:
        """The same router was known by another name: who was registered there is ours to take out."""
        await self._remember(other._earlier)

    def forget(self) -> None:
        """Nothing of ours is left there."""
        self._writer.ask(self._path, partial(self._path.unlink, missing_ok=True), "it is read and nobody is found")

    # --- one look ------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Ask, tell what is missing, ask again."""
        async with self._lock:
            if self._over:
                return
            self._seen = memberships = self._memberships()
            listed = await self._router.listed()
            trouble = listed if isinstance(listed, Trouble) else None
            if isinstance(listed, Listed) and ((due := self._due(listed, memberships)) or listed.owed):
                trouble = await self._change(due or Plan((), ()))
                again = await self._router.listed()
                listed, trouble = again, trouble or (again if isinstance(again, Trouble) else None)
            self._note(listed, trouble, memberships)

    def _due(self, listed: Listed, memberships: Mapping[str, Membership]) -> Plan | None:
        due = plan(memberships, listed.urls, self._earlier, complete=listed.complete)
        joining = tuple(url for url in due.joining if self._may_offer(url))
        return Plan(joining, due.leaving) if joining or due.leaving else None

    async def _change(self, due: Plan) -> Trouble | None:
        workers = {worker.url: worker for worker in self._workers()}
        await self._remember(due.joining)
        self._offered |= dict.fromkeys(due.joining, clock.monotonic())
        joining = [workers[url] for url in due.joining]
        return await self._router.change(joining, [workers.get(url) or Worker("", url) for url in due.leaving])

    def _may_offer(self, url: str) -> bool:
        return clock.monotonic() - self._offered.get(url, -math.inf) >= OFFER_AGAIN_S

    def _note(self, listed: Listed | Trouble, trouble: Trouble | None, memberships: Mapping[str, Membership]) -> None:
        reason = trouble.reason if trouble is not None else ""
        reachable = isinstance(listed, Listed) and (listed.complete or trouble is None)
        if reachable != self.reachable or _HOW_LONG.sub("", reason) != _HOW_LONG.sub("", self.trouble):
            say = log.info if trouble is None else log.warning
            say("router", router=self.config.name, reachable=reachable, problem=reason)
        self._listed = listed if isinstance(listed, Listed) else self._listed
        self.reachable, self.trouble = reachable, reason
        self._failures = 0 if trouble is None else self._failures + 1
        calm = settled(memberships, self._listed.urls, self._listed.ready) and not self._listed.owed
        self._hasty = 0 if calm else self._hasty + 1
        for url in self._listed.ready | {
            url for url, membership in memberships.items() if membership is not Membership.IN
        }:
            self._offered.pop(url, None)
        self._tell_changes()

    def _tell_changes(self) -> None:
        for name in self._doors():
            before, now = self._views.get(name), self.view(name)
            self._views[name] = now
            if before is None or before.state != now.state:
                self._tell(name, before or RouterView(self.config.name, ""), now)

    # --- servers as it knows them --------------------------------------------------------------------------------

    def view(self, server: str) -> RouterView:
        """How a server stands with this router."""
        name = self.config.name
        if not self.reachable:
            return RouterView(name, "unreachable", self.trouble or "not asked yet")
        membership, url = self._membership_of(server), self._url_of(server)
        listed = {url} if self._may_have(url) else ()
        return view(name, membership, url, listed, self._listed.ready, self.trouble)

    def _may_have(self, url: str) -> bool:
        """Whether requests may come to the address: nothing proves that they do not."""
        return self._listed.owed or url in self._listed.urls

    def _membership_of(self, server: str) -> Membership:
        door = self._doors().get(server)
        return Membership.OUT if door is None else self._wanted(door)

    def _wanted(self, door: Door) -> Membership:
        return Membership.OUT if self._parting else membership_of(door.snapshot)

    def _url_of(self, server: str) -> str:
        door = self._doors().get(server)
        return "" if door is None else self._url(door)

    def _url(self, door: Door) -> str:
        return f"http://{connectable(self.config.host or door.host)}:{door.port}"

    def _memberships(self) -> dict[str, Membership]:
        return {self._url(door): self._wanted(door) for door in self._doors().values()}

    def _workers(self) -> list[Worker]:
        return [
            Worker(name, self._url(door), door.role, door.key, door.bootstrap_port)
            for name, door in self._doors().items()
        ]

    # --- what must survive us ------------------------------------------------------------------------------------

    async def _remember(self, joining: Collection[str]) -> None:
        """Before the router has them: a configuration that forgets a server must not leave it there."""
        if set(joining) <= self._earlier:
            return
        self._earlier |= set(joining)
        write = partial(replace_json, self._path, sorted(self._earlier))
        # Whoever is still configured is known anyway.
        await self._writer.tried(self._writer.ask(self._path, write, "a server that is not configured may stay there"))

    async def _recall(self) -> None:
        if not self._recalled:
            self._earlier |= await self._disk.run(self._read)
            self._recalled = True

    def _read(self) -> set[str]:
        try:
            return set(read_json(self._path, tuple[str, ...]) or ())
        except UnusableFileError as problem:
            log.warning("router", router=self.config.name, problem=str(problem))
            return set()
