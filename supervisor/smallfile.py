"""Small files: replaced atomically, and moved aside when they cannot be understood."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import TypeVar

import msgspec

Value = TypeVar("Value")


class UnusableFileError(Exception):
    """A file that was there and could not be understood. The message says why and where it has been moved."""


class UnreadNowError(UnusableFileError):
    """What keeps it from being read may pass, and says nothing about the file: whoever writes it now would lose it."""


# Of the host rather than of the file: no descriptor, no memory, a network file system that is away.
_PASSING = frozenset({
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT,
    errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENOTCONN,
})  # fmt: skip


def replace_bytes(path: Path, data: bytes, *, durable: bool = False, mode: int | None = None) -> None:
    """A reader sees the old file or the new one, also when we die in between. OSError when the disk refuses.

    The page cache survives our own death; only what must survive the machine's is worth the fsync of `durable`.
    `mode` None: as the umask has it.
    """
    new = path.with_name(f".{path.name}.new")  # no pattern of a directory's reader (*.json, *.conf) finds it
    with new.open("wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    if mode is not None:
        new.chmod(mode)
    new.replace(path)


def replace_json(path: Path, value: object) -> None:
    """The same for a value in JSON, whose directory is made when it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_bytes(path, msgspec.json.encode(value))


def read_json(path: Path, expected: type[Value]) -> Value | None:
    """What the file holds; None when there is no file. UnusableFileError when it cannot be read as what is expected.

    UnreadNowError, and nothing is moved, where that may be another time.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=expected)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as problem:
        if isinstance(problem, OSError) and problem.errno in _PASSING:
            raise UnreadNowError(f"cannot read {path}: {problem.strerror}; it is left where it is") from None
        raise set_aside(path, str(problem)) from None


def set_aside(path: Path, why: str) -> UnusableFileError:
    """Keep an unusable file for people, out of the way of the next one; what to raise or tell."""
    aside = path.with_suffix(".broken")
    with contextlib.suppress(OSError):
        path.replace(aside)
    return UnusableFileError(f"cannot use {path}: {why}; moved aside to {aside}")
