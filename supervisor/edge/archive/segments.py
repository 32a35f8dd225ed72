"""Knows what lies in a server's log directory: live files, and segments whose names say which bytes they hold.

`000007.log` is the file that attempt 7 writes. `000007.00.000000000000-000000300010.log.gz` holds its bytes
[0, 300010) of generation 0. There is no list beside the files that could disagree with them: a segment exists once its
name does, and the name appears when its content is on the disk. A generation ends when somebody truncates the live
file, whose offsets then begin anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

UNFINISHED = ".unfinished"
_NAME = re.compile(r"(\d{6,})\.(\d{2,})\.(\d{12,})-(\d{12,})\.log\.(gz|zst)", re.ASCII)
_LIVE = re.compile(r"(\d{6,})\.log", re.ASCII)


class Segment(msgspec.Struct, frozen=True, order=True):
    """Bytes [begin, end) of one attempt's log, compressed in a file. In the order of writing."""

    attempt: int
    generation: int
    begin: int
    end: int
    suffix: str = "gz"

    @property
    def name(self) -> str:
        """The file's name in the server's log directory."""
        where = f"{self.begin:012d}-{self.end:012d}"
        return f"{self.attempt:06d}.{self.generation:02d}.{where}.log.{self.suffix}"


def segments(directory: str | Path, attempt: int | None = None) -> tuple[Segment, ...]:
    """The segments of a server (of one attempt), oldest first."""
    found = (_segment_of(name) for name in _names(directory))
    return tuple(sorted(one for one in found if one is not None and attempt in (None, one.attempt)))


def live_attempts(directory: str | Path) -> tuple[int, ...]:
    """Attempts whose live file is there, oldest first."""
    found = (_LIVE.fullmatch(name) for name in _names(directory))
    return tuple(sorted(int(one[1]) for one in found if one is not None))


def newest_attempt(directory: str | Path) -> int:
    """The highest attempt that has left anything; 0 when none has."""
    archived = segments(directory)[-1:]
    return max((*live_attempts(directory), *(one.attempt for one in archived)), default=0)


def live_path(directory: str | Path, attempt: int) -> Path:
    """The file that the attempt's processes write."""
    return Path(directory, f"{attempt:06d}.log")


def attempt_of(path: str | Path) -> int | None:
    """Whose live file this is; None when it is none."""
    match = _LIVE.fullmatch(os.path.basename(path))
    return int(match[1]) if match else None


def open_regular(path: str | Path, flags: int) -> int:
    """Open a file, never a link or a device: the directory may be writable for the server's user."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def _segment_of(name: str) -> Segment | None:
    match = _NAME.fullmatch(name)
    return Segment(int(match[1]), int(match[2]), int(match[3]), int(match[4]), match[5]) if match else None


def _names(directory: str | Path) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:  # the server has never been started
        return []
