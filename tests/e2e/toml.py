"""Writes the daemon's configuration file from plain values."""

import json
from collections.abc import Mapping
from typing import Any


def document(
    daemon: Mapping[str, Any],
    servers: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """One [daemon] table, a [server.NAME] table and a [group.NAME] table each."""
    tables = [table("daemon", daemon)]
    tables += [table(f"server.{key(name)}", server) for name, server in servers.items()]
    tables += [table(f"group.{key(name)}", group) for name, group in (groups or {}).items()]
    return "\n".join(tables)


def table(header: str, values: Mapping[str, Any]) -> str:
    lines = [f"{key(name)} = {value(inner)}" for name, inner in values.items()]
    return "\n".join([f"[{header}]", *lines]) + "\n"


def value(inner: Any) -> str:
    match inner:
        case dict():
            return "{" + ", ".join(f"{key(name)} = {value(one)}" for name, one in inner.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(value, inner)) + "]"
        case _:
            return json.dumps(str(inner) if not isinstance(inner, bool | int | float | str) else inner)


def key(name: str) -> str:
    return name if name.replace("-", "a").replace("_", "a").isalnum() else json.dumps(name)
