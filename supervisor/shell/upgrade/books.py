"""Keeps the books of upgrades for one daemon: what was left to it, whether another may begin, what it leaves itself."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from supervisor import __version__
from supervisor.api.control import EventRecord, UpgradeRefusedError, Upgrading
from supervisor.api.serve import Binding
from supervisor.shell.upgrade.handover import Handover, Passed, Unheard, execute
from supervisor.shell.upgrade.trial import tried


class Upgrades:
    """`command` is what is executed, () where nothing can be; `received` what the code before has left."""

    def __init__(self, command: Sequence[str] = (), received: Handover | None = None) -> None:
        self._command = command
        self.received = received
        self.next: Handover | None = None
        self.unheard = Unheard()
        self._trying = False

    @property
    def number(self) -> int:
        """How often the code of this process was replaced."""
        return self.received.number if self.received is not None else 0

    @property
    def problem(self) -> str:
        """Why the last upgrade has left the old code in place."""
        return self.received.problem if self.received is not None else ""

    async def begin(self, by: str, obstacle: Callable[[], Awaitable[str]]) -> Upgrading:
        """Try the installed code; when it comes up, `next` says that the daemon is to make way for it.

        `obstacle` says what is in the way, "" for nothing; it is asked again after the trial, which takes seconds.
        """
        if not self._command:
            raise UpgradeRefusedError("cannot upgrade: it runs without a configuration file; stop it and run it anew")
        if self._trying or self.next is not None:
            raise UpgradeRefusedError("cannot upgrade: another upgrade is under way; see what becomes of it")
        self._trying = True
        try:
            _refuse(await obstacle())
            after = await tried(self._command, os.environ)
            _refuse(await obstacle())
        finally:
            self._trying = False
        self.next = Handover(number=self.number + 1, before=__version__, by=by)
        return Upgrading(__version__, after, self.number)

    def pack(self, bindings: Iterable[Binding], events: tuple[EventRecord, ...]) -> None:
        """What `next` takes along: the listeners, of which nobody who connects meanwhile is refused, and the events."""
        assert self.next is not None  # noqa: S101 - `begin` comes first
        sockets = tuple(Passed(one.keep().detach(), one.owned) for one in bindings)
        self.next = msgspec.structs.replace(self.next, sockets=sockets, events=events)

    def execute(self) -> Handover:
        """Become the next code. Returns only when that fails: what the old one goes on with."""
        assert self.next is not None  # noqa: S101 - as above
        self.unheard.hold()
        return execute(self._command, self.next, os.environ)


def _refuse(obstacle: str) -> None:
    if obstacle:
        raise UpgradeRefusedError(f"cannot upgrade: {obstacle}")
