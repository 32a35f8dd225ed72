"""Operations on log files: a range, the last lines, following across rotation and restart."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import anyio
import msgspec
from starlette.responses import Response, StreamingResponse

from supervisor.api import wire
from supervisor.api.access import Role
from supervisor.api.control import Control
from supervisor.api.files import in_thread, piece
from supervisor.api.operation import Call, Operation, RefusedError, answer
from supervisor.edge.archive import attempt_of, live_path, log_bytes, segments

CHUNK_BYTES = 64 * 1024  # what one client makes us hold
RANGE_BYTES_MAX = 2**40
TAIL_BYTES = 1600  # supervisorctl's default
LINES_SCAN_BYTES_MAX = 4 * 2**20
FOLLOW_PERIOD_S = 0.2
_BYTES = "application/octet-stream"


class LogQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`length` bytes from `offset` (negative: from the end), or the last `lines` lines; `follow` goes on from there."""

    offset: Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)] | None = None
    length: Annotated[int, msgspec.Meta(ge=0, le=RANGE_BYTES_MAX)] | None = None
    lines: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    follow: bool = False


class ServerLogQuery(LogQuery, frozen=True, forbid_unknown_fields=True):
    """The same of the newest attempt's log, or of an earlier one's: that is over, and cannot be followed."""

    attempt: Annotated[int, msgspec.Meta(ge=1, le=10**9)] | None = None


async def read_server_log(call: Call) -> Response:
    query: ServerLogQuery = call.query
    path = call.snapshot.log_path
    if not path:
        raise RefusedError(404, f"{call.name} has no log file yet")
    if query.attempt is not None and query.attempt != attempt_of(path):
        if query.follow:
            raise RefusedError(400, f"cannot follow attempt {query.attempt} of {call.name}: it is not the present one")
        path = str(live_path(os.path.dirname(path), query.attempt))
    return await _answer(call, path, server=call.name)


async def read_daemon_log(call: Call) -> Response:
    path = call.control.daemon_info().log_path
    if not path:
        raise RefusedError(404, "the daemon keeps no log file: set daemon.log_file, or read its standard error output")
    return await _answer(call, path, server="")


async def _answer(call: Call, path: str, server: str) -> Response:
    query: LogQuery = call.query
    try:
        log = await in_thread(open_log, path)
        offset, end = await in_thread(log.range_of, query)
    except OSError as problem:
        status = 404 if isinstance(problem, FileNotFoundError) else 500
        raise RefusedError(status, f"cannot read {path}: {problem.strerror}") from None
    headers = {"x-log-offset": str(offset), "x-log-size": str(log.size), "cache-control": "no-store"}
    pieces = _follow(call.control, server, log, offset) if query.follow else _range(log, offset, end)
    return StreamingResponse(pieces, media_type=_BYTES, headers=headers)


async def followed(control: Control, path: str, server: str, last_bytes: int) -> StreamingResponse:
    """The last bytes of a log and what comes. FileNotFoundError when there is none; RefusedError when it is no log."""
    if not path:
        raise FileNotFoundError
    try:
        log = await in_thread(LogFile, path)
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise RefusedError(500, f"cannot read {path}: {problem.strerror}") from None
    pieces = _follow(control, server, log, max(0, log.size - last_bytes))
    return StreamingResponse(pieces, media_type="text/plain;charset=utf-8")


def clear(path: str) -> None:
    """Empty a log. Its writer appends, so it goes on at the beginning. OSError when it is no regular file."""
    if not path:
        raise FileNotFoundError
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


async def clear_server_log(call: Call) -> Response:
    path = call.snapshot.log_path
    try:
        await in_thread(clear, path)
    except FileNotFoundError:
        return answer(wire.Done())
    except OSError as problem:
        raise RefusedError(500, f"cannot clear {path}: {problem.strerror}") from None
    return answer(wire.Done())


async def _range(log: LogFile, offset: int, end: int) -> AsyncIterator[bytes]:
    with log:
        async for data in _stitched(log, offset, end):
            yield data


async def _stitched(log: LogFile, offset: int, end: int) -> AsyncIterator[bytes]:
    """A range of the file as it is, or of a server's log as it was: the beginning of that may be archived (a hole)."""
    attempt = attempt_of(log.path)
    pieces = log.pieces(offset, end) if attempt is None else log_bytes(os.path.dirname(log.path), attempt, offset, end)
    while data := await piece(next, pieces, b""):
        yield data


async def _follow(control: Control, server: str, log: LogFile, offset: int) -> AsyncIterator[bytes]:
    """Goes on in the file that the server writes now, once the present one is read to its end.

    Looks a few times a second while somebody follows: an event per written line would cost far more. The file stays
    open, so that its inode cannot come back as another file's.
    """
    try:
        async for data in _stitched(log, offset, log.size):
            yield data
        offset = max(offset, log.size)
        while True:
            data = await piece(log.read, offset, CHUNK_BYTES)
            if data:
                offset += len(data)
                yield data
                continue
            path = _current_path(control, server, log.path)
            successor, offset = await piece(_successor, log, path, offset)
            if successor is None:
                await anyio.sleep(FOLLOW_PERIOD_S)
            else:
                log.close()
                log = successor
    finally:
        log.close()


