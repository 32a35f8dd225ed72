"""Keeps the books of upgrades for one daemon: what was left to it, whether another may begin, what it leaves itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from supervisor import __version__
from supervisor.api.control import EventRecord, UpgradeRefusedError, Upgrading
from supervisor.api.serve import Binding
from supervisor.config import Config, ConfigFile
from supervisor.shell.sockets import ListenProblem, explained, give_up, open_beforehand
from supervisor.shell.upgrade.handover import Handover, Passed, Unheard, execute
from supervisor.shell.upgrade.trial import tried
from supervisor.threads import Threads

_FOLDER_LIMIT_S = 5.0


class Prospect(msgspec.Struct, frozen=True):
    """What an upgrade would go by: the files as they are now. `obstacle`: what is in the way, "" for nothing."""

    obstacle: str = ""
    files: tuple[ConfigFile, ...] = ()
    config: Config = Config()


def _made(folder: str) -> None:
    os.makedirs(folder, 0o750, exist_ok=True)


class Upgrades:
    """`command` is what is executed, () where nothing can be; `received` what the code before has left."""

    def __init__(
        self,
        command: Sequence[str] = (),
        received: Handover | None = None,
        make: Callable[[str], None] = _made,
        folder_limit_s: float = _FOLDER_LIMIT_S,
    ) -> None:
        """`make` makes a directory that is not there."""
        self._command = command
        self._make = make
        self._folder_limit_s = folder_limit_s
        self._disk = Threads("its disk")
        self.received = received
        self.next: Handover | None = None
        self.unheard = Unheard()
        self.bound: Sequence[Binding] = ()  # what the daemon serves on, from when it does
        self._trying = False

    @property
    def number(self) -> int:
        """How often the code of this process was replaced."""
        return self.received.number if self.received is not None else 0

    @property
    def problem(self) -> str:
        """Why the last upgrade has left the old code in place."""
        return self.received.problem if self.received is not None else ""

    async def begin(self, by: str, look: Callable[[], Awaitable[Prospect]]) -> Upgrading:
        """Try the installed code; when it comes up, `next` says that the daemon is to make way for it.

        The trial takes seconds: `look` is asked again after it, and what it finds then is what the next code gets.
        """
        if not self._command:
            raise UpgradeRefusedError("cannot upgrade: it runs without a configuration file; stop it and run it anew")
        if self._trying or self.next is not None:
            raise UpgradeRefusedError("cannot upgrade: another upgrade is under way; see what becomes of it")
        self._trying = True
        try:
            before = await look()
            _refuse(before.obstacle)
            after = await tried(self._command, os.environ)
            await self._place(before.config.daemon.log_dir)
            now = await look()  # after all that takes time: a daemon that was asked to end meanwhile ends
            _refuse(now.obstacle)
            if now.files != before.files:
                _refuse("the file was changed while the new code was tried with it; try again")
            sockets = await _passed(now.config, self.bound)
        finally:
            self._trying = False
        self.next = Handover(number=self.number + 1, before=__version__, by=by, sockets=sockets, files=now.files)
        return Upgrading(__version__, after, self.number)

    async def _place(self, folder: str) -> None:
        """What the new code could not have, it is refused for, and the old code goes on."""
        try:
            await self._disk.run(self._make, folder, limit_s=self._folder_limit_s, thing=folder)
        except OSError as problem:
            _refuse(f"cannot make {folder}: {problem.strerror}; the old code goes on")

    def pack(self, events: tuple[EventRecord, ...]) -> None:
        """What `next` takes along beside the listeners, of which nobody who connects meanwhile is refused."""
        assert self.next is not None  # noqa: S101 - `begin` comes first
        self.next = msgspec.structs.replace(self.next, events=events)

    def execute(self) -> Handover:
        """Become the next code. Returns only when that fails: what the old one goes on with."""
        assert self.next is not None  # noqa: S101 - as above
        self.unheard.hold()
        return execute(self._command, self.next, os.environ)


async def _passed(config: Config, bound: Sequence[Binding]) -> tuple[Passed, ...]:
    """Before anything is given up, as `Upgrades._place`. It waits for nothing but the words of a refusal."""
    try:
        opened = open_beforehand(config.daemon, bound)
    except ListenProblem as problem:
        raise UpgradeRefusedError(f"cannot upgrade: {await explained(problem, 'the old code goes on')}") from None
    kept: list[socket.socket] = []
    try:
        kept.extend(one.listener.dup() for one in bound)
    except OSError as problem:
        for one in kept:
            one.close()
        for one in opened:
            give_up(one)
        _refuse(f"cannot keep the sockets: {problem.strerror}; the old code goes on")
    for binding in bound:
        binding.leave_file()
    ours = (*(binding.owned for binding in bound), *(True for _ in opened))
    return tuple(Passed(one.detach(), owned) for one, owned in zip((*kept, *opened), ours, strict=True))


def _refuse(obstacle: str) -> None:
    if obstacle:
        raise UpgradeRefusedError(f"cannot upgrade: {obstacle}")
