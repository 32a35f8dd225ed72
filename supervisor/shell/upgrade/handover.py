"""Replaces the daemon's code in place: what this process hands over to itself, and the exec in between.

The process stays, so its children do, and systemd's MainPID; descriptors stay when they are told to. Everything else
comes back as after a crash: from the records on disk (`shell/adoption.py`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterable, Mapping, MutableMapping, Sequence

import msgspec
import structlog

from supervisor.api.control import EventRecord
from supervisor.config import ConfigFile
from supervisor.edge.process import HELPER_NAME

HANDOVER_NAME = "SGLSUP_HANDOVER"
HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_MEMORY_NAME = "sglsup-handover"
# Those of systemd name descriptors of the first start, which are others' by now.
_LEFT_BEHIND = (HELPER_NAME, "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")

log = structlog.get_logger()


class Passed(msgspec.Struct, frozen=True):
    """A listening socket that stays open. `owned`: the daemon has bound it, and removes its file in the end."""

    descriptor: int
    owned: bool


class Handover(msgspec.Struct, frozen=True):
    """What one code leaves to the next one in the same process. `problem`: why there is none, and the old one goes on.

    Written by one version and read by another: fields may be added, each with a default.
    """

    number: int = 0  # of upgrades in the life of this process
    before: str = ""  # the version that left it
    by: str = ""
    problem: str = ""
    sockets: tuple[Passed, ...] = ()
    events: tuple[EventRecord, ...] = ()
    files: tuple[ConfigFile, ...] = ()  # the configuration as it was tried; who edits it meanwhile has it read later


# --- the old code's last deed ----------------------------------------------------------------------------------------


def execute(command: Sequence[str], handover: Handover, environment: Mapping[str, str]) -> Handover:
    """Become the new code. Returns only when that fails: the same handover with the problem, for the old code."""
    doing = "hand over to the new code"
    with contextlib.ExitStack() as stack:
        try:
            passed = [one.descriptor for one in handover.sockets]
            memory = _written(handover, stack)
            for descriptor in (memory, *passed):
                os.set_inheritable(descriptor, True)
                stack.callback(os.set_inheritable, descriptor, False)
            told = f"{os.getpid()}:{memory}:{','.join(map(str, passed))}"
            kept = {name: text for name, text in environment.items() if name not in _LEFT_BEHIND}
            doing = f"execute {command[0]}"
            os.execve(command[0], list(command), kept | {HANDOVER_NAME: told})
        except OSError as problem:
            reason = f"cannot {doing}: {problem.strerror}; the old code goes on"
        return msgspec.structs.replace(handover, problem=reason)


def _written(handover: Handover, stack: contextlib.ExitStack) -> int:
    """A descriptor of memory that holds the handover, as long as the stack lasts."""
    memory = os.memfd_create(_MEMORY_NAME)
    stack.callback(os.close, memory)
    left = memoryview(msgspec.json.encode(handover))
    while left:
        left = left[os.write(memory, left) :]
    return memory


# --- the new code's first deed ---------------------------------------------------------------------------------------


def received(environment: MutableMapping[str, str]) -> Handover | None:
    """What an earlier code of this process has left, taken out of the environment; None at an ordinary start.

    What cannot be used is closed: a listener that nobody serves would look like another daemon.
    """
    pid, _, rest = environment.pop(HANDOVER_NAME, "").partition(":")
    memory, _, sockets = rest.partition(":")
    if pid != str(os.getpid()) or not memory.isdecimal():
        return None
    passed = {int(word) for word in sockets.split(",") if word.isdecimal()}
    try:
        handover = _read(int(memory))
    except (OSError, ValueError, msgspec.DecodeError) as problem:
        log.warning("upgrade", problem=f"cannot use what the code before has left: {problem}; it is forgotten")
        handover = Handover(number=1)
    kept = tuple(one for one in handover.sockets if one.descriptor in passed and _listens(one.descriptor))
    _close(passed - {one.descriptor for one in kept})
    return msgspec.structs.replace(handover, sockets=kept)


def _read(memory: int) -> Handover:
    if not os.readlink(f"/proc/self/fd/{memory}").startswith(f"/memfd:{_MEMORY_NAME}"):
        raise ValueError(f"descriptor {memory} is something else")
    with open(memory, "rb") as file:
        file.seek(0)
        return msgspec.json.decode(file.read(), type=Handover)


def _listens(descriptor: int) -> bool:
    """No child of ours may have it, from now on."""
    try:
        os.set_inheritable(descriptor, False)
        with socket.socket(fileno=os.dup(descriptor)) as one:
            return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # it is not open: nothing to close
            os.close(descriptor)


# --- signals that nobody is there to hear ----------------------------------------------------------------------------


class Unheard:
    """Keeps the signals that come while one code has stopped listening and the next one does not listen yet."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def listen(self) -> None:
        """Note them from now on, until somebody else installs handlers. For the main thread."""
        for number in HEARD:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)  # those that came during the exec come now

    def _note(self, number: int, _: object) -> None:
        self._numbers.append(number)

    def take(self) -> list[int]:
        """Those that have come, once."""
        taken, self._numbers = self._numbers, []
        return taken

    def hold(self) -> None:
        """Leave them to the kernel, which keeps what is blocked across an exec."""
        signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        for number in self.take():
            os.kill(os.getpid(), number)
