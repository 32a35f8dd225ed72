"""Operations on servers one after another: begin, look, cancel; it goes on when the client leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import anyio
import msgspec
from starlette.responses import Response

from supervisor.api import waiting, wire
from supervisor.api.access import Role
from supervisor.api.control import ChangeRefusedError, Control
from supervisor.api.operation import Call, Operation, RefusedError, answer, unknown_server
from supervisor.config import Config, ConfigError
from supervisor.config.groups import GROUP_MARK, members
from supervisor.core.rolling import RollKind

LOOK_LIMIT_S = 60.0
GRACE_S = 600.0
_DAY_S = 86400.0
Named = Annotated[str, msgspec.Meta(max_length=66)]  # of a server, or "g:" and that of a group


class RollBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Servers in order; "g:NAME" is a group, "all" everybody. An update of nobody is one of all that have changed.

    `grace_s`: how long the running requests of each server may take before it is asked to end.
    """

    kind: Literal["restart", "update"]
    names: Annotated[tuple[Named, ...], msgspec.Meta(max_length=1000)] = ()
    grace_s: Annotated[float, msgspec.Meta(ge=0, le=_DAY_S)] = GRACE_S
    reason: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class LookQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`known` is the version that the caller has seen: the answer waits for another, at most `timeout_s`."""

    known: Annotated[int, msgspec.Meta(ge=0)] | None = None
    timeout_s: Annotated[float, msgspec.Meta(ge=0, le=LOOK_LIMIT_S)] = 0.0


async def begin(call: Call) -> Response:
    body: RollBody = call.body
    if body.kind == "update":
        names = await _changed(call, body.names)
    elif body.names:
        names = list(_expanded(call.control.config(), body.names))
    else:
        raise RefusedError(400, "cannot restart nobody: name servers, or all")
    try:
        roll, problem = await call.control.begin_rolling(RollKind(body.kind), names, call.by, body.grace_s, body.reason)
    except ChangeRefusedError as refusal:
        raise RefusedError(409, str(refusal)) from None
    return answer(wire.RollingStatus(wire.rolling(roll), problem), 202)


async def _changed(call: Call, names: Sequence[str]) -> list[str]:
    """Those of them whose table has changed, in their order."""
    if call.role < Role.ADMIN:
        raise RefusedError(403, f"a rolling update needs the role admin, you have {call.role.name.lower()}")
    try:
        found = await call.control.reread()
    except (ConfigError, ChangeRefusedError) as problem:
        raise RefusedError(409, str(problem)) from None
    changed = [change.name for change in found.servers]
    if not names:
        return changed
    known = _both(call.control)
    return [name for name in dict.fromkeys(_expanded(known, names)) if name in changed]


def _both(control: Control) -> Config:
    """What is in force and what the file has, as names."""
    running, read = control.config(), control.available()
    return msgspec.structs.replace(running, servers=read.servers | running.servers, groups=read.groups | running.groups)


def _expanded(config: Config, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        group = name.removeprefix(GROUP_MARK)
        if name == "all":
            yield from config.servers
        elif name.startswith(GROUP_MARK) and group in config.groups:
            yield from members(config, group)
        elif name in config.servers:
            yield name
        else:
            raise unknown_server(name, [*config.servers, *(f"{GROUP_MARK}{one}" for one in config.groups)])


async def look(call: Call) -> Response:
    """At once, or when there is something new."""
    await waiting.while_connected(call.request, _news(call))
    roll = call.control.rolling()
    return answer(wire.RollingStatus(None if roll is None else wire.rolling(roll)))


async def _news(call: Call) -> None:
    with anyio.move_on_after(call.query.timeout_s):
        while (roll := call.control.rolling()) is not None and roll.version == call.query.known:
            await call.control.changed(call.control.change())


async def cancel(call: Call) -> Response:
    problem = await call.control.cancel_rolling(call.by)
    if problem is None:
        raise RefusedError(409, "cannot cancel: nothing is rolling")
    return answer(wire.RollingCancelled(problem=problem), 202)


OPERATIONS = (
    Operation(
        "GET",
        "/v1/rolling",
        "showRolling",
        "The rolling restart or update under way, or the last one",
        look,
        wire.RollingStatus,
        query=LookQuery,
    ),
    Operation(
        "POST",
        "/v1/rolling",
        "beginRolling",
        "Restart or update servers one after another",
        begin,
        wire.RollingStatus,
        Role.OPERATE,
        body=RollBody,
        status=202,
        failures=(404, 409),
    ),
    Operation(
        "POST",
        "/v1/rolling/cancel",
        "cancelRolling",
        "After the server under way nobody follows",
        cancel,
        wire.RollingCancelled,
        Role.OPERATE,
        status=202,
        failures=(409,),
    ),
)
