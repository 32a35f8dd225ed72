"""Looks whether one server may start here, or has given back what was its own: devices, ports, room for its log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import assert_never

from msgspec.structs import replace

from supervisor.actions import CheckDevices
from supervisor.config import ServerConfig
from supervisor.core.fleet.needs import Admission, Go, Refuse, Wait
from supervisor.core.settings import Settings
from supervisor.edge import hostwatch, listener
from supervisor.events import DevicesChecked
from supervisor.ports import PortUse
from supervisor.profile import CommandFacts
from supervisor.shell import clock
from supervisor.shell.fleet import AGAIN_S
from supervisor.shell.host import Host
from supervisor.shell.preflight import findings_before_start, refusal, told
from supervisor.units import format_bytes

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the kernel's, not a file of ours
_LOW_BYTES = 512 << 20  # of shared memory and of the log's disk: a start goes on, and its reason says so
_FULL_BYTES = 1 << 20
RECENT_S = 60.0  # a restart within it goes by the last preflight: a child that looks again would be most of its time


class Premises:
    """One server's. Everything is asked anew at each look, but for what a preflight has just passed."""

    def __init__(
        self,
        config: ServerConfig,
        settings: Settings,
        facts: CommandFacts,
        host: Host,
        recent_s: float = RECENT_S,
    ) -> None:
        self._config = config
        self._recent_s = recent_s
        self._passed: tuple[float, tuple[int, ...]] | None = None  # the last preflight without errors, on which devices
        self._host = host
        self._fleet = host.fleet
        own = (PortUse(settings.port, "requests"),) if settings.port else ()
        self._ports = own + facts.ports
        self._since = 0.0
        self._waiting = False

    def hold(self) -> None:
        """A server that already runs keeps its ports: no other one of ours may start for them."""
        self._host.ports.claim(self._config.name, self._ports)

    async def look(self, action: CheckDevices) -> DevicesChecked:
        """The answer to the action. Only looks at the devices from the beginning of a wait on count."""
        if action.start and (turn := await self._turn(action.attempt, await self._fleet.admitted(self._config.name))):
            self._waiting = False
            return turn
        found = await self._look(action)
        if not action.start:
            return found
        turn = await self._turn(action.attempt, self._fleet.looked(self._config.name, free=found.clean is not False))
        return turn or found

    async def _turn(self, attempt: int, answer: Admission) -> DevicesChecked | None:
        """None: it is this server's turn. What it had is others' while it waits, once that is proven to be free."""
        match answer:
            case Go():
                return None
            case Refuse(reason):
                return DevicesChecked(attempt, False, reason, refuse=True)
            case Wait(reason):
                own = await self._host.devices.settled(self._config, attempt, self._since, start=False)
                if own.clean is not False and self._fleet.claims(self._config.name):
                    self._host.release(self._config.name)
                return DevicesChecked(attempt, False, reason, waiting=True, again_s=AGAIN_S)
            case _:
                assert_never(answer)

    def hook_says_no(self) -> None:
        """A hook has it wait or refuses it: the next in line may start meanwhile."""
        self._fleet.looked(self._config.name, free=False)

    async def _look(self, action: CheckDevices) -> DevicesChecked:
        if not self._waiting:
            self._since = clock.monotonic()
        found = await self._host.devices.settled(self._config, action.attempt, self._since, start=action.start)
        if action.start and found.clean is not False:
            found = await self._look_around(found)
        if action.start and found.clean is not False:
            found = await self._preflight(found, action.force)
        self._waiting = found.clean is False
        return found

    async def _look_around(self, found: DevicesChecked) -> DevicesChecked:
        held = self._host.ports.claim(self._config.name, self._ports) or [text async for text in self._held()]
        if held:
            if self._fleet.claims(self._config.name):  # found free, and others may start on them meanwhile
                self._host.devices.release_lease(self._config.name)
            return DevicesChecked(found.attempt, False, "; ".join(held), ports=tuple(held))
        full, low = await self._space()
        if full:
            return DevicesChecked(found.attempt, False, "; ".join(full), waiting=True)
        return replace(found, reason="; ".join(filter(None, (found.reason, *low))))

    async def _preflight(self, found: DevicesChecked, force: bool) -> DevicesChecked:
        """Last, when nothing else is in the way: what the start itself would end with."""
        devices, name = self._host.devices, self._config.name
        leased = devices.leased(name)
        if (
            self._passed is not None
            and clock.monotonic() - self._passed[0] < self._recent_s
            and self._passed[1] == leased
        ):
            return found
        findings = await findings_before_start(self._config, self._host.environment, devices.view(), leased)
        self._host.findings[name] = told(findings)
        why_not = refusal(findings)
        self._passed = None if why_not else (clock.monotonic(), leased)
        if not why_not or force:
            return found
        return replace(found, clean=False, reason=why_not, refuse=True)

    async def _held(self) -> AsyncIterator[str]:
        for use in self._ports:
            holder = await listener.holder(use.port)
            if holder is not None:
                yield str(holder) if use.purpose == "requests" else f"{holder} (needed for {use.purpose})"

    async def _space(self) -> tuple[list[str], list[str]]:
        """What is full, and what is nearly so. Shared memory matters where there are devices: ranks talk by it."""
        full, low = [], []
        for path, matters in ((str(self._host.log_dir), True), (SHARED_MEMORY, bool(self._config.gpus.size))):
            free = await hostwatch.free_bytes(path) if matters else None
            if free is None:  # not there, or it does not answer: unknown is no reason to wait
                continue
            if free < _FULL_BYTES:
                full.append(f"{path} is full: {format_bytes(free)} are left of its file system")
            elif free < _LOW_BYTES:
                low.append(f"{path} is nearly full: {format_bytes(free)} are left")
        return full, low
