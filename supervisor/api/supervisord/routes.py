"""The HTTP paths of supervisord: /RPC2 and the followed logs."""

from __future__ import annotations

from starlette.responses import Response, StreamingResponse

from supervisor.api import logs, waiting
from supervisor.api.operation import Call, Operation, RawBody, RefusedError
from supervisor.api.supervisord.codec import FaultError, MalformedCallError, decode, encode, encode_fault
from supervisor.api.supervisord.methods import dispatch
from supervisor.api.supervisord.processes import find

FOLLOW_BYTES = 1024  # supervisord's /logtail begins this far before the end


async def answer_rpc(call: Call) -> Response:
    try:
        name, parameters = decode(call.body.data)
    except MalformedCallError as problem:
        raise RefusedError(400, f"cannot use the body as XML-RPC: {problem}") from None
    try:
        body = encode(await waiting.while_connected(call.request, dispatch(call, name, parameters)))
    except FaultError as fault:
        body = encode_fault(fault)
    return Response(body, media_type="text/xml")


async def follow_log(call: Call) -> Response:
    """The last bytes of a process's log, then what comes."""
    if call.request.path_params.get("channel", "stdout") != "stdout":
        raise RefusedError(404, "both streams are in one file, called stdout")
    try:
        snapshot = find(call, call.request.path_params["process"])
    except FaultError as fault:
        raise RefusedError(404, str(fault)) from None
    return await _followed(call, snapshot.log_path, snapshot.name)


async def follow_main_log(call: Call) -> Response:
    """The same of the daemon's log."""
    return await _followed(call, call.control.daemon_info().log_path, "")


async def _followed(call: Call, path: str, server: str) -> StreamingResponse:
    try:
        return await logs.followed(call.control, path, server, FOLLOW_BYTES)
    except FileNotFoundError:
        raise RefusedError(410, "there is no log file") from None


OPERATIONS = (
    Operation("POST", "/RPC2", "xmlrpc", "supervisord's XML-RPC", answer_rpc, body=RawBody, media_types=("text/xml",)),
    Operation("GET", "/logtail/{process}/{channel}", "logtail", "supervisord's tail -f of a process", follow_log),
    Operation("GET", "/logtail/{process}", "logtailStdout", "the same of its stdout", follow_log),
    Operation("GET", "/mainlogtail", "mainlogtail", "supervisord's maintail -f", follow_main_log),
)
