"""Operations on log files: a range, the last lines, following across rotation and restart."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
import anyio.to_thread
import msgspec
from starlette.responses import Response, StreamingResponse

from supervisor.api.control import Control
from supervisor.api.operation import Call, Operation, RefusedError

CHUNK_BYTES = 64 * 1024
RANGE_BYTES_MAX = 16 * 2**20
TAIL_BYTES = 1600  # supervisorctl's default
LINES_SCAN_BYTES_MAX = 16 * 2**20
FOLLOW_PERIOD_S = 0.2
_BYTES = "application/octet-stream"


class LogQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`length` bytes from `offset` (negative: from the end), or the last `lines` lines; `follow` goes on from there."""

    offset: Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)] | None = None
    length: Annotated[int, msgspec.Meta(ge=0, le=RANGE_BYTES_MAX)] | None = None
    lines: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    follow: bool = False


class Piece(msgspec.Struct, frozen=True):
    """Bytes of a file, where they begin, and which file it was."""

    data: bytes
    offset: int
    size: int
    identity: tuple[int, int]


async def read_server_log(call: Call) -> Response:
    path = call.snapshot.log_path
    if not path:
        raise RefusedError(404, f"{call.name} has no log file yet")
    return await _answer(call, path, server=call.name)


async def read_daemon_log(call: Call) -> Response:
    path = call.control.daemon_info().log_path
    if not path:
        raise RefusedError(404, "the daemon keeps no log file: it logs to its standard error output")
    return await _answer(call, path, server="")


async def _answer(call: Call, path: str, server: str) -> Response:
    try:
        piece = await anyio.to_thread.run_sync(_read, path, call.query)
    except OSError as problem:
        status = 404 if isinstance(problem, FileNotFoundError) else 500
        raise RefusedError(status, f"cannot read {path}: {problem.strerror}") from None
    headers = {"x-log-offset": str(piece.offset), "x-log-size": str(piece.size), "cache-control": "no-store"}
    if not call.query.follow:
        return Response(piece.data, media_type=_BYTES, headers=headers)
    return StreamingResponse(_follow(call.control, server, path, piece), media_type=_BYTES, headers=headers)


async def _follow(control: Control, server: str, path: str, piece: Piece) -> AsyncIterator[bytes]:
    """Goes on in the file that the server writes now: after a restart or a rotation in the new one, from its start.

    Looks at the size a few times a second while somebody follows; an event per written line would cost far more.
    """
    yield piece.data
    offset, identity = piece.offset + len(piece.data), piece.identity
    while True:
        current = _current_path(control, server, path)
        piece_or_none = await anyio.to_thread.run_sync(_next, current, offset, identity)
        if piece_or_none is not None:
            offset, identity = piece_or_none.offset + len(piece_or_none.data), piece_or_none.identity
            if piece_or_none.data:
                yield piece_or_none.data
                continue
        await anyio.sleep(FOLLOW_PERIOD_S)


def _current_path(control: Control, server: str, path: str) -> str:
    snapshot = control.snapshot(server) if server else None
    return snapshot.log_path if snapshot is not None and snapshot.log_path else path


def _read(path: str, query: LogQuery) -> Piece:
    with _Opened(path) as log:
        if query.lines is not None:
            return log.piece(*log.last_lines(query.lines))
        start = -TAIL_BYTES if query.offset is None else query.offset
        offset = max(0, log.size + start) if start < 0 else min(start, log.size)
        length = RANGE_BYTES_MAX if query.length is None else query.length
        return log.piece(offset, min(length, log.size - offset))


def _next(path: str, offset: int, identity: tuple[int, int]) -> Piece | None:
    """The next bytes; None while the file is away (between two attempts)."""
    try:
        with _Opened(path) as log:
            begin = offset if log.identity == identity and log.size >= offset else 0
            return log.piece(begin, min(CHUNK_BYTES, log.size - begin))
    except FileNotFoundError:
        return None


class _Opened:
    """A regular file opened for reading. Its directory may be writable for the server's user: no links, no devices."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise OSError(0, "is not a regular file")
        self.size = status.st_size
        self.identity = (status.st_dev, status.st_ino)

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def piece(self, offset: int, length: int) -> Piece:
        parts: list[bytes] = []
        end = offset + length
        while offset + sum(map(len, parts)) < end:
            read_so_far = sum(map(len, parts))
            part = os.pread(self._descriptor, min(2**20, end - offset - read_so_far), offset + read_so_far)
            if not part:
                break
            parts.append(part)
        return Piece(b"".join(parts), offset, self.size, self.identity)

    def last_lines(self, lines: int) -> tuple[int, int]:
        """Offset and length of the last lines, looking back at most LINES_SCAN_BYTES_MAX."""
        position, seen = self.size, 0
        floor = max(0, self.size - LINES_SCAN_BYTES_MAX)
        while position > floor and lines > 0:
            begin = max(floor, position - CHUNK_BYTES)
            block = os.pread(self._descriptor, position - begin, begin)
            for index in range(len(block) - 1, -1, -1):
                if block[index] == 0x0A and begin + index != self.size - 1:
                    seen += 1
                    if seen == lines:
                        return begin + index + 1, self.size - begin - index - 1
            position = begin
        return (floor, self.size - floor) if lines > 0 else (self.size, 0)


OPERATIONS = (
    Operation(
        "GET",
        "/v1/servers/{name}/log",
        "readLog",
        "Bytes of the server's log, and those that follow",
        read_server_log,
        query=LogQuery,
        media_types=(_BYTES,),
    ),
    Operation(
        "GET",
        "/v1/log",
        "readDaemonLog",
        "Bytes of the daemon's own log, and those that follow",
        read_daemon_log,
        query=LogQuery,
        media_types=(_BYTES,),
    ),
)
