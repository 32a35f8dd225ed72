"""The daemon's own log: one line a decision; JSON for machines, colours for a terminal, repeats counted."""

from __future__ import annotations

import atexit
import io
import logging
import os
import sys
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Protocol, TextIO, TypeAlias, cast

import structlog

from supervisor.shell import clock
from supervisor.shell.logfile import LogFile
from supervisor.shell.outlet import Outlet

REPEATS_S = 60.0
_REMEMBERED_MAX = 256
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}  # of syslog(3)

EventDict: TypeAlias = MutableMapping[str, Any]
Processor: TypeAlias = Callable[[Any, str, EventDict], Any]


class Copy(Protocol):
    """Takes lines of the log as well."""

    def write(self, text: str) -> None:
        """Never waits."""
        ...


def configure(
    stream: TextIO | None = None, *, pretty: bool | None = None, level: int = logging.INFO, file: str | None = None
) -> Callable[[], None]:
    """Set structlog up for the process. Pretty by default on a terminal alone; `file` gets JSON lines as well.

    What it returns has the file's last lines written, for who ends the process without its interpreter's end.
    """
    out = stream or sys.stderr
    on_terminal = out.isatty() if pretty is None else pretty
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # No rich tracebacks: every daemon would pay for rich (`python -m bench.prices rich.console`).
    coloured = structlog.dev.ConsoleRenderer(colors=True, exception_formatter=structlog.dev.plain_traceback)
    render: Processor = coloured if on_terminal else (_for_journald if _is_journal(out) else _json)
    copies = [LogFile(file)] if file else []
    for copy in copies:
        atexit.register(copy.close)
    structlog.configure(
        processors=[*shared, Repeats(render, copies)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(_never_waiting(out)),
        cache_logger_on_first_use=False,
    )

    def close() -> None:
        for copy in copies:
            copy.close()

    return close


# Without the frames' local variables: they hold environments, and these hold tokens.
_traceback = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))
_renderer = structlog.processors.JSONRenderer()


def _json(logger: Any, method: str, event: EventDict) -> str:
    return str(_renderer(logger, method, _traceback(logger, method, dict(event))))


def _for_journald(logger: Any, method: str, event: EventDict) -> str:
    """With the priority in front (sd-daemon(3)), so that `journalctl -p warning` finds what it should."""
    return f"<{_PRIORITIES.get(str(event.get('level')), 6)}>{_json(logger, method, event)}"


def _is_journal(out: TextIO) -> bool:
    """Whether systemd has connected this stream to its journal: it tells us device and inode of the socket."""
    try:
        status = os.fstat(out.fileno())
    except (AttributeError, OSError, io.UnsupportedOperation):
        return False
    return os.environ.get("JOURNAL_STREAM", "") == f"{status.st_dev}:{status.st_ino}"


class Repeats:
    """Renders, and counts a warning or error that says the same again instead of writing it.

    Decisions (info) are never held back: there is one line for each. What was counted is written when the time is over
    and the next line of any kind comes.
    """

    def __init__(
        self,
        render: Processor,
        copies: Sequence[Copy] = (),
        *,
        period_s: float = REPEATS_S,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._render = render
        self._copies = copies
        self._period_s = period_s
        self._monotonic = monotonic
        self._told: dict[str, _Told] = {}

    @property
    def remembered(self) -> int:
        """How many different lines are being counted."""
        return len(self._told)

    def __call__(self, logger: Any, method: str, event: EventDict) -> str:
        now = self._monotonic()
        due = self._due(now)
        if not self._is_repeat(event, now):
            due.append(event)
        if not due:
            raise structlog.DropEvent
        for copy in self._copies:
            for one in due:
                copy.write(_json(logger, method, dict(one)) + "\n")
        return "\n".join(str(self._render(logger, method, dict(one))) for one in due)

    def _is_repeat(self, event: EventDict, now: float) -> bool:
        if event.get("level") in ("debug", "info"):
            return False
        key = repr(sorted((name, str(value)) for name, value in event.items() if name != "timestamp"))
        if key in self._told:
            self._told[key].count += 1
            return True
        if len(self._told) >= _REMEMBERED_MAX:  # what cannot be remembered is written each time
            return False
        self._told[key] = _Told(event, now)
        return False

    def _due(self, now: float) -> list[EventDict]:
        over = [key for key, told in self._told.items() if now - told.since >= self._period_s]
        ended = [self._told.pop(key) for key in over]
        return [{**told.event, "repeated": told.count} for told in ended if told.count]


class _Told:
    """A line that was written, and how often it came again."""

    def __init__(self, event: EventDict, since: float) -> None:
        self.event = dict(event)
        self.since = since
        self.count = 0


def _never_waiting(out: TextIO) -> TextIO:
    """An Outlet in place of a stream with a descriptor; others (a live view, a buffer in memory) do not block."""
    try:
        return cast(TextIO, Outlet(out.fileno()))
    except (AttributeError, io.UnsupportedOperation):
        return out
