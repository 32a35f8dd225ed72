"""Removes the shared-memory files that one server's dead processes left behind, once its tree is proven empty."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable

import structlog

from supervisor.config import ServerConfig
from supervisor.edge import leftovers
from supervisor.profile import LeftoverRule
from supervisor.threads import Threads
from supervisor.units import format_bytes

log = structlog.get_logger()

_lookups = Threads("the user database", 2)


async def tidy(
    rules: tuple[LeftoverRule, ...],
    config: ServerConfig,
    pids: Iterable[int],
    limit_s: float = leftovers.LOOK_LIMIT_S,
) -> None:
    """`pids` are all that were seen in the tree: files that name any other process are nobody's business of ours.

    `limit_s` bounds the look-up of the server's user.
    """
    owner = await _looked_up(config.user, limit_s) if rules else None
    if owner is None:
        return
    removed = await leftovers.remove(rules, owner, frozenset(pids))
    if removed.count or removed.refused:
        freed, refused = format_bytes(removed.bytes), removed.refused[:1]
        log.info("leftover files removed", server=config.name, files=removed.count, freed=freed, refused=refused)


async def _looked_up(user: str | None, limit_s: float) -> int | None:
    """None as well when the name is looked up over a network that does not answer: the end of a tree is not held up."""
    if not user:
        return os.geteuid()
    try:
        return await _lookups.run(_owner, user, limit_s=limit_s, thing=user)
    except TimeoutError:
        log.warning("leftover files stay", problem=f"user {user} cannot be looked up in time")
        return None


def _owner(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None
