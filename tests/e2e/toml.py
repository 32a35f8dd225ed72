"""Writes the daemon's configuration file from plain values."""

import json
from collections.abc import Mapping
from typing import Any


def document(daemon: Mapping[str, Any], servers: Mapping[str, Mapping[str, Any]]) -> str:
    """One [daemon] table and a [server.NAME] table each."""
    tables = [table("daemon", daemon)]
    tables += [table(f"server.{key(name)}", server) for name, server in servers.items()]
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
