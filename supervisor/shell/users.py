"""Knows users' numbers, asked of the user database in a thread: it may be behind a network that does not answer."""

from __future__ import annotations

import contextlib
import os
import pwd

from supervisor.threads import Threads

LIMIT_S = 2.0


class Users:
    """`learn` first; who cannot be looked up in time is nobody until the next time."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._threads = Threads("the user database", 4)

    async def learn(self, user: str | None, limit_s: float = LIMIT_S) -> None:
        """Look the user up, once; None is our own, whom we know."""
        if user and user not in self._known:
            with contextlib.suppress(TimeoutError):
                await self._threads.run(self._ask, user, limit_s=limit_s, thing=user)

    def uid(self, user: str | None) -> int | None:
        """None while nobody knows."""
        return self._known.get(user) if user else os.geteuid()

    def _ask(self, user: str) -> None:
        self._known[user] = _uid(user)


def _uid(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return os.geteuid()
