"""Builds HTML from values: whatever is not made here is text, and text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

from supervisor.lines import clean

_VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})


class Html(str):
    """Finished markup. Only `tag` and `join` make it."""

    __slots__ = ()


Child: TypeAlias = "Html | str | int | None"


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """One element. `class_` and `for_` lose their underscore, other underscores become hyphens; None and False go."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Html:
    """Children in a row."""
    return Html("".join(child if isinstance(child, Html) else _text(child) for child in children))


def _attribute(name: str, value: str | float | bool | None) -> str:
    key = name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {key}" if value is True else f' {key}="{_text(value)}"'


def _text(value: str | float | None) -> str:
    """Escapes, control characters and bidirectional overrides are gone, lone surrogates are question marks."""
    if value is None:
        return ""
    return escape(clean(str(value)).encode("utf-8", "replace").decode(), quote=True)
