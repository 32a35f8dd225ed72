"""Knows users' numbers, asked of the user database in a thread: it may be behind a network that does not answer."""

from __future__ import annotations

import os
import pwd

import anyio
import anyio.to_thread

LIMIT_S = 2.0


class Users:
    """`learn` first; who cannot be looked up in time is nobody until the next time."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._asked: set[str] = set()  # by a thread that has not come back
        self._thread = anyio.CapacityLimiter(1)  # one that hangs must not use up the threads that others wait for

    async def learn(self, user: str | None, limit_s: float = LIMIT_S) -> None:
        """Look the user up, once; None is our own, whom we know."""
        if user and user not in self._known and user not in self._asked:
            with anyio.move_on_after(limit_s):
                await anyio.to_thread.run_sync(self._ask, user, abandon_on_cancel=True, limiter=self._thread)

    def uid(self, user: str | None) -> int | None:
        """None while nobody knows."""
        return self._known.get(user) if user else os.geteuid()

    def _ask(self, user: str) -> None:
        self._asked.add(user)
        try:
            self._known[user] = _uid(user)
        finally:
            self._asked.discard(user)


def _uid(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return os.geteuid()
