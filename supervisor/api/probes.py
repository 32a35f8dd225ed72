"""Probes as Kubernetes and load balancers ask for them: is the daemon alive, is a server ready, has it started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

import msgspec
from starlette.responses import PlainTextResponse, Response

from supervisor.api.control import Control
from supervisor.api.operation import Call, Operation, names, unknown_server
from supervisor.snapshot import ServerSnapshot

HUNG_S = 10.0  # as for systemd's watchdog: a decision that is due for so long is not coming
_STARTED = ("running", "draining")
_Judge: TypeAlias = Callable[[ServerSnapshot], bool]


class ProbeQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which server is meant; without a name all that are wanted up."""

    server: Annotated[str, msgspec.Meta(max_length=64)] = ""


async def live(call: Call) -> Response:
    """The answer proves that the loop turns; a decision long overdue, that one server's does not."""
    overdue_s = call.control.pulse().overdue_s
    if overdue_s > HUNG_S:
        return _told(503, [f"a decision is overdue for {overdue_s:.0f} s"])
    return _told(200, ["ok"])


async def ready(call: Call) -> Response:
    """200 when requests may be sent to each server that is meant."""
    return _judged(call, lambda snapshot: snapshot.healthy)


async def started(call: Call) -> Response:
    """200 when each server that is meant has finished its start, whatever its readiness now."""
    return _judged(call, lambda snapshot: snapshot.lifecycle.value in _STARTED)


def _judged(call: Call, good: _Judge) -> Response:
    snapshots = _meant(call.control, call.query)
    failing = [snapshot for snapshot in snapshots if not good(snapshot)]
    lines = [_line(snapshot) for snapshot in failing or snapshots]
    return _told(503 if failing else 200, lines or ["ok: no server is wanted up"])


def _meant(control: Control, query: ProbeQuery) -> list[ServerSnapshot]:
    if not query.server:
        return [snapshot for snapshot in control.snapshots() if snapshot.goal == "up"]
    snapshot = control.snapshot(query.server)
    if snapshot is None:
        raise unknown_server(query.server, names(control))
    return [snapshot]


def _line(snapshot: ServerSnapshot) -> str:
    """State and phase. No reasons: they may quote the log, and anybody may ask here."""
    phase = snapshot.start.phase if snapshot.start and snapshot.lifecycle.value == "starting" else ""
    readiness = f"readiness {snapshot.readiness.value}" if snapshot.lifecycle.value == "running" else ""
    return ", ".join(part for part in (f"{snapshot.name}: {snapshot.lifecycle.value}", phase, readiness) if part)


def _told(status: int, lines: list[str]) -> Response:
    text = "".join(f"{line}\n" for line in lines)
    return PlainTextResponse(text, status, headers={"cache-control": "no-store"})


OPERATIONS = (
    Operation(
        "GET",
        "/livez",
        "live",
        "Whether the daemon's loops turn",
        live,
        media_types=("text/plain",),
        on_tcp=True,
        failures=(503,),
    ),
    Operation(
        "GET",
        "/readyz",
        "ready",
        "Whether a server, or all that are wanted up, may be sent requests",
        ready,
        query=ProbeQuery,
        media_types=("text/plain",),
        on_tcp=True,
        failures=(404, 503),
    ),
    Operation(
        "GET",
        "/startupz",
        "started",
        "Whether a server, or all that are wanted up, have finished their start",
        started,
        query=ProbeQuery,
        media_types=("text/plain",),
        on_tcp=True,
        failures=(404, 503),
    ),
)
