"""Reads a log as if it had never been archived: segments first, then the live file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from supervisor.edge.archive.codec import UnreadableSegmentError, expand
from supervisor.edge.archive.segments import Segment, live_path, open_regular, segments

_PIECE_BYTES = 256 * 1024


def log_bytes(directory: str | Path, attempt: int, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
    """The attempt's bytes [begin, end), since its log was last truncated; `end` None is the present end.

    What lies in a segment that has been removed, or cannot be read, is replaced by one line that says how much is
    missing. For a thread. The archive may grow meanwhile.
    """
    place, position = Path(directory), begin
    while end is None or position < end:
        segment = _segment_at(place, attempt, position)
        if segment is None:
            piece = _of_live(live_path(place, attempt), position, end)
            if _segment_at(place, attempt, position) is not None:
                continue  # archived meanwhile: there may be a hole where this was read. The name came before the hole.
            if not piece:
                return
            yield piece
            position += len(piece)
        elif position < segment.begin:
            stop = segment.begin if end is None else min(segment.begin, end)
            yield _missing(stop - position, "older logs are removed")
            position = stop
        else:
            stop = segment.end if end is None else min(segment.end, end)
            yield from _of_segment(place, segment, position, stop)
            position = stop


def _segment_at(directory: Path, attempt: int, position: int) -> Segment | None:
    """The segment that has the byte, or the next one when that byte is in none; None when it is in the live file."""
    made = segments(directory, attempt)
    if not made or made[-1].end <= position or _size(live_path(directory, attempt)) < made[-1].end:
        return None
    return next(one for one in made if one.generation == made[-1].generation and one.end > position)


def _size(live: Path) -> int:
    """A live file that is shorter than what was archived has been truncated; one that is gone was archived whole."""
    try:
        return live.lstat().st_size
    except FileNotFoundError:
        return 1 << 62


def _of_segment(directory: Path, segment: Segment, begin: int, end: int) -> Iterator[bytes]:
    at, told = segment.begin, begin
    try:
        file = open_regular(directory / segment.name, os.O_RDONLY)
        try:
            for piece in expand(file, segment.suffix):
                wanted = piece[max(0, begin - at) : max(0, end - at)]
                at += len(piece)
                if wanted:
                    told += len(wanted)
                    yield wanted
                if at >= end:
                    return
        finally:
            os.close(file)
    except (OSError, UnreadableSegmentError) as problem:
        yield _missing(end - told, f"{segment.name} cannot be read: {problem}")


def _of_live(path: Path, begin: int, end: int | None) -> bytes:
    try:
        file = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(file, _PIECE_BYTES if end is None else min(_PIECE_BYTES, end - begin), begin)
    finally:
        os.close(file)


def _missing(count: int, why: str) -> bytes:
    return f"[{count} bytes of this log are missing: {why}]\n".encode()
