"""Tells the changes of one server while it runs: JSON lines, or a live view for who sits at a terminal."""

from __future__ import annotations

import errno
import io
import os
import sys
import time
from collections.abc import Sequence
from typing import Protocol, TextIO, cast

import anyio
import msgspec

from supervisor.api import wire
from supervisor.api.control import Clock, EventRecord
from supervisor.lines import printable
from supervisor.snapshot import ServerSnapshot

LINE_BYTES = 4096  # PIPE_BUF: a pipe that is writable takes as much without blocking
_REASON_CHARACTERS = 600
_GONE = (errno.EPIPE, errno.EIO, errno.ENOSPC)  # the reader, the terminal, the space on the disk
_MILESTONES = ("lifecycle", "start")
_REFRESH_STARTING_S = 0.2
_REFRESH_SERVING_S = 1.0


class Change(msgspec.Struct, frozen=True):
    """One change as a JSON line."""

    time: str
    server: str
    facet: str
    before: str = msgspec.field(name="from")
    after: str = msgspec.field(name="to")
    reason: str = ""
    attempt: int = 0


class Report(Protocol):
    """Where a run's news goes."""

    async def begin(self, server: str, log_path: str, socket: str) -> None:
        """The run begins."""
        ...

    async def changed(self, records: Sequence[EventRecord], snapshot: ServerSnapshot, clock: Clock) -> float | None:
        """Tell what is new; in how many seconds to come again without any news, None for never."""
        ...

    def end(self) -> None:
        """Nothing comes any more."""
        ...


class JsonReport:
    """One line a change. A reader that stalls or goes away never holds up the server."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._open = True

    async def begin(self, server: str, log_path: str, socket: str) -> None:
        moment = wire.iso(time.time())
        await self._write(Change(moment, server, "log", "", log_path, "the server's own output"))
        await self._write(Change(moment, server, "socket", "", socket, "for sglctl -s"))

    async def changed(self, records: Sequence[EventRecord], snapshot: ServerSnapshot, clock: Clock) -> float | None:
        for one in records:
            reason = one.reason[:_REASON_CHARACTERS]
            await self._write(
                Change(wire.iso(one.wall), one.server, one.facet, one.before, one.after, reason, one.attempt)
            )
        return None

    def end(self) -> None:
        pass

    async def _write(self, change: Change) -> None:
        if not self._open:
            return
        line = msgspec.json.encode(change) + b"\n"
        try:
            await writable(self._descriptor)
            os.write(self._descriptor, line[:LINE_BYTES])
        except OSError as problem:
            if problem.errno not in _GONE:
                raise
            self._open = False  # nobody listens any more, which is no reason to stop a server


async def writable(descriptor: int) -> None:
    """Wait until a write does not block: as long as the reader likes. A regular file never blocks."""
    try:
        await anyio.wait_writable(descriptor)
    except PermissionError:  # epoll does not take files
        return


class Screen(io.TextIOBase):
    """The terminal, unbuffered. One that has been closed takes everything in silence: its server is ended by SIGHUP."""

    encoding = sys.getdefaultencoding()

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        data = text.encode(errors="replace")
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as problem:
            if problem.errno not in _GONE:
                raise
        return len(text)


class LiveReport:
    """Phases and bars at the bottom of the terminal, what happened above them."""

    def __init__(self, screen: Screen) -> None:
        from rich.console import Console  # only for who looks: `python -m bench.prices rich.console`

        from supervisor.shell.terminal import Board

        self._screen = screen
        self._board = Board(Console(file=cast(TextIO, screen)))

    async def begin(self, server: str, log_path: str, socket: str) -> None:
        self._board.__enter__()
        self.say(f"{server}: log {log_path}")
        self.say(f"{server}: sglctl -s {socket} status")

    async def changed(self, records: Sequence[EventRecord], snapshot: ServerSnapshot, clock: Clock) -> float | None:
        await writable(self._screen.fileno())  # Ctrl-S stops a terminal
        for one in records:
            if one.facet in _MILESTONES:
                at = time.strftime("%H:%M:%S", time.localtime(one.wall))
                self.say(f"{at} {one.server} {one.after}: {one.reason}", _style(one.after, snapshot.goal))
        self._board.show([wire.server(snapshot, clock)])
        return _REFRESH_SERVING_S if snapshot.lifecycle.value == "running" else _REFRESH_STARTING_S

    def end(self) -> None:
        self._board.__exit__(None, None, None)

    def say(self, text: str, style: str = "dim") -> None:
        """A line that stays."""
        from rich.text import Text

        self._board.say(Text(printable(text), style))


class Above(io.TextIOBase):
    """A stream for the daemon's own log, whose lines appear above the live view."""

    def __init__(self, report: LiveReport) -> None:
        self._report = report
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._report.say(line, "yellow")
        return len(text)


def _style(state: str, goal: str) -> str:
    match state:
        case "running":
            return "bold green"
        case "stopping" if goal == "down":  # as somebody asked
            return "dim"
        case "fatal" | "quarantined" | "stopping":
            return "bold red"
        case "backoff":
            return "bold yellow"
        case _:
            return "dim"
