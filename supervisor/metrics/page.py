"""The page that Prometheus scrapes: snapshots in, text out. It touches no device, child or disk."""

from __future__ import annotations

import functools
import platform

from supervisor.api.control import Clock, Control, DaemonInfo
from supervisor.api.pulse import Pulse, Stored
from supervisor.core.tally import Account
from supervisor.metrics import families as f
from supervisor.metrics import gpus, servers
from supervisor.metrics.sheet import Memo, Sheet
from supervisor.profile import CommandFacts, EngineMetrics, facts, load_profile

_MEMO = Memo()  # of how things are written: no scrape depends on another


def page(control: Control, *, openmetrics: bool = False) -> str:
    """One scrape."""
    sheet, clock, pulse, configured = Sheet(_MEMO), control.clock(), control.pulse(), control.config().servers
    _daemon(sheet, control.daemon_info(), pulse, clock)
    for snapshot in control.snapshots():
        name = snapshot.name
        account, stored = pulse.accounts.get(name) or Account(), pulse.stored.get(name) or Stored()
        config = configured.get(name)
        model = command_facts(config.engine, config.command).model_path if config else ""
        servers.write(sheet, snapshot, clock, account, stored, model)
    gpus.write(sheet, control.gpus(), pulse.xids, clock)
    return sheet.write(openmetrics=openmetrics)


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
    sheet.add(f.CONFIG_OK, int(pulse.config_ok))
    sheet.add(f.CONFIG_TIME, pulse.config_loaded_wall)
    for disk in pulse.disks:
        sheet.add(f.DISK_FREE, disk.free_bytes, disk.use)
        sheet.add(f.DISK_SIZE, disk.total_bytes, disk.use)
