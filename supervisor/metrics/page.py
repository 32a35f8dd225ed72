"""The page that Prometheus scrapes: snapshots in, text out. It touches no device, child or disk."""

from __future__ import annotations

import functools
import platform
from collections.abc import Sequence

from supervisor.api.control import Clock, Control, DaemonInfo, RouterFacts
from supervisor.api.pulse import Pulse, Stored
from supervisor.config import ServerConfig, config_hash
from supervisor.core.tally import Account
from supervisor.metrics import accounts, gpus, servers
from supervisor.metrics import families as f
from supervisor.metrics.servers import Known
from supervisor.metrics.sheet import Memo, Sheet
from supervisor.profile import CommandFacts, EngineMetrics, facts, load_profile

_MEMO = Memo()  # of how things are written: no scrape depends on another
ADOPTIONS = ("adopted", "gone")
_HASHES: dict[str, tuple[ServerConfig, str]] = {}  # by name, of which nobody has thousands
_NOTHING, _UNMEASURED = Account(), Stored()


def page(control: Control, *, openmetrics: bool = False) -> str:
    """One scrape."""
    sheet, clock, pulse, configured = Sheet(_MEMO), control.clock(), control.pulse(), control.config().servers
    info = control.daemon_info()
    _daemon(sheet, info, pulse, clock)
    _routers(sheet, info.routers)
    for snapshot in control.snapshots():
        servers.write(sheet, snapshot, clock, _known(snapshot.name, configured.get(snapshot.name), pulse))
        account = pulse.accounts.get(snapshot.name, _NOTHING)
        sheet.book(snapshot.name, account, functools.partial(accounts.write, name=snapshot.name, account=account))
    gpus.write(sheet, control.gpus(), pulse.xids, clock)
    return sheet.write(openmetrics=openmetrics)


def _routers(sheet: Sheet, routers: Sequence[RouterFacts]) -> None:
    for one in routers:
        if one.reachable is not None:
            sheet.add(f.ROUTER_UP, int(one.reachable), one.name, one.kind)
        sheet.add(f.ROUTER_SERVERS, one.servers, one.name)


def _known(name: str, config: ServerConfig | None, pulse: Pulse) -> Known:
    return Known(
        model=command_facts(config.engine, config.command).model_path if config else "",
        config_hash=_hash_of(config) if config else "",
        stored=pulse.stored.get(name, _UNMEASURED),
        processes=pulse.processes.get(name),
        log_lag_bytes=pulse.log_lag_bytes.get(name),
        log_segments=pulse.host.segments.get(name, 0),
    )


def _hash_of(config: ServerConfig) -> str:
    """Written anew only for another configuration: it takes longer than the rest of a server."""
    known = _HASHES.get(config.name)
    if known is None or known[0] is not config:
        known = _HASHES[config.name] = (config, config_hash(config))
    return known[1]


@functools.lru_cache(maxsize=256)
def command_facts(engine: str, command: tuple[str, ...]) -> CommandFacts:
    """What the command line says, read once per command."""
    return facts(load_profile(engine), command)


@functools.lru_cache(maxsize=16)
def engine_metrics(engine: str) -> EngineMetrics:
    """Where an engine has its own metrics."""
    return load_profile(engine).metrics


def _daemon(sheet: Sheet, info: DaemonInfo, pulse: Pulse, clock: Clock) -> None:
    sheet.add(f.BUILD, 1, info.version, platform.python_version())
    sheet.add(f.START_TIME, info.started_wall)
    sheet.add(f.SNAPSHOT_TIME, clock.wall)
    sheet.add(f.LOOP_LAG, round(pulse.lag_s, 4))
    sheet.add(f.LOOP_OVERDUE, round(pulse.overdue_s, 4))
    sheet.add(f.WATCHDOG_TIME, pulse.watchdog_wall)
    sheet.each(f.ADOPTIONS, ADOPTIONS, pulse.host.adoptions)
    sheet.add(f.ORPHANS, pulse.host.orphans_reaped)
    sheet.add(f.GPU_READER_RESTARTS, pulse.host.reader_restarts)
    for request, times in pulse.host.requests.items():
        sheet.add(f.REQUESTS, times, *request.split(" "))
    sheet.add(f.CONFIG_OK, int(pulse.config_ok))
    sheet.add(f.CONFIG_TIME, pulse.config_loaded_wall)
    sheet.add(f.STATE_WRITTEN, int(not pulse.state_problem))
    sheet.add(f.HANGING, pulse.hanging)
    sheet.add(f.JOURNAL_LOST, pulse.journal_lost)
    sheet.add(f.JOURNAL_WRITTEN, int(not pulse.journal_problem))
    for disk in pulse.disks:
        sheet.add(f.DISK_FREE, disk.free_bytes, disk.use)
        sheet.add(f.DISK_SIZE, disk.total_bytes, disk.use)
