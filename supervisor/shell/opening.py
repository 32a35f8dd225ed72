"""Opens what all servers of a daemon share, from the journal to the router's books."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio.to_thread
import structlog

from supervisor.actions import AnyAction
from supervisor.config import CgroupUse, Config
from supervisor.edge.cgroup import CgroupRoot, find_cgroup_root
from supervisor.edge.fdstore import DescriptorStore
from supervisor.edge.journal import Journal
from supervisor.edge.probe import Prober
from supervisor.edge.process import Household, kernel_tells
from supervisor.edge.process.owner import server_of
from supervisor.edge.tail import Watcher, watcher
from supervisor.edge.webhook import Messenger
from supervisor.events import AnyEvent
from supervisor.shell.devices import Devices
from supervisor.shell.fleet import FleetKeeper
from supervisor.shell.history import HistoryStore
from supervisor.shell.hooks import Hooks
from supervisor.shell.host import Host
from supervisor.shell.hub import Hub
from supervisor.shell.routing import Routing
from supervisor.shell.trees import TreeStore
from supervisor.shell.writer import StateWriter

log = structlog.get_logger()


async def open_host(
    stack: AsyncExitStack,
    config: Config,
    *,
    hub: Hub,
    fleet: FleetKeeper,
    writer: StateWriter,
    store: DescriptorStore,
    heard: Callable[[str, AnyEvent | AnyAction], None],
    record_exits: bool | None,
) -> Host:
    """Whatever is to be closed is closed with the stack. `record_exits` as `Daemon` has it."""
    daemon, state = config.daemon, Path(config.daemon.state_dir)
    stack.push_async_callback(writer.close)  # what is told at the very end is written as well
    journal = Journal(str(state / "journal.db"))
    stack.callback(_last_word_of, journal)  # it comes after the journal's end
    stack.enter_context(journal)
    cgroups = await _cgroups(stack, state) if daemon.cgroups is CgroupUse.AUTO else None
    places: dict[str, str] = {}
    devices = Devices(state, lambda pid: server_of(pid, places), hub.publish, writer=writer)
    hooks = Hooks(state / "hooks", await stack.enter_async_context(Messenger()), daemon.hooks)
    return Host(
        journal=journal,
        watcher=await _watcher(stack),
        prober=await stack.enter_async_context(Prober()),
        cgroups=cgroups,
        places=places,
        hub=hub,
        trees=TreeStore(state / "trees"),
        store=store,
        log_dir=Path(daemon.log_dir),
        state_dir=state,
        environment=dict(os.environ),
        devices=devices,
        household=Household(),  # before the first helper process: they inherit its mark
        history=HistoryStore(state / "history"),
        hooks=hooks,
        fleet=fleet,
        routing=Routing(config, writer),
        evidence_dir=state / "evidence",
        records_exits=not await kernel_tells() if record_exits is None else record_exits,
        writer=writer,
        heard=heard,
    )


def _last_word_of(journal: Journal) -> None:
    """What is lost now nobody can write into it any more."""
    state = journal.state()
    if state.waiting or state.problem:
        why = state.problem or f"the disk of {state.path} does not answer"
        log.warning("journal", problem=f"{why}: its last rows are lost", rows=state.waiting + state.lost)


async def _cgroups(stack: AsyncExitStack, state_dir: Path) -> CgroupRoot | None:
    """Two daemons with different state directories do not share cgroups."""
    label = str(state_dir).strip("/").replace("/", "-") or "default"
    found = await anyio.to_thread.run_sync(find_cgroup_root, label)
    if found is not None:
        stack.callback(found.remove)
    return found


async def _watcher(stack: AsyncExitStack) -> Watcher:
    watch = await stack.enter_async_context(watcher())
    if watch.problem:
        log.warning("logs", problem=watch.problem)
    return watch
