"""What every kind of router has in common: it can be asked whom it has, and told whom it is to have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from supervisor.lines import printable

EXCERPT_CHARACTERS = 200


class Worker(msgspec.Struct, frozen=True):
    """A server as a router knows it. `role` is prefill or decode of a disaggregated pair; `key` is never shown.

    `bootstrap_port` is where a prefill server's peers find it, 0 for others.
    """

    server: str
    url: str
    role: str = ""
    key: str = ""
    bootstrap_port: int = 0


class Listed(msgspec.Struct, frozen=True):
    """Whom the router has now, by their addresses. `ready`: those of them that it hands requests to.

    `complete` is False when the router cannot be asked, and this is only what it has confirmed. `owed`: it may have
    taken something else than this; `change` has it take this, also when there is nothing to change.
    """

    urls: frozenset[str]
    ready: frozenset[str]
    complete: bool = True
    owed: bool = False


class Trouble(msgspec.Struct, frozen=True):
    """Why the router could not be asked or told; never holds its address or a secret."""

    reason: str


class Router(Protocol):
    """One router. Every error is an answer, and every call has an end."""

    async def listed(self) -> Listed | Trouble:
        """Whom it has now."""
        ...

    async def change(self, joining: Sequence[Worker], leaving: Sequence[Worker]) -> Trouble | None:
        """Have it take these and let go of those; what it has made of that, the next `listed` tells."""
        ...


def excerpt(data: bytes | str) -> str:
    """The beginning of what somebody said, fit to be shown."""
    text = data[: EXCERPT_CHARACTERS * 4].decode("utf-8", "replace") if isinstance(data, bytes) else data
    return printable(text, " ")[:EXCERPT_CHARACTERS].strip()
