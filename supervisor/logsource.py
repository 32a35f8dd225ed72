"""Opens somebody's log, however it is packed, and tells whose it is."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import re
import sys
import zlib
from collections.abc import Iterator
from datetime import datetime
from typing import IO, cast

from supervisor.core.log.stamps import seconds
from supervisor.edge.archive import attempt_of, log_bytes, segments
from supervisor.profile import Profile, load_profile, profile_names

_CHUNK = 1 << 20
_SAMPLE = 256 * 1024
_GZIP = b"\x1f\x8b"
_GZIP_MEMBER = 16 + zlib.MAX_WBITS
_PACKED = 64 * 1024
_ZSTD = b"\x28\xb5\x2f\xfd"
_ANOTHERS = re.compile(
    rb"(<\d+>)?\[ *\d+\.\d{6}\] "  # dmesg
    rb"|\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\] "  # dmesg -T
    rb"|[\w:.+ -]{10,40} \S+ kernel: "  # syslog, journalctl -k
    rb"|\S+ \S+ \S+ \[\d\d/\w{3}/\d{4}:"  # a web server's accesses
    rb"|\d{4}/\d\d/\d\d [\d:]+ \[\w+\] \d+#\d+: "  # nginx's errors
)
_BINARY = 0.1  # of the first bytes are NULs or other controls: no log


class UnreadableError(Exception):
    """The log cannot be read; the message names the file and the reason."""


@contextlib.contextmanager
def opened_log(path: str) -> Iterator[tuple[bytes, Iterator[bytes]]]:
    """The beginning of a log, and all of its bytes in chunks. Raises UnreadableError, also while it is read."""
    with opened(path) as stream:
        sample = beginning(stream)
        yield sample, chunks(stream, sample)


def beginning(stream: IO[bytes]) -> bytes:
    """Enough to tell what it is. UnreadableError when it is no log."""
    sample = _read(stream, _SAMPLE)
    if not sample:
        raise UnreadableError("it is empty")
    if _is_binary(sample):
        raise UnreadableError("this is binary data, not a log")
    return sample


def recognise(sample: bytes) -> str | None:
    """The engine whose words are in the sample most often; None when no engine's are."""
    counts = {name: _mentions(load_profile(name), sample) for name in profile_names()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else None


def speaks(sample: bytes) -> bool:
    """Whether an engine's own words are in the sample. Its bare name stands in scripts and configurations, too."""
    return any(
        word.encode() in sample
        for profile in map(load_profile, profile_names())
        for word in profile.grammar.recognise
        if not _names(profile, word)
    )


def _names(profile: Profile, word: str) -> bool:
    """Whether the word is but what the engine is started by."""
    started_by = " ".join((*profile.command.modules, *profile.command.programs))
    return word.lower() in started_by.lower()


def is_anothers(sample: bytes) -> bool:
    """Whether all lines have the form of the kernel's or of a web server's; one or two are an excerpt."""
    lines = [line for line in sample.rpartition(b"\n")[0].splitlines() if line.strip()]  # the last may be cut
    return len(lines) > 2 and all(map(_ANOTHERS.match, lines))


def log_moment(text: str) -> str:
    """The argument of --now: a time as logs print it, or "now"."""
    moment = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S") if text == "now" else text
    if not seconds(moment):
        raise argparse.ArgumentTypeError(f"cannot read {text!r} as a time: write 2026-02-26 18:27:00, 18:27:00 or now")
    return moment


def _mentions(profile: Profile, sample: bytes) -> int:
    return sum(sample.count(word.encode()) for word in profile.grammar.recognise)


def _is_binary(sample: bytes) -> bool:
    head = sample[:8192]
    controls = sum(byte < 32 and byte not in b"\t\n\r\x1b\x0c\x08" for byte in head)
    return controls > len(head) * _BINARY


def chunks(stream: IO[bytes], sample: bytes) -> Iterator[bytes]:
    """All of it; `sample` is what has been read."""
    chunk = sample
    while chunk:
        yield chunk
        chunk = _read(stream, _CHUNK)


def _read(stream: IO[bytes], size: int) -> bytes:
    try:
        return stream.read(size)
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error


@contextlib.contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """The stream of plain bytes, whatever the file is packed in; told by its first bytes, not by its name."""
    if path == "-":
        yield sys.stdin.buffer
        return
    attempt, directory = attempt_of(path), os.path.dirname(path) or "."
    if attempt is not None and segments(directory, attempt):  # one of ours: there is no file, or it begins with a hole
        yield cast("IO[bytes]", _Joined(log_bytes(directory, attempt)))
        return
    try:
        raw = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
    with raw:
        yield _unpacked(raw)


class _Joined:
    """A log in pieces, read as one."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read(self, size: int) -> bytes:
        """About so many bytes, and b"" at the end."""
        read = b""
        while len(read) < size and (piece := next(self._pieces, b"")):
            read += piece
        return read


def _unpacked(raw: io.BufferedReader) -> IO[bytes]:
    try:
        magic = raw.peek(4)[:4]
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
    if magic.startswith(_GZIP):
        return cast("IO[bytes]", _Gunzipped(raw))
    return _zstd(raw) if magic == _ZSTD else raw


class _Gunzipped:
    """A gzip file of any number of members; what a damaged one holds before the damage is a log, too."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._inflater = zlib.decompressobj(_GZIP_MEMBER)
        self._packed = b""
        self._within_member = False

    def read(self, size: int) -> bytes:
        """At most so many bytes, and b"" at the end."""
        while True:
            packed = self._packed or self._raw.read(_PACKED)
            if not packed:
                return self._end()
            try:
                plain = self._inflater.decompress(packed, size)
            except zlib.error as error:
                return _damaged(str(error))
            self._packed, self._within_member = self._inflater.unconsumed_tail, True
            if self._inflater.eof:
                self._packed, self._within_member = self._inflater.unused_data, False
                self._inflater = zlib.decompressobj(_GZIP_MEMBER)
            if plain:
                return plain

    def _end(self) -> bytes:
        return _damaged("it ends too early") if self._within_member else b""


def _damaged(reason: str) -> bytes:
    sys.stderr.write(f"sglsup diagnose: the archive is damaged, judged as far as it could be read ({reason})\n")
    return b""


def _zstd(raw: IO[bytes]) -> IO[bytes]:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise UnreadableError(
            "it is zstd-compressed and the package zstandard is not installed: "
            "pip install 'sglang-supervisor[zst]', or: zstd -dc FILE | sglsup diagnose -"
        ) from None
    return cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))
