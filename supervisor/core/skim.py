"""Passes over the lines of a long log that say nothing new, at the speed of one pattern over bytes.

A server that has served for weeks writes gigabytes of which a few kilobytes matter. Runs of calm lines (the profile
says which) and records that no rule and no signature can match are skipped; of the calm ones the last before anything
else is read, since it tells what was going on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from supervisor.core.rules import rule_index
from supervisor.core.signatures import signature_index
from supervisor.core.traceback import HEAD
from supervisor.lines import Line, LineCutter, clean
from supervisor.profile import Profile

_OPEN_LINE_BYTES = 256 * 1024  # a longer line is handed on in pieces
_RECORD = re.compile(rb"\[\d{4}-[^\]\n]{14,60}+\] (?=[^\s\[])")  # behind it a message, and no traceback's next line


class Skimmer:
    """Feed it chunks; it answers the lines that are worth reading, with their true numbers."""

    def __init__(self, profile: Profile) -> None:
        calm = profile.grammar.calm
        self._calm = re.compile(calm.encode()) if calm else None
        starts, needles = rule_index(profile).record_marks
        self._starts = tuple(start.encode() for start in (*starts, *profile.grammar.untrusted))
        self._marks = tuple(mark.encode() for mark in (*signature_index(profile).record_marks, *needles, HEAD))
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
        """Whole lines: what is calm or dull is skipped, the regions between are cut."""
        if self._calm is None:
            yield self._cutter.feed(data)
            return
        skipped = at = 0
        calm_at = calm_end = -1
        while at < len(data):
            if (calm := self._calm.match(data, at)) is not None:
                calm_at, at = at, calm.end()
                calm_end = at
                continue
            end = data.find(b"\n", at) + 1
            if self._dull(data, at, end):
                at = end
                continue
            yield from self._skip(data, skipped, at, calm_at, calm_end)
            calm_at = calm_end = -1
            yield self._cutter.feed(data[at:end])
            skipped = at = end
        yield from self._skip(data, skipped, at, calm_at, calm_end)

    def _dull(self, data: bytes, begin: int, end: int) -> bool:
        """Whether the line is a record that nothing can be found in."""
        record = _RECORD.match(data, begin, end)
        if record is None or data.startswith(self._starts, record.end()):
            return False
        message = data[record.end() : end]
        return b"\r" not in message and not any([mark in message for mark in self._marks])  # noqa: C419 - a list is faster

    def _skip(self, data: bytes, begin: int, end: int, calm_at: int, calm_end: int) -> Iterator[list[Line]]:
        """Counts what was skipped; the last calm line of it is told."""
        if calm_end < 0:
            self._cutter.skip(end - begin, data.count(b"\n", begin, end))
            return
        last = data.rfind(b"\n", calm_at, calm_end - 1) + 1 or calm_at
        self._cutter.skip(calm_end - begin, data.count(b"\n", begin, calm_end))
        line = clean(data[last : calm_end - 1].rstrip(b"\r").decode(errors="replace"))
        yield [Line(self._cutter.lines, line, 0)]
        self._cutter.skip(end - calm_end, data.count(b"\n", calm_end, end))
