"""A counter that grows with every change, for waiters and followers: they wake at once and are never queued for."""

from __future__ import annotations

import anyio


class Hub:
    """One for the daemon. A slow follower costs nothing: it reads what is current when it comes."""

    def __init__(self) -> None:
        self._count = 0
        self._next = anyio.Event()

    @property
    def count(self) -> int:
        """How many changes there have been."""
        return self._count

    def publish(self) -> None:
        """Something that can be seen from outside has changed."""
        self._count += 1
        self._next.set()
        self._next = anyio.Event()

    async def changed(self, after: int) -> int:
        """Wait until `count` is above `after`; as long as it takes, the caller bounds it."""
        while self._count <= after:
            await self._next.wait()
        return self._count
