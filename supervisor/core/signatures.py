"""Finds the cause signatures that a record, a raw line or a traceback carries."""

from __future__ import annotations

import re

import msgspec

from supervisor.core.traceback import TracebackBlock
from supervisor.profile import Profile, Signature

# `.*?X` searched for costs the square of the line's length when X is not in it (26 s for one 19 kB line of arguments).
_LEADING_WILDCARD = re.compile(r"(?P<flags>\(\?[a-z]+\))?(?:\.\*\??|\(\?:\.\*\??\))")


class Compiled(msgspec.Struct, frozen=True):
    """One signature with its patterns compiled. `floating`: the pattern may match anywhere, also in a raw line."""

    signature: Signature
    pattern: re.Pattern[str] | None
    frames: re.Pattern[str] | None
    not_frames: re.Pattern[str] | None
    unless: re.Pattern[str] | None
    floating: bool

    def in_text(self, text: str, *, anchored: bool) -> re.Match[str] | bool | None:
        """The match in a line; `anchored` = at its start (raw lines can be anybody's text)."""
        if self.signature.needles and not any(needle in text for needle in self.signature.needles):
            return None
        if self.unless is not None and self.unless.search(text):
            return None
        if self.pattern is None:
            return True
        return self.pattern.match(text) if anchored and not self.floating else self.pattern.search(text)

    def in_traceback(self, texts: str, frames: str) -> re.Match[str] | bool | None:
        """The match among the exceptions of a traceback whose functions fit."""
        if self.frames is not None and not self.frames.search(frames):
            return None
        if self.not_frames is not None and self.not_frames.search(frames):
            return None
        return self.in_text(texts, anchored=False)


class Found(msgspec.Struct, frozen=True):
    """A signature and the named groups of its pattern."""

    name: str
    fields: dict[str, str]


class SignatureIndex:
    """All signatures of a profile, by the kind of text they are looked for in."""

    def __init__(self, profile: Profile) -> None:
        compiled = [_compile(signature) for signature in profile.signatures]
        self._records = [one for one in compiled if "record" in one.signature.where]
        self._raws = [one for one in compiled if "raw" in one.signature.where]
        self._tracebacks = [one for one in compiled if "traceback" in one.signature.where]

    def record(self, message: str) -> list[Found]:
        """In an engine's record, anywhere in its message."""
        return _in_line(self._records, message, anchored=False)

    def raw(self, message: str) -> list[Found]:
        """In a line without prefix, at its start."""
        return _in_line(self._raws, message, anchored=True)

    def traceback(self, block: TracebackBlock) -> list[Found]:
        """In the exceptions of a traceback."""
        texts = "\n".join(raised.text for raised in block.chain)
        frames = block.frames
        found = [(one, one.in_traceback(texts, frames)) for one in self._tracebacks]
        return [Found(one.signature.name, _groups(match)) for one, match in found if match]


def _in_line(candidates: list[Compiled], text: str, *, anchored: bool) -> list[Found]:
    found = [(one, one.in_text(text, anchored=anchored)) for one in candidates]
    return [Found(one.signature.name, _groups(match)) for one, match in found if match]


def _groups(match: re.Match[str] | bool | None) -> dict[str, str]:
    if not isinstance(match, re.Match):
        return {}
    return {name: value for name, value in match.groupdict().items() if value is not None}


def _compile(signature: Signature) -> Compiled:
    leading = _LEADING_WILDCARD.match(signature.pattern)
    rest = signature.pattern[leading.end() :] if leading else signature.pattern
    return Compiled(
        signature,
        _pattern((leading["flags"] or "") + rest if leading else rest),
        _pattern(signature.frames),
        _pattern(signature.not_frames),
        _pattern(signature.unless),
        floating=leading is not None,
    )


def _pattern(text: str) -> re.Pattern[str] | None:
    return re.compile(text) if text else None


def signature_index(profile: Profile) -> SignatureIndex:
    """The index of that profile; building it costs milliseconds, so it is kept."""
    index = _KEPT.get(id(profile))
    if index is None or index[0] is not profile:
        index = _KEPT[id(profile)] = (profile, SignatureIndex(profile))
    return index[1]


_KEPT: dict[int, tuple[Profile, SignatureIndex]] = {}
