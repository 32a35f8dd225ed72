"""Asks the fleet before each start whether it is this server's turn, and shows people who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import anyio

from supervisor.config import Config
from supervisor.config.groups import Ties, ties
from supervisor.core.fleet.member import Member, member
from supervisor.core.fleet.needs import Admission, Refuse, Wait
from supervisor.core.fleet.starts import Fleet, Rules
from supervisor.core.fleet.view import FleetView, view
from supervisor.core.lifecycle import State
from supervisor.shell import clock
from supervisor.shell.hub import Hub
from supervisor.snapshot import ServerSnapshot

# A look is answered within 10 s, and what follows the turn (devices, ports, preflight, hook) needs its time as well.
_MOMENTS_S = 4.0
_ASK_ANEW_S = 1.0
AGAIN_S = 0.25


class FleetKeeper:
    """One for the daemon. `config` is the one in force, `snapshots` are those of all servers, as they are now."""

    def __init__(
        self,
        hub: Hub,
        config: Callable[[], Config],
        snapshots: Callable[[], Iterable[ServerSnapshot]],
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._hub = hub
        self._config = config
        self._snapshots = snapshots
        self._monotonic = monotonic
        self._followed: Config | None = None
        self._fleet = Fleet(Rules())
        self._told: dict[str, str] = {}
        self._came: dict[str, float] = {}  # when the turn of one that had been told to wait came
        self._given_back = 0  # slots, after a look
        self._seen_at = -1
        self._seen: tuple[object, ...] = ()
        self.refused: set[str] = set()  # given up because one that they require was

    @property
    def ties(self) -> Mapping[str, Ties]:
        """Of all servers."""
        return self._current().rules.ties

    def mates(self, name: str) -> tuple[str, ...]:
        """Those that the server restarts together with."""
        return self.ties.get(name, Ties()).mates

    @property
    def held(self) -> set[str]:
        """Who is about to be ended: nobody may count on them. The keeper of ends writes it."""
        return self._current().held

    def members(self) -> dict[str, Member]:
        """All servers as they are now."""
        now = self._monotonic()
        return {snapshot.name: member(snapshot, now) for snapshot in self._snapshots()}

    async def admitted(self, name: str) -> Admission:
        """Whether the server may start. What has been told already is not told again at once, but waited for here."""
        until = self._monotonic() + _MOMENTS_S
        answer = self._ask(name)
        while isinstance(answer, Wait) and answer.reason == self._told.get(name) and self._monotonic() < until:
            await self._something_new()
            answer = self._ask(name)
        if isinstance(answer, Wait):
            self._told[name] = answer.reason
        elif self._told.pop(name, None) is not None:
            self._came[name] = self._monotonic()
        if isinstance(answer, Refuse):
            self.refused.add(name)
        return answer

    async def _something_new(self) -> None:
        """A state that decides about starts has changed; or some time has passed, which decides about them as well."""
        with anyio.move_on_after(_ASK_ANEW_S):
            seen, scene = self._hub.count, self._scene()
            while scene == self._scene():
                seen = await self._hub.changed(seen)

    def _scene(self) -> tuple[object, ...]:
        """Changes of phases, bars and logs come many times a second; what matters here is looked at once for each."""
        if self._hub.count != self._seen_at:
            self._seen_at = self._hub.count
            states = (
                (one.lifecycle.value, one.goal, one.readiness.value, one.verdict.value) for one in self._snapshots()
            )
            self._seen = (self._given_back, frozenset(self.held), *states)
        return self._seen

    def looked(self, name: str, *, free: bool) -> Admission:
        """What the look at its devices, ports and model found; what is in the way gives its turn to the next."""
        if not free:
            self._given_back += 1
            self._hub.publish()
        return self._current().looked(name, self.members(), self._monotonic(), free=free)

    def claims(self, name: str) -> bool:
        """Whether it still looks for what its start needs: else a look that ends late must give nothing back."""
        return any(one.name == name and _claims(one) for one in self._snapshots())

    def told(self, snapshot: ServerSnapshot) -> str:
        """Whom the server's start waits for, "" when it waits for nobody."""
        return self._told.get(snapshot.name, "") if _claims(snapshot) else ""

    def came(self, snapshot: ServerSnapshot) -> float | None:
        """When its turn came, if it had to wait for it and has not been launched since."""
        came = self._came.get(snapshot.name)
        return came if came is not None and _claims(snapshot) and came >= snapshot.lifecycle.since else None

    def may_start_again(self) -> list[str]:
        """Those that were given up because of another server, which is there now or about to come."""
        if not self.refused:
            return []
        members = self.members()
        for name in [name for name in self.refused if name not in members or members[name].alive]:
            self.refused.discard(name)
        return [name for name in self.refused if self._current().may_be_asked_again(name, members)]

    def view(self) -> FleetView:
        """Who starts, who waits, and when all will be ready."""
        return view(self._current(), self.members(), self._monotonic())

    def _ask(self, name: str) -> Admission:
        """While a new daemon takes the servers up, who is still to come may be starting, or be what this one needs."""
        members = self.members()
        if missing := [one for one in self._config().servers if one not in members]:
            return Wait(f"waits for {missing[0]}, which is not there yet")
        return self._current().ask(name, members, self._monotonic())

    def _current(self) -> Fleet:
        """The fleet, with the rules of the configuration in force."""
        config = self._config()
        if config != self._followed:
            priorities = {name: server.priority for name, server in config.servers.items() if server.priority}
            self._fleet.rules = Rules(config.daemon.start_slots, priorities, ties(config))
            self._followed = config
        return self._fleet


def _claims(snapshot: ServerSnapshot) -> bool:
    return snapshot.lifecycle.value == State.RECLAIMING and snapshot.goal == "up"
