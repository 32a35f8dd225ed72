"""Compiles the patterns of a profile so that no text, whoever wrote it, makes them take long.

Log text can hold a user's prompt, and Python's `re` backtracks: one line of 4,096 letters kept a pattern with two
bounded gaps busy for 32 s. RE2 takes time in proportion to the text. Its price is 2.4 MiB and 3 ms for the import and
as much again for all patterns of a profile (docs/decisions/0013-linear-patterns.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, cast

import re2

from supervisor.profile import ProfileError

_MEMORY_BYTES = 2 << 20  # of one pattern's automaton; beyond it RE2 gets slower, not bigger


class Match(Protocol):
    """What both engines answer of a match."""

    def groupdict(self) -> dict[str, str | None]:
        """The named groups; None for those that took no part."""

    def end(self) -> int:
        """Where it ended."""


class Pattern(Protocol):
    """A compiled pattern, of either engine."""

    def match(self, text: str) -> Match | None:
        """At the beginning of the text."""

    def search(self, text: str) -> Match | None:
        """Anywhere in the text."""


def compiled(pattern: str) -> Pattern:
    """The pattern, in time linear in the text; one that looks ahead without consuming (RE2 cannot) by `re`.

    Raises ProfileError for what RE2 does not know and the profile's own check let pass.
    """
    if needs_backtracking(pattern):
        return cast("Pattern", re.compile(pattern))
    try:
        return _Linear(pattern)
    except re2.error as problem:
        raise ProfileError(f"cannot use the pattern {pattern!r}: {problem}") from problem


class _Linear:
    """A pattern of RE2, asked in bytes: its own layer for text counts letters for longer than RE2 looks for a match."""

    def __init__(self, pattern: str) -> None:
        self._regexp = re2.compile(pattern.encode(), _options())
        self._groups = {name.decode(): number for name, number in self._regexp.groupindex.items()}

    def match(self, text: str) -> Match | None:
        data = text.encode()
        found = self._regexp.match(data)
        return None if found is None else _LinearMatch(data, found, self._groups)

    def search(self, text: str) -> Match | None:
        data = text.encode()
        found = self._regexp.search(data)
        return None if found is None else _LinearMatch(data, found, self._groups)


class _LinearMatch(NamedTuple):
    data: bytes
    found: Any  # re2 has no types
    groups: dict[str, int]

    def groupdict(self) -> dict[str, str | None]:
        spans = {name: self.found.span(number) for name, number in self.groups.items()}
        return {name: self.data[begin:end].decode() if begin >= 0 else None for name, (begin, end) in spans.items()}

    def end(self) -> int:
        return len(self.data[: self.found.end()].decode())


def any_of(texts: Iterable[str]) -> Pattern:
    """Finds any of these texts in one pass: most lines have none, and asking for each costs a hundred passes."""
    return compiled("|".join(map(re.escape, texts)) or "$^")


def needs_backtracking(pattern: str) -> bool:
    """Whether only `re` knows what this pattern is made of."""
    return any(mark in pattern for mark in ("(?!", "(?=", "(?<!", "(?<="))


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    return options
