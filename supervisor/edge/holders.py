"""Looks up who the processes are that hold memory of a GPU.

Blocking: a user's name may come over the network, so call it in a thread.
"""

from __future__ import annotations

import functools
import os
import pwd
from collections.abc import Callable, Iterable
from pathlib import Path

from supervisor import procstat
from supervisor.config import mask_command
from supervisor.devices import ProcessOwner
from supervisor.lines import printable

COMMAND_LIMIT = 200  # characters


def identify(pids: Iterable[int], server_of: Callable[[int], str] = lambda pid: "") -> tuple[ProcessOwner, ...]:
    """The living ones among the processes. `server_of` tells whose tree a pid belongs to, "" if no server's."""
    found = (_identify(pid, server_of) for pid in sorted(set(pids)) if pid > 0)
    return tuple(owner for owner in found if owner is not None)


def _identify(pid: int, server_of: Callable[[int], str]) -> ProcessOwner | None:
    process, folder = procstat.read(pid), Path("/proc") / str(pid)
    if process is None or not process.alive:
        return None
    try:
        uid = os.stat(folder).st_uid
        name = (folder / "comm").read_bytes().decode(errors="replace")
        command = _command((folder / "cmdline").read_bytes()) or _shown(name)
    except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
        return None
    return ProcessOwner(pid, _user(uid), uid, command, server_of(pid), process.start_ticks)


def _command(data: bytes) -> str:
    """Everybody who may read a state sees it: a stranger's key on his command line is not for them."""
    return _shown(" ".join(mask_command(data.decode(errors="replace").split("\0"))))


def _shown(text: str) -> str:
    """A process can call itself anything."""
    return printable(text.strip())[:COMMAND_LIMIT]


@functools.lru_cache(maxsize=256)
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a number without a name, as in most containers
        return str(uid)
