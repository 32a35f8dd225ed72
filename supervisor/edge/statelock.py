"""One daemon per state directory. The kernel lets the lock go when we die, however we die."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


class StateLockProblem(Exception):  # noqa: N818 - a fact for the operator, not a bug
    """The state directory cannot be had; the message names it and says why."""


@contextmanager
def state_lock(state_dir: Path) -> Iterator[None]:
    """Hold the directory. StateLockProblem when another daemon has it, or when it cannot be locked at all.

    The directory itself is locked, since a file in it may be deleted; the file tells who holds the lock, and is locked
    too for file systems that lock no directories (NFS wants a descriptor that can write).
    """
    path = state_dir / "daemon.lock"
    with ExitStack() as held:
        try:
            directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
            held.callback(os.close, directory)
            _lock_directory(directory)
            file = held.enter_context(path.open("a+"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
        except BlockingIOError:
            raise StateLockProblem(f"cannot use {state_dir}: the daemon with pid {_owner(path)} uses it") from None
        except OSError as problem:
            raise StateLockProblem(f"cannot lock {path}: {problem.strerror}") from None
        yield


def _lock_directory(directory: int) -> None:
    """BlockingIOError when another daemon has it."""
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
            raise


def _owner(path: Path) -> str:
    try:
        return path.read_text().strip() or "unknown"
    except OSError:
        return "unknown"
