"""The daemon's own log: one line a decision; JSON for machines, colours for a terminal."""

from __future__ import annotations

import io
import logging
import sys
from typing import Any, TextIO, cast

import structlog

from supervisor.shell.outlet import Outlet


def configure(stream: TextIO | None = None, *, pretty: bool | None = None, level: int = logging.INFO) -> None:
    """Set structlog up for the process. Pretty by default on a terminal alone."""
    out = stream or sys.stderr
    on_terminal = out.isatty() if pretty is None else pretty
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=False),
    ]
    renderer: list[Any] = (
        # No rich tracebacks: importing rich costs every daemon 6 MiB.
        [structlog.dev.ConsoleRenderer(colors=True, exception_formatter=structlog.dev.plain_traceback)]
        if on_terminal
        else [_traceback, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(_never_waiting(out)),
        cache_logger_on_first_use=False,
    )


# Without the frames' local variables: they hold environments, and these hold tokens.
_traceback = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


def _never_waiting(out: TextIO) -> TextIO:
    """An Outlet in place of a stream with a descriptor; others (a live view, a buffer in memory) do not block."""
    try:
        return cast(TextIO, Outlet(out.fileno()))
    except (AttributeError, io.UnsupportedOperation):
        return out
