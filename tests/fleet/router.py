"""A router that hands requests out to the host's servers, and the daemon's keeper of it, in virtual time.

Whom it is to have is decided by the product's own `core.routing`; looking and telling are done here as
`shell.router.RouterKeeper` does them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import anyio

from supervisor.core.routing import Membership, membership_of, plan, retry_s
from supervisor.snapshot import ServerSnapshot

_SOON_S = 0.1
_SOON_MAX_S = 1.0


class Gateway:
    """The router itself: it outlives daemons, and has whom it was told."""

    def __init__(self) -> None:
        self.listed: set[str] = set()
        self.reachable = True


class Keeper:
    """One daemon's."""

    def __init__(
        self, gateway: Gateway, snapshots: Callable[[], Iterable[ServerSnapshot]], changed: Callable[[], None]
    ) -> None:
        self._gateway = gateway
        self._snapshots = snapshots
        self._changed = changed
        self.reachable: bool | None = None
        self._known: set[str] = set()  # whom it has, as of the last look
        self._failures = 0
        self._seen: dict[str, Membership] = {}

    async def run(self, changed: Callable[[int], object]) -> None:
        """Look whenever whom it is to have has changed; when it cannot be asked, again and again."""
        seen = -1
        while True:
            self.look()
            with anyio.move_on_after(retry_s(self._failures) if self._failures else 3600.0):
                while self._memberships() == self._seen:
                    seen = await changed(seen)  # type: ignore[misc]

    def look(self) -> None:
        """Ask, and tell what is missing."""
        self._seen = self._memberships()
        before = (self.reachable, set(self._known))
        self.reachable = self._gateway.reachable
        self._failures = 0 if self.reachable else self._failures + 1
        if self.reachable:
            due = plan(self._seen, self._gateway.listed)
            self._gateway.listed |= set(due.joining)
            self._gateway.listed -= set(due.leaving)
            self._known = set(self._gateway.listed)
        if before != (self.reachable, self._known):
            self._changed()

    async def leave(self, server: str, limit_s: float) -> str:
        """Why it has not let go in time, "" when it has."""
        with anyio.move_on_after(limit_s):
            while True:
                self.look()
                if self.reachable and server not in self._known:
                    return ""
                await anyio.sleep(min(_SOON_S * max(1, self._failures), _SOON_MAX_S))
        return "it did not let go"

    def missing(self, server: str) -> str:
        """Whether it hands requests to the server, as far as the last look told."""
        return "" if self.reachable and server in self._known else "router"

    def _memberships(self) -> dict[str, Membership]:
        return {one.name: membership_of(one) for one in self._snapshots()}
