"""Passes over the lines of a long log that say nothing new, at the speed of one pattern over bytes.

A server that has served for weeks writes gigabytes of which a few kilobytes matter. Runs of calm lines (the profile
says which) and records that no rule and no signature can match are skipped; of the calm ones the last before anything
else is read, since it tells what was going on.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import NamedTuple

from supervisor.core.log.rules import rule_index
from supervisor.core.log.signatures import signature_index
from supervisor.core.log.traceback import HEAD
from supervisor.lines import Line, LineCutter, clean
from supervisor.profile import Profile

_OPEN_LINE_BYTES = 256 * 1024  # a longer line is handed on in pieces
_RECORD = re.compile(rb"\[\d{4}-[^\]\n]{14,60}+\] (?=[^\s\[])")  # behind it a message, and no traceback's next line


class Kind(enum.Enum):
    """What a stretch of the log is, as far as its bytes tell at a glance."""

    CALM = enum.auto()  # whole lines that only say that it serves
    PLAIN = enum.auto()  # a record that matters only if it has one of the marks
    OTHER = enum.auto()


class Span(NamedTuple):
    """A stretch of a chunk: a run of calm lines, or one line."""

    begin: int
    end: int
    kind: Kind


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
        spans = list(self._spans(data, self._calm))
        plain = b"".join([data[span.begin : span.end] for span in spans if span.kind is Kind.PLAIN])
        marks = [mark for mark in self._marks if mark in plain]  # of all plain records at once: mostly none
        skipped = 0
        calm = None
        for span in spans:
            if span.kind is Kind.CALM:
                calm = span
            elif span.kind is Kind.OTHER or (marks and _any_in(marks, data[span.begin : span.end])):
                yield from self._skip(data, skipped, span.begin, calm)
                yield self._cutter.feed(data[span.begin : span.end])
                skipped, calm = span.end, None
        yield from self._skip(data, skipped, len(data), calm)

    def _spans(self, data: bytes, pattern: re.Pattern[bytes]) -> Iterator[Span]:
        """The chunk as calm runs and single lines."""
        at = 0
        while at < len(data):
            calm = pattern.match(data, at)
            if calm is not None:
                yield Span(at, calm.end(), Kind.CALM)
                at = calm.end()
                continue
            end = data.find(b"\n", at) + 1
            yield Span(at, end, self._kind(data, at, end))
            at = end

    def _kind(self, data: bytes, begin: int, end: int) -> Kind:
        """A record that no rule begins like may be dull; a line of another kind is read in any case."""
        record = _RECORD.match(data, begin, end)
        if record is None or data.startswith(self._starts, record.end()) or data.find(b"\r", begin, end) >= 0:
            return Kind.OTHER
        return Kind.PLAIN

    def _skip(self, data: bytes, begin: int, end: int, calm: Span | None) -> Iterator[list[Line]]:
        """Counts what was skipped; the last calm line of it is told."""
        if calm is not None:
            last = data.rfind(b"\n", calm.begin, calm.end - 1) + 1 or calm.begin
            self._cutter.skip(calm.end - begin, data.count(b"\n", begin, calm.end))
            text = clean(data[last : calm.end - 1].rstrip(b"\r").decode(errors="replace"))
            yield [Line(self._cutter.lines, text, 0)]
            begin = calm.end
        self._cutter.skip(end - begin, data.count(b"\n", begin, end))


def _any_in(marks: list[bytes], line: bytes) -> bool:
    return any(mark in line for mark in marks)
