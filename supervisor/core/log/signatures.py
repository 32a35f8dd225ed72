"""Finds the cause signatures that a record, a raw line or a traceback carries."""

from __future__ import annotations

from collections import Counter

import msgspec

from supervisor.core.log.patterns import Match, Pattern, any_of, compiled
from supervisor.core.log.traceback import TracebackBlock
from supervisor.profile import Profile, Signature

_MARK = 6
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
        self._records = [one for one in all_of_them if "record" in one.signature.where]
        self._raws = [one for one in all_of_them if "raw" in one.signature.where]
        self._tracebacks = [one for one in all_of_them if "traceback" in one.signature.where]
        self._by_record_mark = by_mark(self._records)
        self._by_raw_mark = by_mark(self._raws)
        self._known: dict[tuple[str, str], list[Found]] = {}  # every rank raises the same, some again and again
        self._record_marks = any_of(self._by_record_mark)
        self._raw_marks = any_of(self._by_raw_mark)

    @property
    def record_marks(self) -> tuple[str, ...]:
        """Texts without all of which no signature is in a record."""
        return tuple(self._by_record_mark)

    def record(self, message: str) -> list[Found]:
        """In an engine's record."""
        text = message[:TEXT_SEARCHED]
        return _in_line(self._by_record_mark, text) if self._record_marks.search(text) else []

    def raw(self, message: str) -> list[Found]:
        """In a line without prefix."""
        text = message[:TEXT_SEARCHED]
        return _in_line(self._by_raw_mark, text) if self._raw_marks.search(text) else []

    def traceback(self, block: TracebackBlock) -> list[Found]:
        """In the exceptions of a traceback, or in the record that announces it."""
        texts = "\n".join([block.header, *(raised.text for raised in block.chain)])[:TEXT_SEARCHED]
        frames = block.frames[-_FRAMES_SEARCHED:]
        known = self._known.get((texts, frames))
        if known is None:
            matches = [(one, one.in_traceback(texts, frames)) for one in self._tracebacks]
            known = [Found(one.signature.name, _groups(match)) for one, match in matches if match]
            if len(self._known) >= _KNOWN_KEPT:
                self._known.clear()
            self._known[texts, frames] = known
        return known


def by_mark(candidates: list[Compiled]) -> dict[str, list[Compiled]]:
    """Few short texts of which every needle has one, with the signatures behind them: most lines have none."""
    needles = sorted({needle for one in candidates for needle in one.signature.needles})
    shared = Counter(part for needle in needles for part in _parts(needle))
    chosen: dict[str, list[Compiled]] = {}
    for needle in needles:
        if not any(mark in needle for mark in chosen):
            chosen[max(_parts(needle), key=lambda part: (" " not in part, shared[part], part))] = []
    for mark, ones in chosen.items():
        ones += [one for one in candidates if any(mark in needle for needle in one.signature.needles)]
    return chosen


def _parts(needle: str) -> set[str]:
    """All its pieces of `_MARK` letters that are not mere blanks between words."""
    if len(needle) <= _MARK:
        return {needle}
    return {needle[at : at + _MARK] for at in range(len(needle) - _MARK + 1)}


def _in_line(by_marks: dict[str, list[Compiled]], text: str) -> list[Found]:
    marks = [mark for mark in by_marks if mark in text]
    if not marks:
        return []
    candidates = {one.place: one for mark in marks for one in by_marks[mark]}
    found = [(candidates[place], candidates[place].in_text(text)) for place in sorted(candidates)]
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
