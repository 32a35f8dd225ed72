"""The changes of all servers as people follow them: numbered, the newest kept in memory, all of them in the journal."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable

from supervisor.api.control import Clock, EventRecord

KEPT = 5000


class EventLog:
    """Ids begin at the wall clock's milliseconds: they grow across restarts of the daemon, so a follower can resume."""

    def __init__(self, started: Clock, earlier: Iterable[EventRecord] = ()) -> None:
        self._records: deque[EventRecord] = deque(earlier, maxlen=KEPT)
        self._last_id = max(int(started.wall * 1000), self._records[-1].id if self._records else 0)

    def records(self) -> tuple[EventRecord, ...]:
        """All that are kept."""
        return tuple(self._records)

    def add(
        self, moment: Clock, server: str, facet: str, before: str, after: str, reason: str, attempt: int
    ) -> EventRecord:
        """Note one change."""
        self._last_id += 1
        record = EventRecord(self._last_id, moment.wall, server, facet, before, after, reason, attempt)
        self._records.append(record)
        return record

    def read(self, since: int | None, server: str | None, limit: int) -> list[EventRecord]:
        """At most `limit` records above `since`, oldest first, or the last ones when it is None."""
        rows = list(self._records)
        if since is not None:
            rows = rows[bisect.bisect_right([row.id for row in rows], since) :]
        if server is not None:
            rows = [row for row in rows if row.server == server]
        return rows[:limit] if since is not None else rows[-limit:]
