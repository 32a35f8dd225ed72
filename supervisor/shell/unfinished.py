"""Has the evidence finished that an earlier daemon has died over, and tells the servers where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from supervisor.edge import evidence
from supervisor.edge.evidence import Finished
from supervisor.events import EvidenceKept
from supervisor.shell.loop import ServerLoop
from supervisor.threads import Threads

LIMIT_S = 10.0

log = structlog.get_logger()


async def finished(directory: Path) -> tuple[Finished, ...]:
    """The bundles that have got their manifest now. A disk that does not answer leaves them to the next daemon."""
    try:
        return await Threads("the disk").run(evidence.finish, str(directory), limit_s=LIMIT_S)
    except OSError as problem:
        why = problem.strerror or str(problem)
        log.warning("evidence", problem=f"cannot look for bundles that were not written to their end: {why}")
        return ()


async def tell(found: Iterable[Finished], loop: Callable[[str], ServerLoop | None]) -> None:
    """It is counted, and found from the failure that it belongs to."""
    for one in found:
        if one.problem:
            log.warning("evidence", server=one.server, path=one.path, problem=f"cannot finish it: {one.problem}")
            continue
        log.warning("evidence", server=one.server, path=one.path, problem=one.missing[-1])
        if (server := loop(one.server)) is not None:
            await server.post(EvidenceKept(one.attempt, one.path, one.missing, cut=True))
