"""The control API as an ASGI application."""

from __future__ import annotations

from http import HTTPStatus

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from supervisor.api import configuration, events, gpus, groups, logs, past, probes, rolling, servers, wire
from supervisor.api.access import Access, Role
from supervisor.api.control import Control, UpgradeRefusedError, Upgrading
from supervisor.api.limits import DEFAULTS, Limits
from supervisor.api.operation import Call, Operation, RefusedError, answer, endpoint, error, excerpt
from supervisor.api.schema import document
from supervisor.api.supervisord import routes as supervisord_routes
from supervisor.metrics import operations as metrics
from supervisor.web import operations as web

log = structlog.get_logger()


async def show_info(call: Call) -> Response:
    control, clock = call.control, call.control.clock()
    starts = wire.starts(control.fleet(), clock)
    return answer(wire.info(control.daemon_info(), clock, call.role.name.lower(), starts))


async def shut_down(call: Call) -> Response:
    await call.control.shutdown(call.by)
    return answer(wire.Done(), 202)


async def upgrade(call: Call) -> Response:
    """Answers when the installed code has shown that it comes up; it takes over once this answer is out."""
    try:
        begun = await call.control.upgrade(call.by)
    except UpgradeRefusedError as problem:
        raise RefusedError(409, str(problem)) from None
    return answer(begun, 202)


async def describe_api(call: Call) -> Response:
    return Response(document(OPERATIONS), media_type="application/json")


OPERATIONS: tuple[Operation, ...] = (
    *servers.OPERATIONS,
    *past.OPERATIONS,
    *events.OPERATIONS,
    *gpus.OPERATIONS,
    *logs.OPERATIONS,
    *configuration.OPERATIONS,
    *rolling.OPERATIONS,
    *groups.OPERATIONS,
    Operation("GET", "/v1/info", "showInfo", "Facts about the daemon", show_info, wire.Info),
    Operation(
        "POST",
        "/v1/shutdown",
        "shutDown",
        "Stop every server, then the daemon",
        shut_down,
        wire.Done,
        Role.ADMIN,
        status=202,
    ),
    Operation(
        "POST",
        "/v1/upgrade",
        "upgrade",
        "Replace the daemon's code in place by the installed one",
        upgrade,
        Upgrading,
        Role.ADMIN,
        status=202,
        failures=(409,),
    ),
    Operation("GET", "/v1/openapi.json", "describeApi", "This description", describe_api, on_tcp=True),
    *probes.OPERATIONS,
    *metrics.OPERATIONS,
    *web.OPERATIONS,
)


def build_app(control: Control, access: Access, limits: Limits = DEFAULTS) -> ASGIApp:
    """Everything, for the Unix socket."""
    return _build(control, access, limits, (*OPERATIONS, *supervisord_routes.OPERATIONS))


def build_tcp_app(control: Control, access: Access, limits: Limits = DEFAULTS) -> ASGIApp:
    """Only what anybody on this host may read: TCP carries no identity."""
    return _build(control, access, limits, tuple(operation for operation in OPERATIONS if operation.on_tcp))


def _build(control: Control, access: Access, limits: Limits, operations: tuple[Operation, ...]) -> ASGIApp:
    routes = [
        Route(operation.path, endpoint(operation, control, access, limits), methods=[operation.method])
        for operation in operations
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Exception: _bug})


async def _http_error(_: Request, problem: Exception) -> Response:
    match problem:
        case HTTPException(status_code=404):
            return error(404, "no such path; the operations are listed at /v1/openapi.json")
        case HTTPException():
            response = error(problem.status_code, HTTPStatus(problem.status_code).phrase.lower())
            response.headers.update(problem.headers or {})
            return response
        case _:
            raise problem


async def _bug(_: Request, problem: Exception) -> Response:
    """The client learns the kind of the bug, the daemon's log gets the traceback."""
    log.error("a request ended in a bug", exc_info=problem)
    return error(500, f"this is a bug of the daemon: {type(problem).__name__}: {excerpt(str(problem))}")
