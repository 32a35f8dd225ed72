"""Says the demo's story: above a live view on a terminal, as plain lines anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Protocol

from rich.console import Console
from rich.text import Text

from supervisor.api import wire
from supervisor.cli.text import wrapped
from supervisor.demo.stage import NOTES
from supervisor.demo.story import Telling
from supervisor.shell.terminal import Board

_TIME_CELLS, _NAME_CELLS = 8, 7
_NARROWEST = 40


class Narrator(Protocol):
    """Where the story goes."""

    def show(self, servers: Sequence[wire.Server]) -> None:
        """The servers as they are now."""
        ...

    def tell(self, tellings: Iterable[Telling]) -> None:
        """What has happened."""
        ...

    def say(self, text: str = "", style: str = "") -> None:
        """Words of the demo's own."""
        ...

    def close(self) -> None:
        """Nothing moves any more."""
        ...


def narrator() -> Narrator:
    """The one that suits standard output."""
    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveNarrator(console)
    return PlainNarrator()


class LiveNarrator:
    """Only what the view below does not show by itself is told, so that the story stays short."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._board = Board(console, NOTES)
        self._board.__enter__()

    def show(self, servers: Sequence[wire.Server]) -> None:
        self._board.show(servers)

    def tell(self, tellings: Iterable[Telling]) -> None:
        for telling in tellings:
            if not telling.minor:
                lines = lines_of(telling, self._console.width - 1)
                self._board.say(*(Text(line, telling.style) for line in lines))

    def say(self, text: str = "", style: str = "") -> None:
        self._board.say(Text(text, style))

    def close(self) -> None:
        self._board.clear()
        self._board.__exit__(None, None, None)


class PlainNarrator:
    """One line for everything, flushed: a CI log is read while it grows."""

    def show(self, servers: Sequence[wire.Server]) -> None:
        pass

    def tell(self, tellings: Iterable[Telling]) -> None:
        for telling in tellings:
            self.say(_prefix(telling) + telling.text)

    def say(self, text: str = "", style: str = "") -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def close(self) -> None:
        pass


def lines_of(telling: Telling, width: int) -> list[str]:
    """The telling in lines of the width, the later ones below the first one's words."""
    prefix = _prefix(telling)
    return wrapped(prefix + telling.text, max(_NARROWEST, width), len(prefix))


def _prefix(telling: Telling) -> str:
    if telling.at_s is None:
        return " " * (_TIME_CELLS + _NAME_CELLS)
    return f"{telling.at_s:{_TIME_CELLS - 4}.1f} s  {telling.server:<{_NAME_CELLS}}"
