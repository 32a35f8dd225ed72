"""Cuts a line of an engine's log in front of every prefix: a progress bar can be glued to the record behind it."""

from __future__ import annotations

import msgspec

from supervisor.core.log.rules import RuleIndex
from supervisor.lines import Line

_SPLIT_WITHIN = 64  # a glued record is looked for in so many segments of a line


class Segment(msgspec.Struct, frozen=True):
    """A record behind its prefix, or (`prefixed` False) what stands before the first one."""

    number: int
    rank: str
    stamp: str
    message: str
    prefixed: bool
    speaker: str = ""  # the process, where the prefix names it


def heading(rules: RuleIndex, line: Line) -> Segment | None:
    """The record that the line begins with, and all that follows it."""
    text = line.text
    prefix = rules.leading(text)
    if prefix is None:
        text = rules.unwrap(text)
        prefix = rules.leading(text)
    if prefix is None:
        return None
    rank = rules.canonical(prefix["ranks"] or "")
    return Segment(line.number, rank, prefix["stamp"] or "", text[prefix.end() :], True, rules.speaker(prefix))


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
        message = text[prefix.end() : end]
        parts.append(Segment(line.number, rank, prefix["stamp"] or "", message, True, rules.speaker(prefix)))
        if following is None:
            break
        prefix = following
    return parts
