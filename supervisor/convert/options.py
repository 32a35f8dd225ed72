"""The options of one supervisord process, each with everything that may stand in its %(NAME)s expanded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from supervisor.convert.ini import Ini

T = TypeVar("T")


class Process(msgspec.Struct, frozen=True):
    """One process of a program: where its options stand and which names they may use."""

    section: str
    group: str
    expansions: dict[str, object]


class Options:
    """Reads them one by one."""

    def __init__(self, ini: Ini, process: Process) -> None:
        self._ini = ini
        self._process = process

    def has(self, option: str) -> bool:
        return self._ini.raw(self._process.section, option) is not None

    def get(self, option: str, read: Callable[[str, str], T]) -> T | None:
        """What `read` makes of the option and its place in the file; None when it is not set."""
        value = self._ini.text(self._process.section, option, self._process.expansions)
        return None if value is None else read(value, self.place(option))

    def names(self) -> list[str]:
        return self._ini.names(self._process.section)

    def place(self, option: str) -> str:
        return f"[{self._process.section}] {option}"


def as_it_is(text: str, _place: str) -> str:
    """For options that are plain text."""
    return text
