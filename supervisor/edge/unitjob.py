"""Says which job systemd is running for our unit, because a SIGTERM alone does not tell a restart from a stop."""

from __future__ import annotations

import enum
import os
import subprocess
from pathlib import Path

import msgspec

from supervisor.threads import Threads

ASK_LIMIT_S = 10.0  # systemd is busy during a shutdown; TimeoutStopSec is minutes
_asking = Threads("systemd", 2)
_RESTARTS = frozenset({"restart", "try-restart", "reload-or-start"})
_STOPS = frozenset({"stop"})


class UnitJob(enum.StrEnum):
    """What systemd is doing with the unit at this moment."""

    STOP = "stop"
    RESTART = "restart"
    NONE = "none"  # nobody asked systemd for anything: the signal came from elsewhere
    UNKNOWN = "unknown"  # systemd cannot be asked


class Unit(msgspec.Struct, frozen=True):
    """A unit's name, and whether it is the user's own systemd that has it."""

    name: str
    of_user: bool = False


def own_unit(cgroup: str | None = None) -> Unit | None:
    """The unit that this process belongs to, from /proc/self/cgroup; None outside of any service or scope."""
    text = Path("/proc/self/cgroup").read_text() if cgroup is None else cgroup
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        if controllers == "name=systemd" or (number == "0" and not controllers):
            unit = _unit_of(path)
            if unit is not None:
                return unit
    return None


def _unit_of(path: str) -> Unit | None:
    """The first unit below the slices is ours; what follows are its sub-cgroups. Only user@UID.service holds others."""
    of_user = False
    for part in path.split("/"):
        if not part.endswith((".service", ".scope")):
            continue
        if part.startswith("user@") and not of_user:
            of_user = True
            continue
        return Unit(part, of_user)
    return None


async def job_of(unit: Unit, *, program: str = "systemctl", limit_s: float = ASK_LIMIT_S) -> UnitJob:
    """The job of the unit that is waiting or running. Bounded; UNKNOWN when systemctl is missing, fails or hangs."""
    try:
        return await _asking.run(_ask, unit, program, limit_s, limit_s=limit_s + 1.0)
    except TimeoutError:
        return UnitJob.UNKNOWN


def _ask(unit: Unit, program: str, limit_s: float) -> UnitJob:
    """`list-jobs`, since no property of a unit holds its job's type. It works without D-Bus for root."""
    words = [program, *(["--user"] if unit.of_user else []), "list-jobs", "--no-legend", "--no-pager", "--full"]
    # Without NOTIFY_SOCKET: a helper has nothing to tell in our name.
    environment = {name: text for name, text in os.environ.items() if name != "NOTIFY_SOCKET"} | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            words,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
    except (OSError, subprocess.TimeoutExpired):
        return UnitJob.UNKNOWN
    return parse_jobs(done.stdout, unit.name) if done.returncode == 0 else UnitJob.UNKNOWN


def parse_jobs(listed: str, unit: str) -> UnitJob:
    """Read `ID UNIT TYPE STATE` lines. A job that neither stops nor restarts (a reload, a start) counts as none."""
    for line in listed.splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[1] != unit:
            continue
        if fields[2] in _RESTARTS:
            return UnitJob.RESTART
        if fields[2] in _STOPS:
            return UnitJob.STOP
    return UnitJob.NONE
