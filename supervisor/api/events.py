"""Operations on the journal: recent events, and following them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import anyio
import msgspec
from starlette.responses import Response, StreamingResponse

from supervisor.api import wire
from supervisor.api.control import Control, EventRecord
from supervisor.api.operation import Call, Operation, RefusedError, answer, names, unknown_server

EVENT_STREAM = "text/event-stream"
BATCH = 200  # rows held in memory for one follower at a time
KEEP_ALIVE_S = 15.0


class EventsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows after `since`, of one `server`; with `follow` (or Accept: text/event-stream) they keep coming."""

    since: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None
    server: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    follow: bool = False


async def list_events(call: Call) -> Response:
    query: EventsQuery = call.query
    if query.server is not None and call.control.snapshot(query.server) is None:
        raise unknown_server(query.server, names(call.control))
    if query.follow or EVENT_STREAM in call.request.headers.get("accept", ""):
        since = _resume_point(call, query)
        return StreamingResponse(_stream(call.control, since, query), media_type=EVENT_STREAM)
    rows = await call.control.events(query.since, query.server, query.limit)
    last = rows[-1].id if rows else query.since or 0
    return answer(wire.Events(tuple(wire.event(row) for row in rows), last))


def _resume_point(call: Call, query: EventsQuery) -> int | None:
    """A browser's EventSource resumes with the header; it wins over the URL, which never changes."""
    header = call.request.headers.get("last-event-id", "")
    if not header:
        return query.since
    if not (header.isascii() and header.isdigit() and len(header) <= 18):
        raise RefusedError(400, "cannot use Last-Event-ID: expected the id of an event")
    return int(header)


async def _stream(control: Control, since: int | None, query: EventsQuery) -> AsyncIterator[bytes]:
    """Memory stays at one batch however slowly the follower reads: the rows wait in the journal, not here."""
    change = control.change()
    rows = await control.events(since, query.server, query.limit if since is None else BATCH)
    last = since or 0
    yield b": events follow\n\n"
    while True:
        if rows:
            last = rows[-1].id
            yield b"".join(_framed(row) for row in rows)
        else:
            with anyio.move_on_after(KEEP_ALIVE_S) as pause:
                change = await control.changed(change)
            if pause.cancelled_caught:
                yield b": still here\n\n"
                continue
        rows = await control.events(last, query.server, BATCH)


def _framed(row: EventRecord) -> bytes:
    """msgspec escapes line ends inside JSON, so `data:` is always one line."""
    return b"id: %d\nevent: event\ndata: %b\n\n" % (row.id, msgspec.json.encode(wire.event(row)))


OPERATIONS = (
    Operation(
        "GET",
        "/v1/events",
        "listEvents",
        "What happened; followed as server-sent events, resumable by id",
        list_events,
        wire.Events,
        query=EventsQuery,
        failures=(404,),
        media_types=("application/json", EVENT_STREAM),
    ),
)
