"""Operations on servers: read, start, stop, restart, signal, wait."""

from __future__ import annotations

import signal as signals
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import anyio
import msgspec
from starlette.responses import Response

from supervisor.api import waiting, wire
from supervisor.api.access import Role
from supervisor.api.control import Clock, Request
from supervisor.api.operation import Call, Operation, RefusedError, answer, excerpt, names, unknown_server
from supervisor.api.public import public_server
from supervisor.api.words import SIGNALABLE, UP, describe, state_of
from supervisor.config.groups import Ties, ties
from supervisor.core.fleet.ends import dependants
from supervisor.events import (
    PauseRequested,
    RestartRequested,
    ResumeRequested,
    SignalRequested,
    StartRequested,
    StopRequested,
)
from supervisor.snapshot import ServerSnapshot

WAIT_LIMIT_S = 7 * 86400.0


class StartBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`force` starts in spite of findings that would block the start."""

    force: bool = False


class StopBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`grace_s`: how long running requests may take, in place of the configured grace; a later stop can shorten it."""

    grace_s: Annotated[float, msgspec.Meta(ge=0, le=WAIT_LIMIT_S)] | None = None


class RestartBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`reason` is kept in the journal."""

    reason: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class SignalBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signal by name ("HUP", "SIGHUP") or number."""

    signal: str | int


class WaitQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to wait for, and how long: without a time-out until the client goes away."""

    until: Literal["healthy", "stopped"] = msgspec.field(default="healthy", name="for")
    timeout_s: Annotated[float, msgspec.Meta(ge=0, le=WAIT_LIMIT_S)] | None = None


async def list_servers(call: Call) -> Response:
    clock = call.control.clock()
    servers = tuple(_shown(call, snapshot, clock) for snapshot in call.control.snapshots())
    starts = wire.starts(call.control.fleet(), clock)
    pulse, at = call.control.pulse(), wire.iso(clock.wall)
    problems = (pulse.state_problem, pulse.unanswered, pulse.journal_problem)
    return answer(wire.Servers(at, servers, starts, *problems))


async def show_status(call: Call) -> Response:
    """A thirtieth of the work of all facets: health checks and prompts ask this all day."""
    clock = call.control.clock()
    snapshots = call.control.snapshots()
    shown = snapshots if call.local else [public_server(snapshot) for snapshot in snapshots]
    servers = tuple(wire.Brief(one.name, state_of(one).name, describe(one, clock), one.healthy) for one in shown)
    starts = wire.starts(call.control.fleet(), clock)
    pulse, at = call.control.pulse(), wire.iso(clock.wall)
    problems = (pulse.state_problem, pulse.unanswered, pulse.journal_problem)
    return answer(wire.Status(at, servers, starts, *problems))


async def show_server(call: Call) -> Response:
    return answer(_shown(call, call.snapshot, call.control.clock()))


def _shown(call: Call, snapshot: ServerSnapshot, clock: Clock) -> wire.Server:
    return wire.server(snapshot if call.local else public_server(snapshot), clock)


async def start(call: Call) -> Response:
    changed = state_of(call.snapshot) not in UP
    left_down = [one for one in _dependants(call, call.name) if not _wanted(call, one)]
    return await _accept(call, changed, StartRequested(by=call.by, force=call.body.force), left_down)


async def stop(call: Call) -> Response:
    changed = call.snapshot.goal == "up" or call.snapshot.lifecycle.value != "stopped"
    along = [one for one in _dependants(call, call.name) if _wanted(call, one)]
    return await _accept(call, changed, StopRequested(by=call.by, grace_s=call.body.grace_s), along)


async def restart(call: Call) -> Response:
    mates = _ties(call).get(call.name, Ties()).mates
    along = dict.fromkeys([other for one in (call.name, *mates) for other in (*_dependants(call, one), *mates)])
    wanted = [one for one in along if one != call.name and _wanted(call, one)]
    return await _accept(call, True, RestartRequested(by=call.by, reason=call.body.reason), wanted)


def _ties(call: Call) -> Mapping[str, Ties]:
    return ties(call.control.config())


def _dependants(call: Call, name: str) -> tuple[str, ...]:
    return dependants(_ties(call), name)


def _wanted(call: Call, name: str) -> bool:
    snapshot = call.control.snapshot(name)
    return snapshot is not None and snapshot.goal == "up"


async def send_signal(call: Call) -> Response:
    number = signal_number(call.body.signal)
    if state_of(call.snapshot) not in SIGNALABLE or call.snapshot.pid is None:
        raise RefusedError(409, f"cannot signal {call.name}: it is not running")
    return await _accept(call, True, SignalRequested(by=call.by, signal=number))


async def pause(call: Call) -> Response:
    """Nothing is killed or started by itself until `resume`; it outlives the daemon."""
    return await _accept(call, call.snapshot.maintenance is None, PauseRequested(by=call.by))


async def resume(call: Call) -> Response:
    return await _accept(call, call.snapshot.maintenance is not None, ResumeRequested(by=call.by))


async def _accept(call: Call, changed: bool, event: Request, also: Iterable[str] = ()) -> Response:
    try:
        await call.control.request(call.name, event)
    except KeyError:
        raise unknown_server(call.name, names(call.control)) from None
    return answer(wire.Accepted(changed, wire.server(call.snapshot, call.control.clock()), tuple(also)), 202)


def signal_number(signal: str | int) -> int:
    """The number of "HUP", "SIGHUP", "1" or 1. Raises RefusedError."""
    known = {member.name.removeprefix("SIG"): member.value for member in signals.Signals}
    text = str(signal).upper().removeprefix("SIG")
    number = known.get(text) or (int(text) if text.isascii() and text.isdigit() and len(text) <= 3 else 0)
    if number not in known.values():
        raise RefusedError(400, f"bad signal: {excerpt(str(signal))}")
    return number


async def wait(call: Call) -> Response:
    """Answers at once when it is reached or can no longer be reached without an operator."""
    began = call.control.clock().monotonic
    said = await waiting.while_connected(call.request, _wait(call))
    waited_s = round(call.control.clock().monotonic - began, 3)
    return answer(wire.Waited(said, waited_s, wire.server(call.snapshot, call.control.clock())))


async def _wait(call: Call) -> str:
    judge = waiting.stopped if call.query.until == "stopped" else waiting.healthy
    with anyio.move_on_after(call.query.timeout_s):
        return await waiting.outcome(call.control, call.name, judge)
    return "time-out"


OPERATIONS = (
    Operation("GET", "/v1/status", "showStatus", "All servers, a line each", show_status, wire.Status, on_tcp=True),
    Operation("GET", "/v1/servers", "listServers", "All servers", list_servers, wire.Servers, on_tcp=True),
    Operation(
        "GET", "/v1/servers/{name}", "showServer", "All facets of one server", show_server, wire.Server, on_tcp=True
    ),
    Operation(
        "POST",
        "/v1/servers/{name}/start",
        "startServer",
        "Want it up",
        start,
        wire.Accepted,
        Role.OPERATE,
        body=StartBody,
        status=202,
    ),
    Operation(
        "POST",
        "/v1/servers/{name}/stop",
        "stopServer",
        "Want it down",
        stop,
        wire.Accepted,
        Role.OPERATE,
        body=StopBody,
        status=202,
    ),
    Operation(
        "POST",
        "/v1/servers/{name}/restart",
        "restartServer",
        "End this attempt, start a fresh one",
        restart,
        wire.Accepted,
        Role.OPERATE,
        body=RestartBody,
        status=202,
    ),
    Operation(
        "POST",
        "/v1/servers/{name}/signal",
        "signalServer",
        "Send a signal to the server's leader",
        send_signal,
        wire.Accepted,
        Role.OPERATE,
        body=SignalBody,
        status=202,
        failures=(409,),
    ),
    Operation(
        "POST",
        "/v1/servers/{name}/pause",
        "pauseServer",
        "People work on it: no kill, no start by itself until it is resumed",
        pause,
        wire.Accepted,
        Role.OPERATE,
        status=202,
    ),
    Operation(
        "POST",
        "/v1/servers/{name}/resume",
        "resumeServer",
        "The work is done: judge it again, start what was held back",
        resume,
        wire.Accepted,
        Role.OPERATE,
        status=202,
    ),
    Operation(
        "GET",
        "/v1/servers/{name}/wait",
        "waitForServer",
        "Answer as soon as it is healthy (or stopped), or gave up, or the time is over",
        wait,
        wire.Waited,
        query=WaitQuery,
    ),
)
