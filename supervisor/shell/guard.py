"""Keeps a bug in one task from ending the daemon: all servers' loops live in the same task group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger()

Report = Callable[[str, Exception], None]


async def guarded(report: Report, what: str, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
    """Run the work; what it raises is reported and goes no further. Cancellation passes."""
    try:
        await work(*arguments)
    except Exception as bug:  # noqa: BLE001 - whatever it is, the other servers must not pay for it
        report(what, bug)


def log_bug(what: str, bug: Exception) -> None:
    """A report for tasks that belong to no server."""
    log.error("bug", where=what, exc_info=bug)
