"""The daemon's own log: one line a decision; JSON for machines, colours for a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog


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
        else [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
