"""Reads what is to be converted, as far as it is text of a reasonable length."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from supervisor.convert.draft import ConversionError

BYTES_MAX = 4 * 2**20  # of all files that belong together
FILES_MAX = 1000
WORD_MAX = 128 * 2**10  # Linux starts no program with a longer argument or variable (MAX_ARG_STRLEN)
EXPANDED_MAX = 4 * 2**20  # of everything that a conversion writes out; a command of 2 MiB is more than Linux starts


class Files:
    """A file and those that it names or has beside it; together they are bounded."""

    def __init__(self) -> None:
        self._left = BYTES_MAX
        self._count = 0

    def text(self, path: Path) -> str:
        """The whole file. Raises ConversionError."""
        self._count += 1
        if self._count > FILES_MAX:
            raise ConversionError(f"{path}: is one more than {FILES_MAX} files, more are not read")
        data = bytes_of(path, self._left)
        if len(data) > self._left:
            what = "is longer than" if self._count == 1 else "with those before it is longer than"
            raise ConversionError(f"{path}: {what} {BYTES_MAX} bytes, more are not read")
        self._left -= len(data)
        try:
            return data.decode()
        except UnicodeDecodeError as problem:
            raise ConversionError(f"{path}: byte {problem.start} is not UTF-8") from None


class Room:
    """How much a conversion may write out: a few lines can name one long value again and again."""

    def __init__(self) -> None:
        self._left = EXPANDED_MAX

    def take(self, place: str, characters: int) -> None:
        """Before it is written out. Raises ConversionError."""
        if characters > WORD_MAX:
            raise ConversionError(f"{place}: is longer than {WORD_MAX} characters when written out")
        self._left -= characters
        if self._left < 0:
            raise ConversionError(f"{place}: with everything before it is longer than {EXPANDED_MAX} when written out")


def bytes_of(path: Path, limit: int) -> bytes:
    """Of a regular file, one byte more than `limit` at most: a pipe could keep us for ever. Raises ConversionError."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise ConversionError(f"{path}: {'Is a directory' if stat.S_ISDIR(mode) else 'is no regular file'}")
            return file.read(limit + 1)
    except OSError as problem:
        raise ConversionError(f"{path}: {problem.strerror}") from None
