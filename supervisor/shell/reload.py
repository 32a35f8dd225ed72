"""Reads the configuration file again for `systemctl reload`: applies what is free, tells the price of the rest."""

from __future__ import annotations

import structlog

from supervisor.config import ConfigError, Differences
from supervisor.shell.changes import Changes
from supervisor.shell.service import Service

log = structlog.get_logger()

BY = "SIGHUP"


async def reload(changes: Changes, service: Service) -> None:
    """systemd waits for it. What was in force stays when the file cannot be used."""
    service.reloading()
    await _reread(changes)
    service.ready()


async def _reread(changes: Changes) -> None:
    """Nobody who reloads a daemon wants to wait an hour for its servers: restarts are left to `sglctl update`."""
    try:
        _tell(await changes.reread())
        await changes.reroute(BY, free_only=True)
        await changes.apply((), BY, free_only=True)
    except ConfigError as problem:
        log.error("configuration refused", problems=list(problem.problems), effect="nothing was changed")


def _tell(found: Differences) -> None:
    for change in found.servers:
        keys = [one.key for one in change.keys]
        price = "a restart, by sglctl update" if change.restart_needed or change.kind == "disappeared" else "none"
        log.info("configuration differs", server=change.name, kind=change.kind, keys=keys, price=price)
    for router in found.routers:
        price = "its servers, by sglctl update" if router.kind == "disappeared" else "none"
        keys = [one.key for one in router.keys]
        log.info("configuration differs", router=router.name, kind=router.kind, keys=keys, price=price)
    if found.daemon:
        log.info("configuration differs", keys=[one.key for one in found.daemon], effect="with the next start")
    if not found.servers and not found.daemon and not found.routers:
        log.info("configuration unchanged")
