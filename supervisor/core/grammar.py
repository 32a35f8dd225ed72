"""Turns lines of an engine's log into matches of its profile's rules.

A progress bar can be glued to the record behind it, so a line is split at the engine's prefix first. Rules for records
count only behind that prefix, at the start of the message: a prompt which quotes them moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from supervisor.core.rules import RuleIndex, RuleMatch, rule_index
from supervisor.core.signatures import Found, signature_index
from supervisor.core.traceback import HEAD, TracebackBlock
from supervisor.events import LineMatched
from supervisor.lines import Line
from supervisor.profile import Profile

TRACEBACK = "traceback"  # the rule of a traceback that no signature knows
TEXT_KEPT = 2000
_PREFIX_KEPT = 96  # letters in which a prefix ends
_STAMP_KEPT = 20  # letters of a full stamp: what follows names the rank
_SPLIT_WITHIN = 64  # a glued record is looked for in so many segments of a line


class Segment(msgspec.Struct, frozen=True):
    """A record behind its prefix, or (`prefixed` False) what stands before the first one."""

    number: int
    rank: str
    stamp: str
    message: str
    prefixed: bool


class LogReader:
    """Reads one attempt's log. Holds nothing but the tracebacks that are being assembled."""

    def __init__(self, profile: Profile, attempt: int) -> None:
        self._rules = rule_index(profile)
        self._signatures = signature_index(profile)
        self._attempt = attempt
        self._blocks: dict[str, TracebackBlock] = {}  # by the tag its lines carry, "" = none
        self._mistrusted = False  # raw lines may go on with a record of users' text
        self._prefixes = 0  # without any, the format was replaced and every line may be a record
        self.stamp = ""
        self.rank = ""

    def read(self, lines: Iterable[Line]) -> list[LineMatched]:
        """The matches of these lines, in their order. Of a sampled rule only the newest per rank is reported."""
        matches: list[LineMatched] = []
        newest: dict[tuple[str, str], Line] = {}
        for line in lines:
            kind = self._sampled(line)
            if kind is not None:
                newest[kind] = line
            else:
                matches.extend(self._line(line))
        if not newest:
            return matches
        samples = [match for line in newest.values() for match in self._line(line)]
        return sorted([*matches, *samples], key=_number)

    def _sampled(self, line: Line) -> tuple[str, str] | None:
        """What a line of serving is a sample of; such lines come by the thousand, so that only the newest is read."""
        end = line.text.find("] ", 0, _PREFIX_KEPT)
        if end < 0 or self._blocks or line.partial or not line.text.startswith(self._rules.sampled_starts, end + 2):
            return None
        self._mistrusted = False
        _, method, rest = line.text.partition('"POST ')
        return line.text[_STAMP_KEPT:end], method + rest[-12:] if method else line.text[end + 2 : end + 14]

    def finish(self) -> list[LineMatched]:
        """What the end of the log, or a pause in it, completes: the open tracebacks."""
        blocks, self._blocks = self._blocks, {}
        return [match for block in blocks.values() for match in self._traceback(block)]

    def _line(self, line: Line) -> Iterator[LineMatched]:
        for segment in segments(self._rules, line):
            if not segment.prefixed:
                yield from self._raw(segment, line.partial)
            elif not line.partial:
                yield from self._record(segment)

    def _record(self, segment: Segment) -> Iterator[LineMatched]:
        self._prefixes += 1
        self.stamp, self.rank = segment.stamp or self.stamp, segment.rank
        block = self._blocks.get(segment.rank)
        if block is not None and block.prefixed and block.goes_on(segment.message):
            block.takes(segment.message, segment.number)
            return
        for tag in {"", segment.rank} & self._blocks.keys():
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
            self._blocks[""] = TracebackBlock.from_record(segment.number, segment.rank, self.stamp, segment.message)
            return
        if TracebackBlock.begins(segment.message):  # an engine that puts its prefix before every line
            opened = TracebackBlock(segment.number, segment.rank, self.stamp, segment.message)
            opened.prefixed = True
            self._blocks[segment.rank] = opened
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
            segment = msgspec.structs.replace(segment, rank=tag or self.rank, message=message)
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
            self._blocks[tag] = TracebackBlock(segment.number, segment.rank, self.stamp, segment.message)
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
        stamp = segment.stamp or self.stamp
        text = segment.message[:TEXT_KEPT]
        return LineMatched(self._attempt, segment.number, name, segment.rank, stamp, fields, text)


def segments(rules: RuleIndex, line: Line) -> list[Segment]:
    """The line split in front of every prefix. A record of users' text is never split: it may quote a prefix."""
    text = line.text
    prefix = rules.leading(text)
    if prefix is None:
        text = rules.unwrap(text)
        prefix = rules.leading(text) or rules.prefix.search(text)
    if prefix is None:
        return [Segment(line.number, "", "", text, False)]
    parts = []
    if prefix.start() > 0:
        parts.append(Segment(line.number, "", "", text[: prefix.start()], False))
    for _ in range(_SPLIT_WITHIN):
        trusted = not text.startswith(rules.untrusted, prefix.end())
        following = rules.prefix.search(text, prefix.end()) if trusted else None
        end = following.start() if following is not None else len(text)
        rank = rules.canonical(prefix["ranks"] or "")
        parts.append(Segment(line.number, rank, prefix["stamp"] or "", text[prefix.end() : end], True))
        if following is None:
            break
        prefix = following
    return parts


def _number(match: LineMatched) -> int:
    return match.line
