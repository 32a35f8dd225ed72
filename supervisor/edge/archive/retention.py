"""Removes old logs of servers: too many attempts, too many bytes, or too little space left; the oldest go first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from supervisor.edge.archive.segments import live_attempts, live_path, segments

_BLOCK_BYTES = 512  # of st_blocks, whatever the file system's own are


class Kept(msgspec.Struct, frozen=True):
    """What may stay of one server's logs: the newest `attempts`, and of these `size_bytes` on the disk."""

    attempts: int
    size_bytes: int


class Removed(msgspec.Struct, frozen=True):
    """What was removed."""

    files: int = 0
    bytes: int = 0


class _Old(msgspec.Struct, frozen=True, order=True):
    """A file that may go, older ones first."""

    modified: float
    attempt: int
    begin: int
    path: str
    bytes: int


def prune(directory: str | Path, current: int, kept: Kept) -> Removed:
    """Hold a server's logs to their limits. The current attempt's live file and newest segment always stay."""
    place = Path(directory)
    attempts = sorted({*live_attempts(place), *(one.attempt for one in segments(place)), current})
    too_old = frozenset(attempts[: -kept.attempts])
    removable = sorted(_removable(place, current), key=lambda old: (old.attempt, old.begin))
    gone = [old for old in removable if old.attempt in too_old]
    used = _used(place) - sum(old.bytes for old in gone)
    for old in removable:
        if used <= kept.size_bytes:
            break
        if old.attempt not in too_old:
            gone.append(old)
            used -= old.bytes
    return _remove(gone)


def free_oldest(places: Iterable[tuple[Path, int]], wanted_bytes: int) -> Removed:
    """Remove the oldest logs of all servers until `wanted_bytes` are free. `places`: directory and current attempt."""
    gone: list[_Old] = []
    freed = 0
    for old in sorted(old for place, current in places for old in _removable(place, current)):
        if freed >= wanted_bytes:
            break
        gone.append(old)
        freed += old.bytes
    return _remove(gone)


def _removable(directory: Path, current: int) -> Iterator[_Old]:
    """All but what is needed to go on: the newest segment says how far the live file has been archived."""
    made = segments(directory)
    newest = made[-1:] if made and made[-1].attempt == current else ()
    for segment in made:
        if segment not in newest:
            yield from _old(directory / segment.name, segment.attempt, segment.begin)
    for attempt in live_attempts(directory):
        if attempt != current:
            yield from _old(live_path(directory, attempt), attempt, 1 << 62)


def _old(path: Path, attempt: int, begin: int) -> Iterator[_Old]:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    yield _Old(status.st_mtime, attempt, begin, str(path), status.st_blocks * _BLOCK_BYTES)


def _used(directory: Path) -> int:
    """Space on the disk, which a hole does not take."""
    try:
        return sum(entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES for entry in os.scandir(directory))
    except FileNotFoundError:
        return 0


def _remove(gone: Iterable[_Old]) -> Removed:
    files, freed = 0, 0
    for old in gone:
        Path(old.path).unlink(missing_ok=True)
        files, freed = files + 1, freed + old.bytes
    return Removed(files, freed)
