"""Passes over the lines of a long log that say nothing new, at the speed of one pattern over bytes.

A server that has served for weeks writes gigabytes of which a few kilobytes matter. Runs of calm lines (the profile
says which) are skipped but for their last line; everything else is cut into lines and read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from supervisor.lines import Line, LineCutter
from supervisor.profile import Profile

_OPEN_LINE_BYTES = 256 * 1024  # a longer line is handed on in pieces


class Skimmer:
    """Feed it chunks; it answers the lines that are worth reading, with their true numbers."""

    def __init__(self, profile: Profile) -> None:
        calm = profile.grammar.calm
        self._calm = re.compile(calm.encode()) if calm else None
        self._cutter = LineCutter()
        self._rest = b""

    @property
    def lines(self) -> int:
        """How many lines have ended so far."""
        return self._cutter.lines

    def feed(self, chunk: bytes) -> Iterator[list[Line]]:
        """The lines of this chunk, in runs."""
        data = self._rest + chunk if self._rest else chunk
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) < _OPEN_LINE_BYTES:
            self._rest = data
            return
        whole, self._rest = (data[:end], data[end:]) if end else (data, b"")
        if not self._cutter.between_lines:  # the end of a line that was handed on in pieces
            first = whole.find(b"\n") + 1 or len(whole)
            yield self._cutter.feed(whole[:first])
            whole = whole[first:]
        yield from self._whole(whole) if end else [self._cutter.feed(whole)]

    def finish(self) -> list[Line]:
        """What follows the last line end."""
        return [*self._cutter.feed(self._rest), *self._last()]

    def _last(self) -> list[Line]:
        pending = self._cutter.pending()
        return [] if pending is None else [Line(pending.number, pending.text, pending.end_offset, pending.truncated)]

    def _whole(self, data: bytes) -> Iterator[list[Line]]:
        """Whole lines: calm runs are skipped, the regions between them cut."""
        if self._calm is None:
            yield self._cutter.feed(data)
            return
        region = at = 0
        while at < len(data):
            calm = self._calm.match(data, at)
            if calm is None:
                at = data.find(b"\n", at) + 1 or len(data)
                continue
            if at > region:
                yield self._cutter.feed(data[region:at])
            last = data.rfind(b"\n", at, calm.end() - 1) + 1 or at
            last = max(last, at)
            self._cutter.skip(last - at, data.count(b"\n", at, last))
            yield self._cutter.feed(data[last : calm.end()])
            region = at = calm.end()
        if region < len(data):
            yield self._cutter.feed(data[region:])
