"""Reads what is to be converted, as far as it is text of a reasonable length."""

from __future__ import annotations

from pathlib import Path

from supervisor.convert.draft import ConversionError

BYTES_MAX = 4 * 2**20


def text_of(path: Path) -> str:
    """The whole file. Raises ConversionError."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as problem:
        raise ConversionError(f"{path}: {problem.strerror}") from None
    if len(data) > BYTES_MAX:
        raise ConversionError(f"{path}: is longer than {BYTES_MAX} bytes, more are not read")
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise ConversionError(f"{path}: byte {problem.start} is not UTF-8") from None
