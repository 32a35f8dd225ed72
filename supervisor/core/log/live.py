"""Reads a growing log chunk by chunk, at the price of its first letters where it only says that it serves.

A busy server prints a thousand lines of serving to one that matters. Lines are told apart by their first letters: one
dictionary per chunk names the distinct ones and where each was seen last. Of records that are read by sample only the
newest of a kind is decoded, records of users' text are passed over, every other line is read. Whatever is no sample
is found as if every line had been read.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterator
from operator import itemgetter

from supervisor.core.log.grammar import NOTHING, Kind, LogReader, answers
from supervisor.events import LineMatched
from supervisor.lines import Line, LineCutter
from supervisor.profile import Profile

_HEAD = itemgetter(slice(40))  # a prefix with its first words, and few letters of a client's address
_PREFIX_KEPT = 96
_WORDS_KEPT = 24  # letters behind the prefix that tell a kind
# Read line by line between two breaths: some milliseconds, even if somebody wrote these bytes to cost us time.
STEP_BYTES = 16 * 1024
_SLICE_BYTES = STEP_BYTES // 4  # bars are short, and each is a match
_STEP_MATCHES = 16  # a traceback is compared with a hundred signatures
_STAMP = re.compile(rb"\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")  # as long as the stamp that a kind leaves out
_STAMP_BYTES = 20
_KNOWN_KEPT = 1000
_DULL_BYTES = 512  # of a message that is remembered to say nothing


class LiveReader:
    """Feed it one attempt's log. Holds an open line of bounded length and the tracebacks being assembled."""

    def __init__(self, profile: Profile, attempt: int, offset: int = 0) -> None:
        self._reader = LogReader(profile, attempt)
        self._cutter = LineCutter(offset=offset)
        self._kinds = _Kinds(self._reader)

    @property
    def lines(self) -> int:
        """How many lines have ended so far."""
        return self._cutter.lines

    def restart(self, offset: int) -> None:
        """Another file follows, or the same from its beginning: the open line will not be continued."""
        self._cutter = LineCutter(offset=offset)

    def feed(self, data: bytes, *, caught_up: bool = False) -> Iterator[list[LineMatched]]:
        """The matches of this chunk, in steps of a few milliseconds: take them all, breathe between two.

        `caught_up`: nothing follows for the moment, so the open line (a bar, mostly) is news too.
        """
        first = self._cutter.lines + 1
        pieces = self._cutter.split(data)
        if pieces is not None:
            yield from self._lines(pieces, first)
        else:
            yield from self._slices(data)
        if caught_up and (open_line := self._cutter.pending()):
            yield self._reader.read([open_line])

    def finish(self) -> list[LineMatched]:
        """What the end of the log, or a pause in it, completes: the open tracebacks."""
        return self._reader.finish()

    def _slices(self, data: bytes) -> Iterator[list[LineMatched]]:
        """A chunk with returns in it, or with the rest of a long line: what is free of both is read at a glance."""
        at = 0
        while at < len(data):
            first = self._cutter.lines + 1
            returned = data.find(b"\r", at)
            stop = len(data) if returned < 0 else max(data.rfind(b"\n", at, returned) + 1, at)
            pieces = self._cutter.split(data[at:stop]) if stop > at else None
            if pieces is not None:
                yield from self._lines(pieces, first)
            else:
                stop = data.find(b"\n", max(at, returned), at + _SLICE_BYTES) + 1 or at + _SLICE_BYTES
                yield self._reader.read(self._cutter.feed(data[at:stop]))
            at = stop

    def _lines(self, pieces: list[bytes], first: int) -> Iterator[list[LineMatched]]:
        """Whole lines: at a glance, but one by one while a traceback is open."""
        glance = _Glance(self._kinds, pieces)
        at = 0
        while at < len(pieces):
            read = self._at_a_glance if self._reader.between_tracebacks else self._one_by_one
            at, matches = read(glance, at, first)
            yield matches

    def _at_a_glance(self, glance: _Glance, begin: int, first: int) -> tuple[int, list[LineMatched]]:
        """The matches of a step, and where it ends: at a traceback, at the latest."""
        samples: dict[Kind, Line] = {}
        matches: list[LineMatched] = []
        end = len(glance.pieces)
        size = 0
        for at in glance.others_from(begin):
            self._pass(glance, begin, at, first)
            matches += self._step(first + at, glance.pieces[at], samples)
            size += len(glance.pieces[at])
            if size >= STEP_BYTES or len(matches) >= _STEP_MATCHES or not self._reader.between_tracebacks:
                end = at + 1
                break
        else:
            self._pass(glance, begin, end, first)
        for kind, at in glance.newest(begin, end).items():
            line = self._cutter.line(first + at, glance.pieces[at])
            if kind not in samples or samples[kind].number < line.number:
                samples[kind] = line
        return end, self._reader.told(matches, samples)

    def _pass(self, glance: _Glance, begin: int, end: int, first: int) -> None:
        """Tells the reader of the calm line before that one: time and rank are taken from it."""
        at = glance.calm_before(begin, end)
        if at is not None:
            self._reader.pass_over(self._cutter.line(first + at, glance.pieces[at]))

    def _step(self, number: int, piece: bytes, samples: dict[Kind, Line]) -> list[LineMatched]:
        """The matches of one line. A record that had none is remembered: warnings come by the million."""
        calm = self._reader.between_tracebacks
        matches = self._reader.step(self._cutter.line(number, piece), samples)
        if calm and not matches and self._reader.between_tracebacks:
            self._kinds.dull(piece)
        return matches

    def _one_by_one(self, glance: _Glance, begin: int, first: int) -> tuple[int, list[LineMatched]]:
        samples: dict[Kind, Line] = {}
        matches: list[LineMatched] = []
        size = 0
        for at in range(begin, len(glance.pieces)):
            if glance.pieces[at]:
                matches += self._step(first + at, glance.pieces[at], samples)
            size += len(glance.pieces[at])
            if size >= STEP_BYTES or len(matches) >= _STEP_MATCHES or self._reader.between_tracebacks:
                return at + 1, self._reader.told(matches, samples)
        return len(glance.pieces), self._reader.told(matches, samples)


