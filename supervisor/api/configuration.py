"""Operations on the configuration: what the file has now, beside what is in force."""

from __future__ import annotations

import anyio.to_thread
from starlette.responses import Response

from supervisor.api import wire
from supervisor.api.operation import Call, Operation, RefusedError, answer
from supervisor.config import Config, ConfigError, differences, load


async def reread(call: Call) -> Response:
    """Reads and compares; a broken file is told and changes nothing either."""
    path = call.control.daemon_info().config_path
    if not path:
        raise RefusedError(409, "there is no configuration file: the daemon runs without one")
    try:
        read = await anyio.to_thread.run_sync(load, path)
    except ConfigError as problem:
        raise RefusedError(409, str(problem)) from None
    running = call.control.config()
    return answer(wire.Reread(path, _servers(running, read), differences(running, read)))


def _servers(running: Config, read: Config) -> tuple[wire.Configured, ...]:
    known = read.servers | running.servers
    return tuple(wire.Configured(name, name in running.servers, known[name].autostart) for name in sorted(known))


OPERATIONS = (Operation("GET", "/v1/config/reread", "reread", "What the file would change", reread, wire.Reread),)
