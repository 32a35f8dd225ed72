"""Makes a well-formed XML-RPC call of any bytes: a fuzzer that has to guess the tags never gets behind them."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

_PLAIN = ("int", "i4", "i8", "boolean", "double", "string", "base64", "dateTime.iso8601", "nil", "name", "value")
_TEXTS = ("", "0", "1", "-1", "2147483648", "9" * 5000, "1e999", "nan", "20261130T02:03:04", "QUJD", "supervisor.stop")
_ARRAY, _STRUCT = 240, 224  # a byte from there on begins one
_DEPTH_MAX = 70  # beyond what the product takes


def call_of(data: bytes) -> bytes:
    """The bytes choose types, texts and how they are nested."""
    source = iter(data)
    name = _text(source)
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
    tag = _PLAIN[kind % len(_PLAIN)]
    return f"<value><{tag}>{_text(source)}</{tag}></value>"


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
