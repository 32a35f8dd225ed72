"""What a server's next process is started with, from its configuration and what the host has for it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from supervisor.config import EnvironmentRefusedError, ServerConfig
from supervisor.edge.process import Limit, SpawnPlan, new_marker
from supervisor.events import SpawnFailed
from supervisor.shell.environment import build
from supervisor.shell.host import Host


def planned(config: ServerConfig, host: Host, attempt: int, gpus: tuple[int, ...]) -> SpawnPlan:
    """Its log's directory is made, too. Blocks as the disk does. EnvironmentRefusedError and OSError when it cannot."""
    path = host.log_path(config.name, attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    _point_current_to(path)
    wanted = (("nofile", config.limits.nofile), ("memlock", config.limits.memlock))
    return SpawnPlan(
        server=config.name,
        attempt=attempt,
        command=config.command,
        environment=build(config, host.environment, gpus),
        log_path=str(path),
        marker=new_marker(config.name, attempt, host.state_dir),
        directory=config.directory or "/",
        user=config.user or "",
        group=config.group or "",
        umask=config.umask,
        nice=config.nice or None,
        oom_score_adj=config.oom_score_adj,
        limits=tuple(Limit(name, value, value) for name, value in wanted if value is not None),
        record_path=str(host.trees.exit_path(config.name)) if host.records_exits else "",
    )


def _point_current_to(path: Path) -> None:
    """`current.log` names the newest attempt's file, for people with `tail -F`."""
    link = path.parent / "current.log"
    new = path.parent / ".current.log.new"
    with contextlib.suppress(OSError):  # a convenience; a read-only or full disk is reported by the spawn itself
        new.unlink(missing_ok=True)
        new.symlink_to(path.name)
        new.replace(link)


def not_prepared(attempt: int, problem: EnvironmentRefusedError | OSError) -> SpawnFailed:
    """The configuration has to be corrected, or the host refuses for now: its disk, its cgroups."""
    if isinstance(problem, EnvironmentRefusedError):
        return SpawnFailed(attempt, str(problem), permanent=True)
    where = f" ({problem.filename})" if problem.filename else ""
    return SpawnFailed(attempt, f"cannot prepare the start{where}: {problem.strerror or problem}", permanent=False)
