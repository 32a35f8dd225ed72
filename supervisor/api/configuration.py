"""Operations on the configuration: what the file has now beside what is in force, and bringing it into force."""

from __future__ import annotations

from typing import Annotated

import msgspec
from starlette.responses import Response

from supervisor.api import wire
from supervisor.api.access import Role
from supervisor.api.control import ChangeRefusedError, Control
from supervisor.api.operation import Call, Operation, RefusedError, answer, names, unknown_server
from supervisor.config import Config, ConfigError, Differences

Name = Annotated[str, msgspec.Meta(max_length=64)]


class UpdateBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which servers; when none is named all of them, and the routers before them, or `routers_only`.

    `free_only` leaves alone what costs a restart, and the servers of a router that the file has no more.
    """

    names: Annotated[tuple[Name, ...], msgspec.Meta(max_length=1000)] = ()
    free_only: bool = False
    routers_only: bool = False


class AddBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server of the file as it was last read."""

    name: Name


async def reread(call: Call) -> Response:
    """Reads and compares; a broken file is told and changes nothing either."""
    found = await _read(call.control)
    running, available = call.control.config(), call.control.available()
    path = call.control.daemon_info().config_path
    starts = await _last_starts(call.control, found)
    restarts = tuple(call.control.restarts(found))
    return answer(wire.Reread(path, _servers(running, available), found, starts, restarts))


async def _read(control: Control) -> Differences:
    try:
        return await control.reread()
    except (ConfigError, ChangeRefusedError) as problem:
        raise RefusedError(409, str(problem)) from None


async def _last_starts(control: Control, found: Differences) -> dict[str, float]:
    """What a restart of those that need one will cost, as far as earlier starts tell."""
    asked = [change.name for change in found.servers if change.restart_needed]
    known = {name: await control.last_start_s(name) for name in asked}
    return {name: seconds for name, seconds in known.items() if seconds is not None}


def _servers(running: Config, read: Config) -> tuple[wire.Configured, ...]:
    known = read.servers | running.servers
    return tuple(wire.Configured(name, name in running.servers, known[name].autostart) for name in sorted(known))


async def update(call: Call) -> Response:
    """Answers when all is done, which takes as long as servers take to stop; it goes on when the client leaves."""
    body: UpdateBody = call.body
    if body.names and body.routers_only:
        raise RefusedError(400, "cannot update routers alone and servers: name none")
    found = await _read(call.control)
    known = call.control.config().servers.keys() | call.control.available().servers.keys()
    for name in body.names:
        if name not in known:
            raise unknown_server(name, known)
    try:
        routers = () if body.names else await call.control.update_routers(call.by, free_only=body.free_only)
        applied = () if body.routers_only else await call.control.update(body.names, call.by, free_only=body.free_only)
    except (ConfigError, ChangeRefusedError) as problem:  # the file has changed once more
        raise RefusedError(409, str(problem)) from None
    return answer(wire.Updated(tuple(applied), tuple(found.daemon), tuple(routers)))


async def add(call: Call) -> Response:
    try:
        await call.control.add_server(call.body.name, call.by)
    except ChangeRefusedError as problem:
        raise RefusedError(409, str(problem)) from None
    return answer(wire.Done())


async def remove(call: Call) -> Response:
    try:
        await call.control.remove_server(call.name, call.by)
    except ChangeRefusedError as problem:
        raise RefusedError(409, str(problem)) from None
    except KeyError:
        raise unknown_server(call.name, names(call.control)) from None
    return answer(wire.Done())


OPERATIONS = (
    Operation("GET", "/v1/config/reread", "reread", "What the file would change", reread, wire.Reread, failures=(409,)),
    Operation(
        "POST",
        "/v1/config/update",
        "update",
        "Bring the file into force, without waiting for a restarted server to serve",
        update,
        wire.Updated,
        Role.ADMIN,
        body=UpdateBody,
        failures=(404, 409),
    ),
    Operation(
        "POST",
        "/v1/config/add",
        "addServer",
        "Add a server of the file as it was last read",
        add,
        wire.Done,
        Role.ADMIN,
        body=AddBody,
        failures=(409,),
    ),
    Operation(
        "POST",
        "/v1/servers/{name}/remove",
        "removeServer",
        "Take out a server that is at rest",
        remove,
        wire.Done,
        Role.ADMIN,
        failures=(409,),
    ),
)
