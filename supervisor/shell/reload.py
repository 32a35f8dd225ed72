"""Reads the configuration file again and tells what it would change; a broken file changes nothing."""

from __future__ import annotations

import anyio.to_thread
import structlog

from supervisor.config import Config, ConfigError, Differences, differences, load

log = structlog.get_logger()


async def told_differences(running: Config, path: str) -> Differences | None:
    """One log line a changed server, with its price. None when the file cannot be used."""
    try:
        read = await anyio.to_thread.run_sync(load, path)
    except ConfigError as problem:
        log.error("configuration refused", problems=list(problem.problems), effect="nothing was changed")
        return None
    found = differences(running, read)
    for change in found.servers:
        keys = [one.key for one in change.keys]
        log.info(
            "configuration differs", server=change.name, kind=change.kind, keys=keys, restart=change.restart_needed
        )
    if found.daemon:
        log.info("configuration differs", keys=[one.key for one in found.daemon], effect="with the next start")
    if not found.servers and not found.daemon:
        log.info("configuration unchanged", path=path)
    return found
