"""Compresses and expands streams: zstd where the package `zstandard` is installed, else gzip."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import Any, Protocol

try:
    import zstandard

    SUFFIX = "zst"
except ImportError:  # the optional dependency `zstd`
    SUFFIX = "gz"

_GZIP = 31  # window bits of zlib: 15, with gzip's header and checksum
_GZIP_LEVEL = 1  # logs shrink to an eighth; level 6 makes that a twelfth for 60 % more time
_ZSTD_LEVEL = 3
_PIECE_BYTES = 16 * 1024  # of a compressed file: some 128 KiB of log


class Compressor(Protocol):
    """What zlib and zstandard have in common."""

    def compress(self, data: bytes, /) -> bytes:
        """Bytes that are ready."""
        ...

    def flush(self) -> bytes:
        """The rest."""
        ...


def compressor(suffix: str) -> Compressor:
    """A new stream for a file with this ending."""
    if suffix == "gz":
        return zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)
    made: Compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compressobj()
    return made


class UnreadableSegmentError(Exception):
    """The segment's content cannot be expanded; the text says why."""


def expand(file: int, suffix: str) -> Iterator[bytes]:
    """The content of a compressed file from its descriptor. UnreadableSegmentError when it is damaged or foreign."""
    stream, errors = _expander(suffix)
    while data := os.read(file, _PIECE_BYTES):
        try:
            yield stream.decompress(data)
        except errors as problem:
            raise UnreadableSegmentError(str(problem)) from None
    if not stream.eof:
        raise UnreadableSegmentError("it ends early")


def _expander(suffix: str) -> tuple[Any, type[Exception]]:
    if suffix == "gz":
        return zlib.decompressobj(_GZIP), zlib.error
    if SUFFIX == "gz":
        raise UnreadableSegmentError("the package zstandard is not installed")
    return zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError
