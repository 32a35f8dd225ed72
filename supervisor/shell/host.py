"""What all servers of the daemon share: the edges, the directories, the journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.actions import AnyAction
from supervisor.edge.cgroup import CgroupRoot
from supervisor.edge.fdstore import DescriptorStore
from supervisor.edge.journal import Journal
from supervisor.edge.probe import Prober
from supervisor.edge.process import Household
from supervisor.edge.tail import Watcher
from supervisor.events import AnyEvent
from supervisor.shell.devices import Devices
from supervisor.shell.fleet import FleetKeeper
from supervisor.shell.history import HistoryStore
from supervisor.shell.hooks import Hooks
from supervisor.shell.hub import Hub
from supervisor.shell.portbook import PortBook
from supervisor.shell.routing import Routing
from supervisor.shell.trees import TreeStore
from supervisor.shell.writer import StateWriter


@dataclass
class Host:
    """Made once by the daemon."""

    journal: Journal
    watcher: Watcher
    prober: Prober
    cgroups: CgroupRoot | None
    hub: Hub
    trees: TreeStore
    store: DescriptorStore
    log_dir: Path
    state_dir: Path
    environment: Mapping[str, str]
    devices: Devices
    household: Household
    history: HistoryStore
    hooks: Hooks
    fleet: FleetKeeper
    evidence_dir: Path = field(default=Path())
    records_exits: bool = False  # the kernel tells an exit status to the parent alone
    places: dict[str, str] = field(default_factory=dict)  # paths of cgroups, by which the owner of a process is found
    kernel_heard: bool = False  # the kernel's log is read: what it does not tell has not happened
    ports: PortBook = field(default_factory=PortBook)
    routing: Routing = field(default_factory=Routing)
    writer: StateWriter = field(default_factory=StateWriter)
    findings: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of each server's last preflight
    heard: Callable[[str, AnyEvent | AnyAction], None] = lambda _, __: None  # counts what passes through a mailbox

    def release(self, server: str) -> None:
        """The server rests, and what it had is proven free: others may have its devices and ports."""
        self.devices.release_lease(server)
        self.ports.release(server)

    def hear_kernel(self, heard: bool) -> None:
        """Note whether the kernel's log can be read."""
        self.kernel_heard = heard

    def log_path(self, server: str, attempt: int) -> Path:
        """Every attempt writes a file of its own: the kernel appends, nobody rotates under the writer's feet."""
        return self.log_dir / server / f"{attempt:06d}.log"

    def last_attempt(self, server: str) -> int:
        """The highest attempt that has a log; attempts are counted on across restarts of the daemon."""
        names = (path.stem for path in (self.log_dir / server).glob("*.log"))
        return max((int(name) for name in names if name.isdigit()), default=0)
