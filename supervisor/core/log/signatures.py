"""Finds the cause signatures that a record, a raw line or a traceback carries."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

import msgspec

from supervisor.core.log.patterns import Match, Pattern, any_of, compiled
from supervisor.core.log.traceback import TracebackBlock
from supervisor.profile import Profile, Signature

_MARK = 6
_MARKS_TOGETHER = 32
TEXT_SEARCHED = 4096  # letters: patterns are tried at each, so a long line must not cost seconds

_FRAMES_SEARCHED = 32 * 1024  # letters
_KNOWN_KEPT = 32


class Compiled(msgspec.Struct, frozen=True):
    """One signature with its patterns compiled."""

    place: int  # in the profile: the first of equals counts
    signature: Signature
    pattern: Pattern | None
    frames: Pattern | None
    not_frames: Pattern | None
    unless: Pattern | None

    def in_text(self, text: str) -> Match | bool | None:
        """The match in a text, if it says what the signature means."""
        if self.signature.needles and not any(map(text.__contains__, self.signature.needles)):
            return None
        if self.unless is not None and self.unless.search(text):
            return None
        if self.pattern is None:
            return True
        return self.pattern.match(text) if self.signature.at_start else self.pattern.search(text)

    def in_traceback(self, texts: str, frames: str) -> Match | bool | None:
        """The match among the exceptions of a traceback whose functions fit."""
        if self.frames is not None and not self.frames.search(frames):
            return None
        if self.not_frames is not None and self.not_frames.search(frames):
            return None
        return self.in_text(texts)


class Found(msgspec.Struct, frozen=True):
    """A signature and the named groups of its pattern."""

    name: str
    fields: dict[str, str]


class SignatureIndex:
    """All signatures of a profile, by the kind of text they are looked for in."""

    def __init__(self, profile: Profile) -> None:
        all_of_them = [_compile(place, signature) for place, signature in enumerate(profile.signatures)]
        self._records = _Marked([one for one in all_of_them if "record" in one.signature.where])
        self._raws = _Marked([one for one in all_of_them if "raw" in one.signature.where])
        self._tracebacks = _Marked([one for one in all_of_them if "traceback" in one.signature.where])
        self._known: dict[tuple[str, str], list[Found]] = {}  # every rank raises the same, some again and again

    @property
    def record_marks(self) -> tuple[str, ...]:
        """Texts without all of which no signature is in a record."""
        return self._records.marks

    def record(self, message: str) -> list[Found]:
        """In an engine's record."""
        return _in_line(self._records, message[:TEXT_SEARCHED])

    def raw(self, message: str) -> list[Found]:
        """In a line without prefix."""
        return _in_line(self._raws, message[:TEXT_SEARCHED])

    def traceback(self, block: TracebackBlock) -> list[Found]:
        """In the exceptions of a traceback, or in the record that announces it."""
        texts = "\n".join([block.header, *(raised.text for raised in block.chain)])[:TEXT_SEARCHED]
        frames = block.frames[-_FRAMES_SEARCHED:]
        known = self._known.get((texts, frames))
        if known is None:
            matches = [(one, one.in_traceback(texts, frames)) for one in self._tracebacks.of(texts)]
            known = [Found(one.signature.name, _groups(match)) for one, match in matches if match]
            if len(self._known) >= _KNOWN_KEPT:
                self._known.clear()
            self._known[texts, frames] = known
        return known


class _Marked:
    """Signatures, found by marks: short texts of which each of a signature's needles has one. Most lines have none."""

    def __init__(self, signatures: list[Compiled]) -> None:
        self._always = {one.place: one for one in signatures if not one.signature.needles}
        self._behind = _by_mark(signatures)
        self.marks = tuple(self._behind)
        self._any = any_of(self.marks)

    def of(self, text: str) -> list[Compiled]:
        """Those that the text may carry, in the profile's order."""
        ones = dict(self._always)
        for mark in self._within(text):
            ones |= self._behind[mark]
        return [ones[place] for place in sorted(ones)]

    def _within(self, text: str) -> list[str]:
        """A pass of RE2 over the text for all marks, or some of them, costs as much as a look for two of them."""
        if self._any.search(text) is None:
            return []
        found = (part for any_of_them, part in self._parts if any_of_them.search(text) is not None)
        return [mark for part in found for mark in part if mark in text]

    @cached_property
    def _parts(self) -> list[tuple[Pattern, tuple[str, ...]]]:
        """Made when the first mark comes, which in a healthy log is late or never."""
        parts = [self.marks[at : at + _MARKS_TOGETHER] for at in range(0, len(self.marks), _MARKS_TOGETHER)]
        return [(any_of(part), part) for part in parts]


def _by_mark(candidates: list[Compiled]) -> dict[str, dict[int, Compiled]]:
    """Few short texts of which every needle has one, with the signatures behind it, by their place in the profile."""
    behind: dict[str, dict[int, Compiled]] = {}
    for one in candidates:
        for needle in one.signature.needles:
            behind.setdefault(needle, {})[one.place] = one
    shared = Counter(part for needle in behind for part in _pieces(needle))
    chosen: dict[str, dict[int, Compiled]] = {}
    for needle in sorted(behind):
        mark = next((mark for mark in chosen if mark in needle), None)
        mark = mark or max(_pieces(needle), key=lambda part: (" " not in part, shared[part], part))
        chosen.setdefault(mark, {}).update(behind[needle])
    return chosen


def _pieces(needle: str) -> set[str]:
    """All its pieces of `_MARK` letters that are not mere blanks between words."""
    if len(needle) <= _MARK:
        return {needle}
    return {needle[at : at + _MARK] for at in range(len(needle) - _MARK + 1)}


def _in_line(signatures: _Marked, text: str) -> list[Found]:
    found = [(one, one.in_text(text)) for one in signatures.of(text)]
    return [Found(one.signature.name, _groups(match)) for one, match in found if match]


def _groups(match: Match | bool | None) -> dict[str, str]:
    if match is None or isinstance(match, bool):
        return {}
    return {name: value for name, value in match.groupdict().items() if value is not None}


def _compile(place: int, signature: Signature) -> Compiled:
    return Compiled(
        place,
        signature,
        _pattern(signature.pattern),
        _pattern(signature.frames),
        _pattern(signature.not_frames),
        _pattern(signature.unless),
    )


def _pattern(text: str) -> Pattern | None:
    return compiled(text) if text else None


def signature_index(profile: Profile) -> SignatureIndex:
    """The index of that profile; building it costs milliseconds, so it is kept."""
    index = _KEPT.get(id(profile))
    if index is None or index[0] is not profile:
        index = _KEPT[id(profile)] = (profile, SignatureIndex(profile))
    return index[1]


_KEPT: dict[int, tuple[Profile, SignatureIndex]] = {}
