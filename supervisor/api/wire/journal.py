"""The JSON of what happened: rows of the journal."""

from __future__ import annotations

import msgspec

from supervisor.api.control import EventRecord
from supervisor.api.wire.moments import iso


class Event(msgspec.Struct, frozen=True):
    """One row of the journal."""

    id: int
    at: str
    server: str
    facet: str
    before: str
    after: str
    reason: str
    attempt: int


class Events(msgspec.Struct, frozen=True):
    """Rows in order of id; `last` is where to go on."""

    events: tuple[Event, ...]
    last: int


def event(record: EventRecord) -> Event:
    """The journal's row for readers outside."""
    return Event(
        id=record.id,
        at=iso(record.wall),
        server=record.server,
        facet=record.facet,
        before=record.before,
        after=record.after,
        reason=record.reason,
        attempt=record.attempt,
    )
