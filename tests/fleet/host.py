"""The simulated host: processes, GPU memory, files on disk. It knows the truth that a daemon has to find out."""

from __future__ import annotations

import math

import msgspec

from supervisor import events as e
from supervisor.core.gpus.attribution import MIB
from supervisor.devices import DeviceRecord, Gpu, GpuMemory, GpuProcess, GpuSample, ProcessOwner
from supervisor.events import Spawned
from supervisor.saved import SavedServer

IDLE = 500 * MIB
HELD = 40_000 * MIB
TOTAL = 80_000 * MIB
_CRUMBS = 900_000  # pids of processes that are gone and still listed
_STRANGERS = 800_000


class Tree:
    """The processes of one attempt: a leader, and ranks that hold memory of the devices."""

    def __init__(self, server: str, attempt: int, devices: tuple[int, ...], born: float) -> None:
        self.server = server
        self.attempt = attempt
        self.devices = devices
        self.born = born
        self.pid = 1000 + attempt
        self.leader = True
        self.ranks = True
        self.code: int | None = None  # the leader's, once it has ended
        self.health = e.ProbeOutcome.REFUSED
        self.deaf = False
        self.stuck = False
        self.written: list[tuple[float, str]] = []

    @property
    def alive(self) -> bool:
        """Whether a process of it exists."""
        return self.leader or self.ranks

    def answers(self, outcome: e.ProbeOutcome) -> None:
        """To every probe from now on."""
        self.health = outcome

    def die(self) -> None:
        """Every process ends."""
        self.leader = self.ranks = False


class Disk:
    """What survives the daemon, as bytes."""

    def __init__(self) -> None:
        self.saved: dict[str, bytes] = {}
        self.notes: dict[str, Spawned] = {}  # pid 0: about to be spawned
        self.devices = b"[]"
        self.attempts: dict[str, int] = {}  # the highest that has a log

    def read(self, server: str) -> SavedServer | None:
        """The server's record."""
        data = self.saved.get(server)
        return msgspec.json.decode(data, type=SavedServer) if data else None

    def records(self) -> tuple[DeviceRecord, ...]:
        """The devices'."""
        return msgspec.json.decode(self.devices, type=tuple[DeviceRecord, ...])


class Host:
    """One machine. Everything that happens to it is told by the fleet."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.disk = Disk()
        self.trees: list[Tree] = []
        self.strangers: set[int] = set()  # devices on which somebody else's process holds memory
        self.crumbs: dict[int, float] = {}  # devices whose memory the dead still hold, until when
        self.leftover_s = 0.3  # how long memory outlives its process
        self.ready_after_s: float | None = None  # how long starts take that nothing disturbs; None: they never end
        self.spawn_takes_s = math.inf  # at most
        self.canaries: tuple[bool | None, ...] = (True, True, False, None)
        self.broken: set[tuple[str, ...]] = set()  # commands that end at once

    def living(self, server: str) -> list[Tree]:
        """The server's trees that have processes."""
        return [tree for tree in self.trees if tree.server == server and tree.alive]

    def on_device(self, device: int) -> list[Tree]:
        """Trees whose processes hold its memory."""
        return [tree for tree in self.trees if tree.ranks and device in tree.devices]

    def bury(self, tree: Tree, now: float) -> None:
        """All its processes end; their memory comes back a moment later."""
        if tree.alive:
            for device in tree.devices:
                self.crumbs[device] = max(self.crumbs.get(device, 0.0), now + self.leftover_s)
        tree.die()
        self.trees = [one for one in self.trees if one.alive]

    def sample(self, now: float) -> tuple[GpuSample, tuple[ProcessOwner, ...]]:
        """What the driver says, and whose its processes are."""
        gpus = tuple(self._gpu(device, now) for device in range(self.gpus))
        return GpuSample(now, devices=gpus), self.owners()

    def owners(self) -> tuple[ProcessOwner, ...]:
        """Who the living processes are."""
        ours = tuple(ProcessOwner(tree.pid, server=tree.server) for tree in self.trees if tree.ranks)
        return ours + tuple(ProcessOwner(_STRANGERS + device, "bob") for device in self.strangers)

    def _gpu(self, device: int, now: float) -> Gpu:
        processes = [GpuProcess(tree.pid, HELD) for tree in self.on_device(device)]
        if device in self.strangers:
            processes.append(GpuProcess(_STRANGERS + device, HELD // 4))
        if self.crumbs.get(device, 0.0) > now:
            processes.append(GpuProcess(_CRUMBS + device, HELD // 4, alive=False))
        used = IDLE + sum(process.bytes or 0 for process in processes)
        return Gpu(device, f"GPU-{device}", memory=GpuMemory(TOTAL, used, TOTAL - used), processes=tuple(processes))
