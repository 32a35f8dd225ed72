"""The JSON of what happened: rows of the journal, incidents, the story of one server."""

from __future__ import annotations

import msgspec

from supervisor.api.control import EventRecord
from supervisor.api.wire.model import Diagnosis
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


class Story(msgspec.Struct, frozen=True):
    """Why a server is as it is: sentences from the present back to the cause, with what proves them."""

    name: str
    state: str
    sentences: tuple[str, ...]
    diagnosis: Diagnosis | None
    evidence_path: str
    log_path: str
    events: tuple[Event, ...]


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
