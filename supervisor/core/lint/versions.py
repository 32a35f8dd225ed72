"""Orders version texts as Python packages write them, and tells whether one is within a range."""

from __future__ import annotations

import re
from typing import TypeAlias

Version: TypeAlias = tuple[tuple[int, ...], int, int]

_VERSION = re.compile(
    r"v?(?P<release>\d{1,18}(?:\.\d{1,18})*)(?:[._-]?(?P<pre>a|b|rc)\d*)?"
    r"(?:[._-]?post(?P<post>\d{0,18}))?(?P<dev>\.?dev\d*)?(?:\+.*)?"
)
_CLAUSE = re.compile(r"(>=|<=|==|<|>)(.+)")
_PARTS = 4  # of a release; 0.5 is 0.5.0.0


def parse(text: str) -> Version | None:
    """A key to compare by. None for what is no version, and for the 0.0.0 that a build without history gets."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        return None
    numbers = [int(part) for part in match["release"].split(".")]
    release = tuple(numbers[:_PARTS] + [0] * (_PARTS - len(numbers)))
    if not any(release):
        return None
    post = int(match["post"] or 0) if match["post"] is not None else -1
    final = -1 if match["pre"] or match["dev"] else 0
    return release, final, post


def within(text: str, wanted: str) -> bool | None:
    """Whether the version is in a range such as ">=0.5.1,<0.5.7". None when the version is not known."""
    if not wanted:
        return True
    version = parse(text)
    if version is None:
        return None
    return all(_fulfils(version, clause) for clause in wanted.split(","))


def _fulfils(version: Version, clause: str) -> bool:
    match = _CLAUSE.fullmatch(clause.strip())
    limit = parse(match[2]) if match else None
    if match is None or limit is None:
        raise ValueError(f"cannot read the range of versions {clause!r}: write >=0.5.1,<0.5.7")
    match match[1]:
        case ">=":
            return version >= limit
        case "<=":
            return version <= limit
        case "<":
            return version < limit
        case ">":
            return version > limit
        case _:
            return version == limit
