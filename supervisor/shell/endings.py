"""Decides what a SIGTERM means for the servers: a restart of the daemon leaves them running, a stop stops them."""

from __future__ import annotations

import structlog

from supervisor.edge.unitjob import UnitJob, job_of, own_unit

log = structlog.get_logger()


async def leaves_servers(under_systemd: bool) -> bool:
    """Whether the daemon goes alone. Only a restart job of our own unit says so.

    Whatever cannot be told is a stop: a container engine has no systemctl and kills what does not end by itself, and
    devices that stay taken after a stop are worse than a restart that takes its time.
    """
    unit = own_unit() if under_systemd else None
    if unit is None:
        return False
    job = await job_of(unit)
    log.info("asked systemd for its job", unit=unit.name, job=str(job))
    match job:
        case UnitJob.RESTART:
            return True
        case UnitJob.STOP | UnitJob.NONE:
            return False
        case UnitJob.UNKNOWN:
            log.warning("cannot tell a restart from a stop: systemctl did not answer; the servers are stopped")
            return False
