"""Removes the shared-memory files that one server's dead processes left behind, once its tree is proven empty."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable

import anyio.to_thread
import structlog

from supervisor.config import ServerConfig
from supervisor.edge import leftovers
from supervisor.profile import LeftoverRule
from supervisor.units import format_bytes

log = structlog.get_logger()


async def tidy(rules: tuple[LeftoverRule, ...], config: ServerConfig, pids: Iterable[int]) -> None:
    """`pids` are all that were seen in the tree: files that name any other process are nobody's business of ours."""
    owner = await anyio.to_thread.run_sync(_owner, config.user)  # a name may be looked up over the network
    if not rules or owner is None:
        return
    removed = await leftovers.remove(rules, owner, frozenset(pids))
    if removed.count or removed.refused:
        freed, refused = format_bytes(removed.bytes), removed.refused[:1]
        log.info("leftover files removed", server=config.name, files=removed.count, freed=freed, refused=refused)


def _owner(user: str | None) -> int | None:
    if not user:
        return os.geteuid()
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None
