"""supervisord's methods on the configuration: reread, what is available, add and remove groups."""

from __future__ import annotations

import shlex
from typing import Any

from supervisor.api.control import ChangeRefusedError
from supervisor.api.operation import Call
from supervisor.api.supervisord.codec import FaultCode, FaultError, xml_text
from supervisor.api.supervisord.processes import START_SETTLE_S
from supervisor.config import ConfigError, ServerConfig, mask_command
from supervisor.profile import load_profile
from supervisor.units import signal_number

PRIORITY = 999  # supervisord's default


async def reload_config(call: Call) -> list[Any]:
    """Names that were added, changed and removed, as the one element of a list."""
    try:
        found = await call.control.reread()
    except (ConfigError, ChangeRefusedError) as problem:
        raise FaultError(FaultCode.CANT_REREAD, str(problem)) from None
    kinds = ("available", "changed", "disappeared")
    return [[[change.name for change in found.servers if change.kind == kind] for kind in kinds]]


async def add_group(call: Call, name: str) -> bool:
    """Add a server of the file as last read."""
    if call.control.snapshot(name) is not None:
        raise FaultError(FaultCode.ALREADY_ADDED, name)
    try:
        await call.control.add_server(name, call.by)
    except ChangeRefusedError:
        raise FaultError(FaultCode.BAD_NAME, name[:80]) from None
    return True


async def remove_group(call: Call, name: str) -> bool:
    """Take a server out that is at rest."""
    try:
        await call.control.remove_server(name, call.by)
    except KeyError:
        raise FaultError(FaultCode.BAD_NAME, name[:80]) from None
    except ChangeRefusedError:
        raise FaultError(FaultCode.STILL_RUNNING, name) from None
    return True


async def update(call: Call) -> None:
    """Bring the file into force, all of it."""
    try:
        await call.control.update((), call.by, free_only=False)
    except (ConfigError, ChangeRefusedError) as problem:
        raise FaultError(FaultCode.CANT_REREAD, str(problem)) from None


async def get_all_config_info(call: Call) -> list[dict[str, Any]]:
    """Of the file as last read; what our servers have no notion of has supervisord's default."""
    in_force, available = call.control.config().servers, call.control.available().servers
    known = in_force | available
    return [_config_info(known[name], in_use=name in in_force) for name in sorted(known)]


def _config_info(server: ServerConfig, *, in_use: bool) -> dict[str, Any]:
    return {
        "name": server.name,
        "group": server.name,
        "inuse": in_use,
        "autostart": server.autostart,
        "command": xml_text(shlex.join(mask_command(server.command))),
        "directory": server.directory or "none",
        "uid": server.user or "none",
        "group_prio": PRIORITY,
        "process_prio": PRIORITY,
        "stopsignal": signal_number(server.stop.signal or load_profile(server.engine).stop.signal),
        "redirect_stderr": True,
        "startretries": server.restart.budget,
        "startsecs": int(START_SETTLE_S),
        "exitcodes": [0],
        "killasgroup": True,
        "stdout_logfile": "auto",
        "stderr_logfile": "none",
        "serverurl": "auto",
    }
