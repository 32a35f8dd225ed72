"""Watches one attempt while it lives: its processes, its engine's counters, its devices' memory, its canary."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Collection

import anyio
import msgspec

from supervisor.actions import AskCanary, CountRequests
from supervisor.core.log.rules import rule_index
from supervisor.core.settings import Settings
from supervisor.edge import canary, engine_metrics
from supervisor.edge.evidence import Subject
from supervisor.edge.probe import connectable, local_client
from supervisor.edge.process import Tree
from supervisor.edge.treewatch import Rules, TreeWatch
from supervisor.events import AnyEvent, DeviceMemorySampled, EngineSampled, RequestsCounted, RoleDied
from supervisor.pace import until_shared
from supervisor.profile import CommandFacts, Profile
from supervisor.shell import clock
from supervisor.shell.host import Host
from supervisor.snapshot import ServerSnapshot

LOOK_LIMIT_S = 2.5
SCAN_SHARE = 100  # without a cgroup, finding members reads all of /proc: at most a hundredth of the time
MEMORY_STEP_BYTES = 16 * 2**20


class Periods(msgspec.Struct, frozen=True):
    """How often is looked. A death is told at once all the same."""

    starting_s: float = 2.0
    serving_s: float = 10.0
    absent_s: float = 60.0  # an engine without a metrics page is asked again: what answered 404 may not have been it


_PERIODS = Periods()


class ServerWatch:
    """Made when the attempt has been spawned. `run` until `stop`; `quiet` once its end has been asked for."""

    def __init__(
        self,
        tree: Tree,
        settings: Settings,
        profile: Profile,
        facts: CommandFacts,
        api_key: str,
        host: Host,
        post: Callable[[AnyEvent], Awaitable[None]],
        snapshot: Callable[[], ServerSnapshot],
        periods: Periods = _PERIODS,
    ) -> None:
        self._periods = periods
        self._tree = tree
        self._settings = settings
        self._profile = profile
        self._base = f"http://{connectable(facts.host)}:{settings.port}" if settings.port else ""
        self._api_key = api_key
        self._host = host
        self._post = post
        self._snapshot = snapshot
        cgroup = host.cgroups.server(tree.server) if host.cgroups and tree.cgroup else None
        rules = Rules(profile.roles, profile.compilers, rule_index(profile).canonical)
        self._processes = TreeWatch(
            tree.attempt, tree.pid, rules, self._members, cgroup.cpu_s if cgroup else lambda: None
        )
        self._client = local_client()
        self._scope = anyio.CancelScope()
        self._quiet = False
        self._scan_at = -math.inf
        self._memory: int | None = None

    async def run(self) -> None:
        """Post what is seen until stopped."""
        try:
            with self._scope:
                async with self._client, anyio.create_task_group() as tasks:
                    tasks.start_soon(self._samples, name=f"{self._settings.name}: samples")
                    tasks.start_soon(self._deaths, name=f"{self._settings.name}: deaths")
                    tasks.start_soon(self._counters, name=f"{self._settings.name}: counters")
        finally:
            self._processes.close()

    def quiet(self) -> None:
        """The attempt was asked to end: its processes die now, and that is no news."""
        self._quiet = True

    @property
    def first_death(self) -> RoleDied | None:
        """Who with a role ended first of all, unless the end was asked for."""
        return None if self._quiet else self._processes.first_death

    def stop(self) -> None:
        """Look no more."""
        self._scope.cancel()

    async def subjects(self) -> tuple[Subject, ...]:
        """Who is there now, for the evidence; at worst who was there at the last look."""
        self._scan_at = -math.inf
        with anyio.move_on_after(LOOK_LIMIT_S), contextlib.suppress(OSError):
            await self._processes.sample()
        return tuple(
            Subject(one.pid, one.role, one.rank, one.title or one.name, one.pid == self._tree.pid)
            for one in self._processes.members()
            if one.alive
        )

    async def ask(self, action: AskCanary) -> None:
        """One small real request; its answer is posted."""
        if self._base and not self._client.is_closed:
            await self._post(await canary.ask(self._client, action, self._base, self._profile.canary, self._api_key))

    async def count(self, action: CountRequests) -> None:
        """How many requests the engine has now; its counters are posted as well."""
        if not self._base or self._client.is_closed:
            await self._post(RequestsCounted(action.attempt, None, "no port is known where it could be asked"))
            return
        read = await engine_metrics.read(self._client, action.attempt, self._base, self._profile.metrics, self._api_key)
        if isinstance(read, EngineSampled):
            await self._post(read)
        await self._post(_counted(action.attempt, read))

    # --- processes and devices -----------------------------------------------------------------------------------

    async def _samples(self) -> None:
        async for sample in self._processes.samples(self._period_s):
            await self._post(sample)
            if (memory := self._device_memory()) is not None:
                await self._post(memory)

    async def _deaths(self) -> None:
        async for died in self._processes.deaths():
            if not self._quiet:
                await self._post(died)

    async def _members(self) -> Collection[int]:
        if self._tree.cgroup is not None:
            recorder = self._tree.recorder.pid if self._tree.recorder is not None else 0
            return [pid for pid in self._tree.cgroup.pids() if pid != recorder]
        began = clock.monotonic()
        if began < self._scan_at:
            return ()  # those seen before are looked at all the same
        members = await self._tree.members()
        self._scan_at = began + SCAN_SHARE * (clock.monotonic() - began)
        return [process.pid for process in members]

    def _device_memory(self) -> DeviceMemorySampled | None:
        """None when nobody can see the devices, the server has none, or nothing worth a word has moved."""
        name = self._settings.name
        if not self._host.devices.leased(name):
            return None
        view = self._host.devices.view()
        if view.sight != "seeing":
            return None
        held = sum(holder.bytes for gpu in view.gpus for holder in gpu.holders if holder.server == name)
        if self._memory is not None and abs(held - self._memory) < MEMORY_STEP_BYTES:
            return None
        self._memory = held
        return DeviceMemorySampled(self._tree.attempt, held)

    # --- the engine's own word -----------------------------------------------------------------------------------

    async def _counters(self) -> None:
        names = self._profile.metrics
        if not names.path or not self._base:
            return
        pause_s = self._periods.starting_s
        while True:
            await anyio.sleep(until_shared(pause_s, clock.monotonic()))
            pause_s = await self._count() if self._countable() else self._periods.starting_s

    async def _count(self) -> float:
        """Read the counters once; after how many seconds it is worth while again."""
        read = await engine_metrics.read(
            self._client, self._tree.attempt, self._base, self._profile.metrics, self._api_key
        )
        if isinstance(read, EngineSampled):
            await self._post(read)
            return self._period_s()
        return self._periods.absent_s if read.absent else self._periods.serving_s

    def _serving(self) -> bool:
        return self._snapshot().lifecycle.value == "running"

    def _countable(self) -> bool:
        return self._snapshot().lifecycle.value in ("running", "draining")

    def _period_s(self) -> float:
        seldom = self._serving() and not self._stands_still()
        return self._periods.serving_s if seldom else self._periods.starting_s

    def _stands_still(self) -> bool:
        """Whether somebody was stopped, or in the kernel, at the last look: whether he still is decides about all."""
        return any(one.role and one.alive and one.state in "TtD" for one in self._processes.members())


def _counted(attempt: int, read: EngineSampled | engine_metrics.NoCounters) -> RequestsCounted:
    if not isinstance(read, EngineSampled):
        return RequestsCounted(attempt, None, read.reason)
    if read.running is None:
        return RequestsCounted(attempt, None, "its metrics page does not count running requests")
    return RequestsCounted(attempt, int(read.running + (read.queued or 0)))