class _Kinds:
    """The kinds of lines by how they begin. Each second has new beginnings, so the time is left out of what is kept."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._known: dict[bytes, Kind | None] = {}
        self._dull: set[bytes] = set()

    def of(self, head: bytes) -> Kind | None:
        """The kind of a line that begins so, None when it has to be read."""
        stamp = _STAMP.match(head)
        if stamp is None:
            return self._told(head)
        key = head[stamp.end() :]
        if key not in self._known:
            if len(self._known) >= _KNOWN_KEPT:  # a hostile log can make up any number
                self._known.clear()
            self._known[key] = self._told(head)
        return self._known[key]

    def dull(self, piece: bytes) -> None:
        """Notes that this record, whose matches depend on nothing but itself, has none."""
        stamp = _STAMP.match(piece)
        if stamp is None or len(piece) > _DULL_BYTES:
            return
        text = piece.decode(errors="replace")
        if self._reader.is_record(text) and self._reader.kind(text) is None:
            if len(self._dull) >= _KNOWN_KEPT:
                self._dull.clear()
            self._dull.add(piece[stamp.end() :])

    def of_line(self, piece: bytes) -> Kind | None:
        """The kind of a whole line: it may have a longer prefix, or be known to say nothing."""
        if piece[_STAMP_BYTES:] in self._dull and _STAMP.match(piece):
            return NOTHING
        end = piece.find(b"] ", 0, _PREFIX_KEPT)
        return self.of(piece[: end + _WORDS_KEPT]) if end >= 0 else None

    def _told(self, head: bytes) -> Kind | None:
        """Escapes and the like are left to who reads whole lines."""
        if not head.isascii():
            return None
        text = head.decode()
        return self._reader.kind(text) if text.isprintable() else None


class _Glance:
    """The lines of a chunk, told apart by their first letters alone."""

    def __init__(self, kinds: _Kinds, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self._heads = list(map(_HEAD, pieces))
        self._last = dict(zip(self._heads, range(len(pieces)), strict=True))
        self._last.pop(b"", None)
        self._kinds = {head: kind for head in self._last if (kind := kinds.of(head)) is not None}
        self._longer: dict[int, Kind] = {}  # calm lines that a longer look has told
        self.others: list[int] = []  # lines that have to be read
        if len(self._kinds) < len(self._last):
            unknown = self._last.keys() - self._kinds.keys()
            others = list(itertools.compress(itertools.count(), map(unknown.__contains__, self._heads)))
            self._longer = {at: kind for at in others if (kind := kinds.of_line(pieces[at])) is not None}
            self.others = [at for at in others if at not in self._longer]
        self._longer_at = list(self._longer)

    def others_from(self, begin: int) -> Iterator[int]:
        """The lines from there on that have to be read."""
        return _within(self.others, begin, len(self.pieces))

    def calm_before(self, begin: int, end: int) -> int | None:
        """The line before that one, blank ones not counted, if it is calm."""
        at = end - 1
        while at >= begin and not self._heads[at]:
            at -= 1
        return at if at >= begin and self._kind(at) is not None else None

    def _kind(self, at: int) -> Kind | None:
        return self._kinds.get(self._heads[at]) or self._longer.get(at)

    def newest(self, begin: int, end: int) -> dict[Kind, int]:
        """Where the last line of each sampled kind is, among these lines."""
        whole = end - begin == len(self.pieces)
        last = self._last if whole else dict(zip(self._heads[begin:end], range(begin, end), strict=True))
        newest: dict[Kind, int] = {}
        calm = [(at, kind) for head, at in last.items() if (kind := self._kinds.get(head)) is not None]
        longer = [(at, self._longer[at]) for at in _within(self._longer_at, begin, end)]
        for at, kind in (*calm, *longer):
            if kind.sampled and newest.get(kind, -1) < at:
                newest[kind] = at
        for kind in [kind for kind in newest if kind.access]:
            at = self._newest_answer(kind, begin, end)
            if at is not None:
                newest[kind.of_answers] = at
        return newest

    def _newest_answer(self, kind: Kind, begin: int, end: int) -> int | None:
        """Among access lines one counts more than the others: that of a request that was answered."""
        for at in range(end - 1, begin - 1, -1):
            if answers(self.pieces[at]) and self._kind(at) == kind:
                return at
        return None


def _within(places: list[int], begin: int, end: int) -> Iterator[int]:
    """Those of the ascending places that are among these."""
    return itertools.islice(places, bisect.bisect_left(places, begin), bisect.bisect_left(places, end))
