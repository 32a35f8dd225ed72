"""Remembers which server has which ports, so that no two of ours start for the same one."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.ports import PortUse


class PortBook:
    """Which server has which ports. One server's ports are held for it from its first look until it rests.

    Nobody listens on them for most of a start, so that two servers on one port would both find it free.
    """

    def __init__(self) -> None:
        self._holders: dict[int, str] = {}

    def claim(self, server: str, ports: Iterable[PortUse]) -> list[str]:
        """Hold them for the server; what is in the way in words, and then none is held."""
        uses = tuple(ports)
        taken = [use for use in uses if self._holders.get(use.port, server) != server]
        if taken:
            return [f"port {use.port} ({use.purpose}) belongs to server {self._holders[use.port]}" for use in taken]
        self.release(server)
        self._holders |= dict.fromkeys((use.port for use in uses), server)
        return []

    def release(self, server: str) -> None:
        """The server rests."""
        self._holders = {port: holder for port, holder in self._holders.items() if holder != server}