def _current_path(control: Control, server: str, path: str) -> str:
    snapshot = control.snapshot(server) if server else None
    return snapshot.log_path if snapshot is not None and snapshot.log_path else path


def _successor(log: LogFile, path: str, offset: int) -> tuple[LogFile | None, int]:
    """The file to go on in (None: the same, or none yet) and where."""
    try:
        if log.is_at(path):
            return None, offset if log.current_size() >= offset else 0
        return LogFile(path), 0
    except FileNotFoundError:  # between two attempts
        return None, offset


class LogFile:
    """A regular file open for reading. Its directory may be writable for the server's user: no links, no devices."""

    def __init__(self, path: str) -> None:
        self.path = path
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._file = open(path, "rb", buffering=0, opener=lambda name, _: os.open(name, flags))  # noqa: SIM115
        status = os.fstat(self._file.fileno())
        if not stat.S_ISREG(status.st_mode):
            self._file.close()
            raise OSError(errno.EINVAL, "is not a regular file")
        self.size = status.st_size
        self._identity = (status.st_dev, status.st_ino)

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The inode may be reused from now on."""
        self._file.close()

    def read(self, offset: int, length: int) -> bytes:
        """At most `length` bytes; none at the end."""
        return os.pread(self._file.fileno(), length, offset)

    def pieces(self, offset: int, end: int) -> Iterator[bytes]:
        """A range, in chunks; it ends early when the file was truncated meanwhile."""
        while offset < end and (data := self.read(offset, min(CHUNK_BYTES, end - offset))):
            offset += len(data)
            yield data

    def is_at(self, path: str) -> bool:
        """Whether `path` still names this very file."""
        status = os.lstat(path)
        return (status.st_dev, status.st_ino) == self._identity

    def current_size(self) -> int:
        """The size now."""
        return os.fstat(self._file.fileno()).st_size

    def range_of(self, query: LogQuery) -> tuple[int, int]:
        """The first byte that is asked for, and the one after the last."""
        if query.lines is not None:
            return self._begin_of_last(query.lines), self.size
        start = -TAIL_BYTES if query.offset is None else query.offset
        offset = max(0, self.size + start) if start < 0 else min(start, self.size)
        return offset, self.size if query.length is None else min(self.size, offset + query.length)

    def _begin_of_last(self, lines: int) -> int:
        """Where the last lines begin, looking back at most LINES_SCAN_BYTES_MAX."""
        floor = max(0, self.size - LINES_SCAN_BYTES_MAX)
        end = self.size
        while lines > 0 and end > floor:
            begin = max(floor, end - CHUNK_BYTES)
            block = self.read(begin, end - begin)
            cut = len(block) - 1 if end == self.size else len(block)  # the line end that ends the file begins no line
            while lines > 0 and (cut := block.rfind(b"\n", 0, cut)) >= 0:
                lines -= 1
                if lines == 0:
                    return begin + cut + 1
            end = begin
        return end if lines > 0 else self.size


class ArchivedLog(LogFile):
    """The log of an attempt that has no file of its own any more, only segments."""

    def __init__(self, path: str) -> None:
        attempt, directory = attempt_of(path), os.path.dirname(path)
        made = () if attempt is None else segments(directory, attempt)
        if attempt is None or not made:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.path, self.size = path, made[-1].end
        self._begin = max(0, self.size - LINES_SCAN_BYTES_MAX)
        self._end = b"".join(log_bytes(directory, attempt, self._begin, self.size))

    def close(self) -> None:
        """Nothing is open."""

    def read(self, offset: int, length: int) -> bytes:
        """Of the last megabytes, in which lines are looked for."""
        return self._end[max(0, offset - self._begin) : max(0, offset - self._begin + length)]


def open_log(path: str) -> LogFile:
    """A log, archived or not. For a thread. OSError when nothing of it is left, or it is no log."""
    try:
        return LogFile(path)
    except FileNotFoundError:
        return ArchivedLog(path)


OPERATIONS = (
    Operation(
        "GET",
        "/v1/servers/{name}/log",
        "readLog",
        "Bytes of the server's log, and those that follow",
        read_server_log,
        query=ServerLogQuery,
        media_types=(_BYTES,),
        failures=(400, 404, 500),
    ),
    Operation(
        "POST",
        "/v1/servers/{name}/log/clear",
        "clearLog",
        "Empty the server's present log file",
        clear_server_log,
        wire.Done,
        Role.OPERATE,
        failures=(500,),
    ),
    Operation(
        "GET",
        "/v1/log",
        "readDaemonLog",
        "Bytes of the daemon's own log, and those that follow",
        read_daemon_log,
        query=LogQuery,
        media_types=(_BYTES,),
        failures=(404, 500),
    ),
)
