"""Writes configuration values as the TOML that reads back to them; what is the default is left out."""

from __future__ import annotations

import enum
import functools
import json
import re
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from supervisor.config.model import UNLIMITED, GpuPlan

WIDTH = 110
_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_UNITS_MS = (("h", 3600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
_BYTES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))


def table(header: str, struct: msgspec.Struct) -> list[str]:
    """The lines of a table, without those keys that have their default."""
    lines, below = [f"[{header}]"], list[str]()
    for name, text in _entries(struct, wide=True):
        value = getattr(struct, name, None)
        if isinstance(value, dict) and len(name) + len(text) > WIDTH:
            below += [
                "",
                f"[{header}.{name}]",
                *(f"{key(one)} = {_value(inner, '', -1)}" for one, inner in value.items()),
            ]
        else:
            lines.append(f"{name} = {text}")
    return lines + below


def key(name: str) -> str:
    """A key, quoted where TOML wants it."""
    return name if _BARE.fullmatch(name) else string(name)


def string(text: str) -> str:
    """A basic string. JSON escapes whatever TOML does not take, except DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def duration(seconds: float) -> str:
    """A duration such as "1h30m", to the millisecond."""
    rest = round(seconds * 1000)
    parts = []
    for unit, size in _UNITS_MS:
        count, rest = divmod(rest, size)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def _entries(struct: msgspec.Struct, *, wide: bool = False) -> Iterator[tuple[str, str]]:
    for key_name, name, written, default in _shape(type(struct)):
        value = getattr(struct, name)
        if value != default:
            yield key_name, _value(value, written, len(key_name) if wide else -1)


@functools.cache
def _shape(struct: type[msgspec.Struct]) -> tuple[tuple[str, str, str, Any], ...]:
    """Key, field, how it is written and default of each field but the required ones, which name the table."""
    hints = typing.get_type_hints(struct, include_extras=True)
    fields = msgspec.structs.fields(struct)
    plain = struct(**{field.name: "" for field in fields if field.required})
    return tuple(
        (field.encode_name, field.name, _written(hints[field.name]), getattr(plain, field.name))
        for field in fields
        if not field.required
    )


def _value(value: Any, written: str, indented: int) -> str:
    """`indented`: how much stands before it on its line; -1 where it must stay on one line."""
    match value:
        case GpuPlan():
            return f"{{ count = {value.count} }}" if value.count else _value(value.indices, "", -1)
        case msgspec.Struct():
            return _inline([(name, text) for name, text in _entries(value)])
        case dict():
            return _inline([(key(name), _value(one, "", -1)) for name, one in value.items()])
        case tuple():
            return _list([_value(one, "", -1) for one in value], indented)
        case bool():
            return "true" if value else "false"
        case enum.Enum():
            return string(value.value)
        case str():
            return string(value)
        case int() | float():
            return _number(value, written)
        case _:
            raise TypeError(f"no way to write a {type(value).__name__}")


def _inline(entries: list[tuple[str, str]]) -> str:
    return "{ " + ", ".join(f"{name} = {text}" for name, text in entries) + " }" if entries else "{}"


def _list(items: list[str], indented: int) -> str:
    """On one line where that is short, else with each option on a line of its own, beside its value."""
    line = "[" + ", ".join(items) + "]"
    if indented < 0 or indented + len(line) <= WIDTH:
        return line
    lines: list[list[str]] = [[]]
    for item in items:
        if item.startswith('"-') and lines[-1]:
            lines.append([])
        lines[-1].append(item)
    return "[\n" + "".join(f"    {', '.join(parts)},\n" for parts in lines) + "]"


def _number(value: float, written: str) -> str:
    match written:
        case "duration":
            return string(duration(value))
        case "octal":
            return string(f"{int(value):03o}")
        case "size":
            return string(_size(int(value)))
        case "limit":
            return string("unlimited") if value == UNLIMITED else str(value)
        case _:
            return str(value)


def _size(count: int) -> str:
    unit, size = next(((unit, size) for unit, size in _BYTES if count and count % size == 0), ("B", 1))
    return f"{count // size}{unit}"


def _written(hint: Any) -> str:
    """How the reader takes a field's value; "" for as it is. An optional's hint is inside its union."""
    for part in (hint, *typing.get_args(hint)):
        for meta in getattr(part, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta) and meta.extra:
                return str(meta.extra["written"])
    return ""
