"""Turns a TOML table into a struct strictly, naming the path of every key that is wrong.

msgspec alone stops at the first error and names no key inside a table of tables (`$[...]`), so structs are walked here
and msgspec converts the leaves.
"""

from __future__ import annotations

import difflib
import enum
import functools
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from supervisor.config.model import UNLIMITED, GpuPlan
from supervisor.lines import printable
from supervisor.units import parse_bytes, parse_duration

S = TypeVar("S", bound=msgspec.Struct)
SHOWN_MAX = 200
Problems = list[tuple[str, str]]  # (key path, what is wrong)

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_EXPECTED = re.compile(r"Expected `([^`]*)`(.*?)(?:, got `[^`]*`)?(?: - at `(.*)`)?$")


class InvalidValueError(ValueError):
    """A value that its key cannot take; `place` is where inside the value ("[2]" in a list)."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place


def read_struct(struct: type[S], table: object, path: str, problems: Problems, **given: object) -> S | None:
    """The struct described by `table`; None after adding at least one entry to `problems`.

    Fields in `given` do not come from the table and are no keys of it.
    """
    if not isinstance(table, dict):
        problems.append((path, f"expected a table, got {shown(table)}"))
        return None
    before = len(problems)
    hints, keys = _shape(struct)
    fields = {key: name for key, name in keys.items() if name not in given}
    values: dict[str, Any] = dict(given)
    for key, value in table.items():
        if key not in fields:
            problems.append((join(path, key), unknown_key(key, fields)))
        else:
            values[fields[key]] = _read(hints[fields[key]], value, join(path, key), problems)
    return struct(**values) if len(problems) == before else None


@functools.cache
def _shape(struct: type[msgspec.Struct]) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields' types, and key → field. Both are worked out from text, which is slow: so once."""
    hints = typing.get_type_hints(struct, include_extras=True)
    return hints, {field.encode_name: field.name for field in msgspec.structs.fields(struct)}


def _read(hint: Any, value: object, path: str, problems: Problems) -> Any:
    if isinstance(hint, type) and issubclass(hint, GpuPlan) and not isinstance(value, dict):
        return _leaf(tuple[typing.Annotated[int, msgspec.Meta(ge=0)], ...], value, path, problems, GpuPlan)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return read_struct(hint, value, path, problems)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is dict:
        return _read_table(arguments[1], value, path, problems)
    return _leaf(hint, value, path, problems)


def _read_table(hint: Any, value: object, path: str, problems: Problems) -> dict[str, Any]:
    """A table whose keys the operator chooses."""
    if not isinstance(value, dict):
        problems.append((path, f"expected a table, got {shown(value)}"))
        return {}
    return {key: _read(hint, inner, join(path, key), problems) for key, inner in value.items()}


def _leaf(hint: Any, value: object, path: str, problems: Problems, wrap: type[Any] | None = None) -> Any:
    try:
        leaf = convert(hint, value)
    except InvalidValueError as error:
        problems.append((path + error.place, str(error)))
        return None
    return leaf if wrap is None else wrap(leaf)


def convert(hint: Any, value: object) -> Any:
    """One value of a key. Raises InvalidValueError."""
    present = _without_none(hint)
    written = _written(present)
    if written is not None:
        return _parse_written(written, value)
    if isinstance(present, type) and issubclass(present, enum.Enum):
        return _choice(present, value)
    try:
        return msgspec.convert(value, present, strict=True)
    except msgspec.ValidationError as error:
        raise _explained(str(error), value) from None


def _without_none(hint: Any) -> Any:
    """TOML has no null: None is a default only."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not types.NoneType)
    return hint


def _written(hint: Any) -> str | None:
    for meta in getattr(hint, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.extra:
            return str(meta.extra["written"])
    return None


def _parse_written(written: str, value: object) -> float | int:
    try:
        match written:
            case "duration":
                return parse_duration(_text(value, 'a duration such as "90s"'))
            case "size":
                return parse_bytes(_text(value, 'a size such as "10GB" or "512MiB"'))
            case "octal":
                return _octal(_text(value, 'an octal mode in quotes such as "022"'))
            case "limit":
                return _limit(value)
            case _:
                raise AssertionError(f"no such way to write a value: {written}")
    except ValueError as error:
        raise error if isinstance(error, InvalidValueError) else InvalidValueError(str(error)) from None


def _text(value: object, expected: str) -> str:
    if not isinstance(value, str):
        raise InvalidValueError(f"expected {expected}, got {shown(value)}")
    return value


def _octal(text: str) -> int:
    if not re.fullmatch(r"[0-7]{1,4}", text, re.ASCII):
        raise InvalidValueError(f'expected an octal mode in quotes such as "022", got {shown(text)}')
    return int(text, 8)


def _limit(value: object) -> int:
    match value:
        case "unlimited":
            return UNLIMITED
        case bool():
            pass
        case int() if value >= 0:
            return value
        case str():
            return parse_bytes(value)
        case _:
            pass
    raise InvalidValueError(f'expected a whole number, a size such as "8GiB" or "unlimited", got {shown(value)}')


def _choice(kind: type[enum.Enum], value: object) -> enum.Enum:
    for member in kind:
        if value == member.value:
            return member
    raise InvalidValueError(f"expected one of {', '.join(shown(member.value) for member in kind)}, got {shown(value)}")


def _explained(message: str, value: object) -> InvalidValueError:
    match = _EXPECTED.match(message)
    if match is None:
        return InvalidValueError(f"{message[0].lower()}{message[1:]}")
    place = (match[3] or "$").removeprefix("$")
    found = _at(value, place)
    words = " or ".join(_WORDS.get(word.strip(), word.strip()) for word in match[1].split("|"))
    return InvalidValueError(f"expected {words}{match[2]}, got {shown(found)}", place)


def _at(value: object, place: str) -> object:
    """What msgspec's path points to: "[2]" in a list, else the value itself."""
    index = re.fullmatch(r"\[(\d+)\]", place)
    return value[int(index[1])] if index is not None and isinstance(value, list) else value


def unknown_key(key: str, known: Iterable[str] | Mapping[str, str]) -> str:
    """The complaint about a key nobody knows, with the nearest one that exists."""
    near = nearest(key, known)
    return f"unknown key, did you mean {near}?" if near else f"unknown key, known are {', '.join(sorted(known))}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that has nearly the same letters, in quotes; "" without one."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return shown(near[0]) if near else ""


def shown(value: object) -> str:
    """A value as TOML would show it, on one line and bounded."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _quoted(value)
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return str(value)[:SHOWN_MAX]


def _quoted(text: str) -> str:
    bounded = text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 3]}..."
    return f'"{printable(bounded)}"'


def join(path: str, key: str) -> str:
    """The path of a key, quoted where TOML would quote it."""
    part = key if re.fullmatch(r"[A-Za-z0-9_-]+", key, re.ASCII) else _quoted(key)
    return f"{path}.{part}" if path else part
