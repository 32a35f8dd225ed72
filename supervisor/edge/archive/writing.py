"""Writes one attempt's segments: copy, make durable, name, and only then give the live file's space back.

The order is what makes it safe. Death before the name: the range is still in the live file, the nameless copy is
removed. Death between the name and the hole: the segment says how far the log is archived, and the hole is made at the
next start. A hole keeps all offsets (fallocate(2) PUNCH_HOLE with KEEP_SIZE), so neither the writer nor the tail
notices. Copying and truncating instead would lose what is written in between.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from supervisor.edge.archive import codec
from supervisor.edge.archive.segments import UNFINISHED, Segment, live_path, open_regular, segments

COPY_BYTES = 1024 * 1024
PUNCH_BYTES = 8 * 1024 * 1024  # the writer waits for the inode's lock meanwhile: a millisecond each
SEGMENT_BYTES = 64 * 1024 * 1024
_PUNCH_KEEPING_SIZE = 0x1 | 0x2
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_LIBRARY = ctypes.CDLL(None, use_errno=True)


def can_punch(directory: str | Path) -> bool:
    """Whether the file system there can give back the beginning of a file. OSError when it cannot even be written."""
    with tempfile.TemporaryFile(dir=directory) as probe:
        probe.write(bytes(4096))
        probe.flush()
        try:
            _punch_once(probe.fileno(), 0, 4096)
        except OSError as problem:
            if problem.errno in _UNSUPPORTED:
                return False
            raise
    return True


class LogArchive:
    """The archive of one attempt. Making it finishes what a daemon that died has left half done. For a thread."""

    def __init__(self, directory: str | Path, attempt: int, suffix: str = codec.SUFFIX) -> None:
        self.directory = Path(directory)
        self.attempt = attempt
        self._suffix = suffix
        self.generation = 0
        self.archived = 0  # every byte before it is in a segment
        self._recover()

    def _recover(self) -> None:
        for unfinished in self.directory.glob(f"{self.attempt:06d}.*{UNFINISHED}"):
            unfinished.unlink(missing_ok=True)
        made = segments(self.directory, self.attempt)
        if not made:
            return
        last = made[-1]
        self.generation, self.archived = last.generation, last.end
        with contextlib.suppress(FileNotFoundError), self._live(os.O_RDWR) as file:
            if os.fstat(file).st_size < self.archived:
                self.begin_anew()
            else:
                self._give_back(file, last)

    def _give_back(self, file: int, segment: Segment) -> None:
        try:
            _punch(file, segment.begin, segment.end)
        except OSError as problem:
            if problem.errno not in _UNSUPPORTED:  # then only whole files are archived here, and removed
                raise

    def begin_anew(self) -> None:
        """The live file was truncated: its offsets begin at 0 again."""
        self.generation, self.archived = self.generation + 1, 0

    def archive(self, until: int, limit_bytes: int = SEGMENT_BYTES) -> Segment | None:
        """Move whole lines before `until` into one segment. None when no line ends there.

        OSError when it cannot be written, for want of space for example: then nothing has changed.
        """
        with self._live(os.O_RDWR) as file:
            end = self._cut(file, min(until, self.archived + limit_bytes))
            segment = self._keep(file, end)
            if segment is not None:
                _punch(file, segment.begin, segment.end)
            return segment

    def copy_rest(self) -> Segment | None:
        """Keep everything up to the live file's end, whole lines or not. Nobody may be writing any more."""
        with self._live(os.O_RDONLY) as file:
            return self._keep(file, os.fstat(file).st_size)

    def _keep(self, file: int, end: int) -> Segment | None:
        if end <= self.archived:
            return None
        segment = Segment(self.attempt, self.generation, self.archived, end, self._suffix)
        self._write(file, segment)
        self.archived = end
        return segment

    @contextmanager
    def _live(self, flags: int) -> Iterator[int]:
        file = open_regular(live_path(self.directory, self.attempt), flags)
        try:
            yield file
        finally:
            os.close(file)

    def _cut(self, file: int, until: int) -> int:
        """The end of the last line before `until`; `until` itself when a line is longer than anybody reads."""
        position = until
        while position > self.archived and until - position < COPY_BYTES:
            begin = max(self.archived, position - 64 * 1024)
            found = os.pread(file, position - begin, begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            position = begin
        return until if until - self.archived >= COPY_BYTES else self.archived

    def _write(self, live: int, segment: Segment) -> None:
        unfinished = self.directory / (segment.name + UNFINISHED)
        try:
            out = open_regular(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                os.fchmod(out, os.fstat(live).st_mode & 0o666)
                _copy(live, out, segment)
                os.fsync(out)
            finally:
                os.close(out)
            unfinished.rename(self.directory / segment.name)
            sync_directory(self.directory)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def finish(directory: str | Path, attempt: int, suffix: str = codec.SUFFIX) -> Segment | None:
    """Move what is left of a live file into a segment, and remove the file. Nobody may be writing it any more."""
    archive = LogArchive(directory, attempt, suffix)
    segment = archive.copy_rest()
    live_path(directory, attempt).unlink()
    return segment


def sync_directory(directory: Path) -> None:
    """Make names durable: fsync of a file does not promise that its directory knows it."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _copy(live: int, out: int, segment: Segment) -> None:
    compressor = codec.compressor(segment.suffix)
    position = segment.begin
    while position < segment.end:
        data = os.pread(live, min(COPY_BYTES, segment.end - position), position)
        if not data:
            raise OSError(errno.ESTALE, "the log was truncated while it was archived")
        position += len(data)
        _write_all(out, compressor.compress(data))
    _write_all(out, compressor.flush())


def _write_all(out: int, data: bytes) -> None:
    while data:
        data = data[os.write(out, data) :]


def _punch(file: int, begin: int, end: int) -> None:
    while begin < end:
        _punch_once(file, begin, min(PUNCH_BYTES, end - begin))
        begin += PUNCH_BYTES


def _punch_once(file: int, offset: int, length: int) -> None:
    numbers = (ctypes.c_int(file), ctypes.c_int(_PUNCH_KEEPING_SIZE), ctypes.c_int64(offset), ctypes.c_int64(length))
    while _LIBRARY.fallocate64(*numbers) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, f"cannot give back the space of the log: {os.strerror(number)}")
