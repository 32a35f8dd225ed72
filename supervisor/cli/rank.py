"""Keeps of a log the lines of one rank, and notes which other ranks it names."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_TOLD = 8


class RankLines:
    """Lines whose bracketed prefix names the rank, or the last of them; a line is judged when it is whole."""

    def __init__(self, rank: str, last: int | None) -> None:
        self._rank = rank
        self._last = last
        self._wanted = re.compile(rf"\[[^\]]*\b{re.escape(rank)}\b[^\]]*\]")
        # As the rank is written, with any number.
        self._alike = re.compile(rf"\b{re.sub('[0-9]+', '[0-9]{1,4}', re.escape(rank))}\b")
        self._others: dict[str, None] = {}
        self.found = False

    def of(self, texts: Iterator[str]) -> Iterator[str]:
        """Pieces of whole lines."""
        if self._last is None:
            yield from self._kept(texts)
            return
        found = [line for text in self._kept(texts) for line in text.splitlines(keepends=True)]
        yield from found[-self._last :] if self._last else ()

    def _kept(self, texts: Iterator[str]) -> Iterator[str]:
        rest = ""
        for text in texts:
            *lines, rest = (rest + text).split("\n")
            if kept := [f"{line}\n" for line in lines if self._is_wanted(line)]:
                yield "".join(kept)

    def _is_wanted(self, line: str) -> bool:
        wanted = self._wanted.match(line) is not None
        self.found = self.found or wanted
        if not self.found and line.startswith("[") and len(self._others) <= _TOLD:
            self._others |= dict.fromkeys(self._alike.findall(line.partition("]")[0]))
        return wanted

    def missing(self) -> str:
        """That there is none of it, and who is there; "" when there was one."""
        if self.found:
            return ""
        others = sorted(self._others, key=lambda one: (len(one), one))
        listed = f"; they name {', '.join(others[:_TOLD])}{', ...' if others[_TOLD:] else ''}" if others else ""
        return f"no line that was read is of rank {self._rank}{listed}"
