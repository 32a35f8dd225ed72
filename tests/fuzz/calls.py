"""Makes a well-formed XML-RPC call of any bytes: a fuzzer that has to guess the tags never gets behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

_PLAIN = {  # with texts that are what they should be
    "string": ("kimi", "kimi:kimi", "kimi:*", "nobody", "HUP", "", "supervisor.getState"),
    "int": ("0", "1", "-1", "2147483647"),
    "i8": ("5", "4294967296"),
    "boolean": ("0", "1"),
    "double": ("1.5", "1e999", "nan"),
    "base64": ("QUJD",),
    "dateTime.iso8601": ("20261130T02:03:04",),
    "nil": ("",),
    "name": ("kimi",),
    "value": ("kimi",),
}
_TAGS = tuple(_PLAIN)
_GOOD = 200  # a byte below it chooses one of those
_TEXTS = ("", "0", "1", "-1", "2147483648", "9" * 5000, "1e999", "nan", "20261130T02:03:04", "QUJD", "kimi", "a:*")
_ARRAY, _STRUCT = 240, 224  # a byte from there on begins one
_DEPTH_MAX = 70  # beyond what the product takes


def call_of(data: bytes, names: Sequence[str] = ()) -> bytes:
    """The bytes choose one of the names, if there are any, types, texts and how they are nested."""
    source = iter(data)
    name = names[next(source, 0) % len(names)] if names else _text(source)
    parameters = "".join(f"<param>{_value(source, 0)}</param>" for _ in range(next(source, 0) % 4))
    body = f"<methodCall><methodName>{name}</methodName><params>{parameters}</params></methodCall>"
    return body.encode("utf-8", "replace")


def _value(source: Iterator[int], depth: int) -> str:
    kind = next(source, 0)
    if kind >= _ARRAY and depth < _DEPTH_MAX:
        inner = "".join(_value(source, depth + 1) for _ in range(1 + kind % 3))
        return f"<value><array><data>{inner}</data></array></value>"
    if kind >= _STRUCT and depth < _DEPTH_MAX:
        members = "".join(_member(source, depth + 1) for _ in range(1 + kind % 3))
        return f"<value><struct>{members}</struct></value>"
    tag = _TAGS[kind % len(_TAGS)]
    choice = next(source, 0)
    text = _PLAIN[tag][choice % len(_PLAIN[tag])] if choice < _GOOD else _text(source)
    return f"<value><{tag}>{text}</{tag}></value>"


def _member(source: Iterator[int], depth: int) -> str:
    """Its name is text, or now and then a value, which it must not be."""
    kind = next(source, 0)
    name = _value(source, depth) if kind % 16 == 0 else _text(source)
    return f"<member><name>{name}</name>{_value(source, depth)}</member>"


def _text(source: Iterator[int]) -> str:
    kind = next(source, 0)
    if kind < len(_TEXTS):
        return _TEXTS[kind]
    return escape("".join(chr(next(source, 0) * (1 + kind % 400)) for _ in range(kind % 8)))
