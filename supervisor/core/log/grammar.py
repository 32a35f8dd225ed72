"""Turns lines of an engine's log into matches of its profile's rules.

Rules for records count only behind the engine's prefix, at the start of the message: a prompt which quotes them moves
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from supervisor.core.log.rules import RuleMatch, rule_index
from supervisor.core.log.segments import Segment, heading, segments
from supervisor.core.log.signatures import Found, signature_index
from supervisor.core.log.traceback import HEAD, TracebackBlock
from supervisor.events import LineMatched
from supervisor.lines import Line
from supervisor.profile import Profile

TRACEBACK = "traceback"  # the rule of a traceback that no signature knows
TEXT_KEPT = 2000
_PREFIX_KEPT = 96  # letters in which a prefix ends
_STAMP_KEPT = 20  # letters of a full stamp: what follows names the rank
_BLOCKS_KEPT = 64  # tracebacks that are open at once: one per rank, but a hostile log can make up any number
_OPEN_LINES = 1000  # that others may print before a traceback is taken as it is
_LOOKED_AFTER = 64  # lines


class Kind(NamedTuple):
    """What the newest line of many stands for."""

    rank: str
    start: str
    sampled: bool = True  # False: nothing in such a line counts
    access: bool = False

    @property
    def of_answers(self) -> Kind:
        """The kind of those that tell of a request that was answered."""
        return self._replace(start=f"{self.start}+")


NOTHING = Kind("", "", sampled=False)  # a record that is passed over


def answers(line: bytes) -> bool:
    """Whether an access line tells of a request that was answered."""
    return line.endswith(b" 200 OK") and b'"POST ' in line


class LogReader:
    """Reads one attempt's log. Holds nothing but the tracebacks that are being assembled."""

    def __init__(self, profile: Profile, attempt: int) -> None:
        self._rules = rule_index(profile)
        self._signatures = signature_index(profile)
        self._attempt = attempt
        self._blocks: dict[str, TracebackBlock] = {}  # by the tag its lines carry or by who speaks, "" = none
        self._mistrusted = False  # raw lines may go on with a record of users' text
        self._prefixes = 0  # without any, the format was replaced and every line may be a record
        self._stamp = ""
        self._rank = ""
        self._passed: Line | None = None  # a newer record than the one that stamp and rank are of

    def read(self, lines: Iterable[Line]) -> list[LineMatched]:
        """The matches of these lines, in their order. Of what is read by sample only the newest is reported."""
        samples: dict[Kind, Line] = {}
        matches = [match for line in lines for match in self.step(line, samples)]
        return self.told(matches, samples)

    def step(self, line: Line, samples: dict[Kind, Line]) -> list[LineMatched]:
        """The matches of the next line; one that is read by sample is kept among the samples instead."""
        kind = self.kind(line.text) if not line.partial and not self._blocks else None
        if kind is None:
            return list(self._line(line))
        self.pass_over(line)
        if kind.sampled:
            samples[kind] = line
        if kind.access and answers(line.text.encode(errors="replace")):
            samples[kind.of_answers] = line
        return []

    def told(self, matches: list[LineMatched], samples: dict[Kind, Line]) -> list[LineMatched]:
        """All that is to be reported of lines that were read, in their order."""
        if not samples:
            return matches
        lines = dict.fromkeys(samples.values())  # one may stand for two kinds
        return sorted([*matches, *(match for line in lines for match in self._sample(line))], key=_number)

    def kind(self, text: str) -> Kind | None:
        """What a line that begins so is a sample of, or that it is passed over; None: it has to be read.

        Its first letters suffice, so that the other thousand lines of its kind need not be decoded.
        """
        end = text.find("] ", 0, _PREFIX_KEPT)
        if end < 0:
            return None
        start = self._rules.sampled_start(text, end + 2)
        if start:
            return Kind(text[_STAMP_KEPT:end], start, access=start in self._rules.access_starts)
        prefix = self._rules.prefix.match(text)
        if prefix is not None and text.startswith(self._rules.untrusted, prefix.end()):
            return NOTHING
        return None

    def is_record(self, text: str) -> bool:
        """Whether the line begins with the engine's prefix in its usual form."""
        return text.isprintable() and self._rules.prefix.match(text) is not None

    def pass_over(self, line: Line) -> None:
        """Takes note of the newest of records that are not read: what follows it may depend on it."""
        self._passed = line

    @property
    def between_tracebacks(self) -> bool:
        """Whether no traceback is open, so that a calm record means nothing but itself."""
        return not self._blocks

    @property
    def stamp(self) -> str:
        """The newest time that a record told."""
        self._catch_up()
        return self._stamp

    def _catch_up(self) -> None:
        line, self._passed = self._passed, None
        if line is None:
            return
        segment = heading(self._rules, line)
        if segment is not None:
            self._prefixes += 1
            self._stamp, self._rank = segment.stamp or self._stamp, segment.rank
            self._mistrusted = segment.message.startswith(self._rules.untrusted)

    def _sample(self, line: Line) -> Iterator[LineMatched]:
        segment = heading(self._rules, line)
        rule = self._rules.record(segment.message) if segment is not None else None
        if segment is not None and rule is not None:
            yield self._match(segment, rule.name, rule.fields)

    def finish(self) -> list[LineMatched]:
        """What the end of the log, or a pause in it, completes: the open tracebacks."""
        blocks, self._blocks = self._blocks, {}
        return [match for block in blocks.values() for match in self._traceback(block)]

    def _line(self, line: Line) -> Iterator[LineMatched]:
        self._catch_up()
        if self._blocks:
            yield from self._stale(line.number)
        for segment in segments(self._rules, line):
            if not segment.prefixed:
                yield from self._raw(segment, line.partial)
            elif not line.partial:
                yield from self._record(segment)

    def _stale(self, number: int) -> Iterator[LineMatched]:
        """Tracebacks that their writer, dead perhaps, has not gone on with: others' lines must not hold them back."""
        if len(self._blocks) > _BLOCKS_KEPT:
            yield from self._traceback(self._blocks.pop(next(iter(self._blocks))))
        if number % _LOOKED_AFTER == 0:
            for tag, block in list(self._blocks.items()):
                if number - block.line > _OPEN_LINES:
                    yield from self._traceback(self._blocks.pop(tag))

    def _record(self, segment: Segment) -> Iterator[LineMatched]:
        self._prefixes += 1
        self._stamp, self._rank = segment.stamp or self._stamp, segment.rank
        speaker = segment.speaker or segment.rank
        block = self._blocks.get(speaker)
        if block is not None and block.prefixed and block.goes_on(segment.message):
            block.takes(segment.message, segment.number)
            return
        for tag in {"", speaker} & self._blocks.keys():
            yield from self._traceback(self._blocks.pop(tag))
        self._mistrusted = segment.message.startswith(self._rules.untrusted)
        if self._mistrusted:
            return
        if (rule := self._rules.record(segment.message)) is not None:
            yield self._match(segment, rule.name, rule.fields)
            if rule.name not in self._rules.telling:
                return
        if segment.message.startswith(self._rules.benign):
            return
        if HEAD in segment.message:
            self._blocks[""] = TracebackBlock.from_record(segment.number, segment.rank, self._stamp, segment.message)
            return
        if TracebackBlock.begins(segment.message):  # an engine that puts its prefix before every line
            opened = TracebackBlock(segment.number, segment.rank, self._stamp, segment.message)
            opened.prefixed = True
            self._blocks[speaker] = opened
            return
        yield from self._found(segment, self._signatures.record(segment.message))

    def _raw(self, segment: Segment, partial: bool) -> Iterator[LineMatched]:
        if "%" in segment.message and (bar := self._rules.bar(segment.message)) is not None:
            yield self._match(segment, bar.name, bar.fields)
            glued = segment.message[bar.end :].partition("]")[2]
            if glued.strip() and not partial:
                yield from self._raw(msgspec.structs.replace(segment, message=glued), partial)
        elif not partial and not self._mistrusted:
            tag, message = self._rules.rank_tag(segment.message)
            segment = msgspec.structs.replace(segment, rank=tag or self._rank, message=message)
            yield from self._continuation(tag, segment)

    def _continuation(self, tag: str, segment: Segment) -> Iterator[LineMatched]:
        block = self._blocks.get(tag)
        begins = TracebackBlock.begins(segment.message)
        listens = block is None or (block.complete and not begins)
        rule = self._raw_rule(segment.message) if listens else None
        found = self._raw_signatures(segment.message) if listens and not begins else []
        if block is not None and not found and rule is None and block.takes(segment.message, segment.number):
            return
        if block is not None:
            yield from self._traceback(self._blocks.pop(tag))
        if begins:
            self._blocks[tag] = TracebackBlock(segment.number, segment.rank, self._stamp, segment.message)
            return
        if rule is not None:
            yield self._match(segment, rule.name, rule.fields)
        yield from self._found(segment, found)

    def _raw_rule(self, message: str) -> RuleMatch | None:
        rule = self._rules.raw(message)
        return self._rules.record(message) if rule is None and self._prefixes == 0 else rule

    def _raw_signatures(self, message: str) -> list[Found]:
        if message.startswith(self._rules.benign):
            return []
        found = self._signatures.raw(message)
        return self._signatures.record(message) if not found and self._prefixes == 0 else found

    def _traceback(self, block: TracebackBlock) -> list[LineMatched]:
        found = self._signatures.traceback(block) or [Found(TRACEBACK, {})]
        figures = {name: value for one in found for name, value in one.fields.items()}  # one text may hold all numbers
        common = {**figures, **block.fields(), "stage": self._rules.place(block.frames)}
        return [
            LineMatched(
                self._attempt,
                block.root.line,
                one.name,
                block.rank,
                block.stamp,
                common,
                block.summary[:TEXT_KEPT],
            )
            for one in found
        ]

    def _found(self, segment: Segment, found: list[Found]) -> Iterator[LineMatched]:
        for one in found:
            yield self._match(segment, one.name, one.fields)

    def _match(self, segment: Segment, name: str, fields: dict[str, str]) -> LineMatched:
        stamp = segment.stamp or self._stamp
        text = segment.message[:TEXT_KEPT]
        return LineMatched(self._attempt, segment.number, name, segment.rank, stamp, fields, text)


def _number(match: LineMatched) -> int:
    return match.line
