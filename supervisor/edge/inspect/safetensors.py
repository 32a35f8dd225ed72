"""Reads the header of a safetensors file and holds it against the file's size. No weights are read.

The format: 8 bytes with the header's length, the header (JSON: each tensor's type and place), then the tensors.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from supervisor.preflight import FileFacts

_HEADER_MAX = 100_000_000  # of the format's own reader
_WIDE = frozenset({"F32", "F64", "I64", "U64"})


def read(path: Path) -> FileFacts:
    """Size, and what is wrong. OSError when it cannot be opened."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        start = file.read(8)
        if len(start) < 8:
            return FileFacts(path.name, size, f"{size} bytes long, which is no file of weights")
        (length,) = struct.unpack("<Q", start)
        if length > min(_HEADER_MAX, size - 8):
            pointer = start + file.read(64)
            return FileFacts(path.name, size, _no_header(pointer, length, size))
        header = file.read(length)
    return _judge(path.name, size, length, header)


def _no_header(start: bytes, length: int, size: int) -> str:
    if start.startswith(b"version https://git-lfs"):
        return "a pointer of git-lfs in place of the file: run git lfs pull"
    return f"its header claims {length} bytes, the file has {size}"


def _judge(name: str, size: int, length: int, header: bytes) -> FileFacts:
    try:
        tensors = [_tensor(place) for key, place in json.loads(header).items() if key != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return FileFacts(name, size, "its header is damaged")
    end = max((end for end, _ in tensors), default=0)
    if 8 + length + end != size:
        return FileFacts(name, size, f"{size} bytes long in place of {8 + length + end}")
    return FileFacts(name, size, wide_bytes=sum(wide for _, wide in tensors))


def _tensor(place: dict[str, Any]) -> tuple[int, int]:
    """Where it ends, and how many bytes of wide numbers it has."""
    begin, end = map(int, place["data_offsets"])
    if not 0 <= begin <= end:
        raise ValueError(f"a tensor from {begin} to {end}")
    return end, end - begin if place.get("dtype") in _WIDE else 0
