"""Compiles the patterns of a profile so that no text, whoever wrote it, makes them take long.

Log text can hold a user's prompt, and Python's `re` backtracks: one line of 4,096 letters kept a pattern with two
bounded gaps busy for 32 s. RE2 takes time in proportion to the text. Its price is 2.4 MiB and 3 ms for the import and
as much again for all patterns of a profile (docs/decisions/0013-linear-patterns.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol, cast

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
        return cast("Pattern", re2.compile(pattern, _options()))
    except re2.error as problem:
        raise ProfileError(f"cannot use the pattern {pattern!r}: {problem}") from problem


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
