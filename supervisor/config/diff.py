"""What another reading of the configuration would change, key by key, and what each change costs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from supervisor.config.model import Config, RouterConfig, ServerConfig
from supervisor.config.secrets import HIDDEN, is_secret, mask_command

# Consulted by the daemon while the server runs; everything else is given to the process at its start.
_LIVE = (
    "host",
    "autostart",
    "stop",
    "deadlines",
    "restart",
    "readiness",
    "serving",
    "detectors",
    "on_foreign",
    "memory_tolerance",
    "reclaim_limit",
    "operators",
    "log",
    "hooks",
    "priority",
    "after",
    "requires",
)

_COMMANDS = ("command", "before_start", "on_change")


class KeyChange(msgspec.Struct, frozen=True):
    """One key as it is and as the file has it now, as JSON values with secrets hidden. `price` is live or restart."""

    key: str
    before: Any
    after: Any
    price: str


class ServerChange(msgspec.Struct, frozen=True):
    """A server that is available (new), changed or disappeared: supervisorctl's words."""

    name: str
    kind: str
    keys: tuple[KeyChange, ...] = ()

    @property
    def restart_needed(self) -> bool:
        """Whether one of the keys takes a restart to come into force."""
        return any(change.price == "restart" for change in self.keys)


class RouterChange(msgspec.Struct, frozen=True):
    """A router that is available (new), changed or disappeared. No process notices."""

    name: str
    kind: str
    keys: tuple[KeyChange, ...] = ()


class Differences(msgspec.Struct, frozen=True):
    """All changes; those of the daemon's own table come with its next start."""

    servers: tuple[ServerChange, ...]
    daemon: tuple[KeyChange, ...]
    groups: tuple[KeyChange, ...] = ()
    routers: tuple[RouterChange, ...] = ()


def started_with(server: ServerConfig) -> str:
    """The same text for settings that a running process need not notice; no setting can be read out of it.

    What is as it is by default is left out, so that a key which a later version adds changes nothing.
    """
    usual, now = msgspec.to_builtins(ServerConfig(server.name)), msgspec.to_builtins(server)
    given = {name: value for name, value in now.items() if name not in _LIVE and value != usual[name]}
    return hashlib.sha256(msgspec.json.encode(given, order="deterministic")).hexdigest()[:16]


def differences(running: Config, read: Config) -> Differences:
    """From what runs to what has just been read, servers and routers in order of their names."""
    names = sorted(running.servers.keys() | read.servers.keys())
    changes = [_server(running.servers.get(name), read.servers.get(name), name) for name in names]
    return Differences(
        servers=tuple(change for change in changes if change is not None),
        daemon=tuple(_keys("daemon", _plain(running.daemon), _plain(read.daemon))),
        groups=tuple(replace(one, price="live") for one in _keys("group", _groups(running), _groups(read))),
        routers=tuple(
            change
            for name in sorted(running.routers.keys() | read.routers.keys())
            if (change := _router(running.routers.get(name), read.routers.get(name), name)) is not None
        ),
    )


def _groups(config: Config) -> dict[str, Any]:
    return {name: _plain(group) for name, group in config.groups.items()}


def _server(before: ServerConfig | None, after: ServerConfig | None, name: str) -> ServerChange | None:
    if before is None:
        return ServerChange(name, "available")
    if after is None:
        return ServerChange(name, "disappeared")
    keys = tuple(_keys("", _plain(before), _plain(after)))
    return ServerChange(name, "changed", keys) if keys else None


def _router(before: RouterConfig | None, after: RouterConfig | None, name: str) -> RouterChange | None:
    if before is None:
        return RouterChange(name, "available")
    if after is None:
        return RouterChange(name, "disappeared")
    path = f"router.{name}"
    found = [
        replace(one, key=one.key.removeprefix(f"{path}."), price="live")
        for one in _keys(path, _set(before), _set(after))
    ]
    return RouterChange(name, "changed", tuple(found)) if found else None


def _set(router: RouterConfig) -> dict[str, Any]:
    """What is set in its table."""
    defaults = _plain(RouterConfig(""))
    return {key: value for key, value in _plain(router).items() if key != "name" and value != defaults[key]}


def _plain(table: msgspec.Struct) -> dict[str, Any]:
    """The table by the keys of the file."""
    plain: dict[str, Any] = msgspec.to_builtins(table)
    return plain


def _keys(path: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[KeyChange]:
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        inner = f"{path}.{key}" if path else key
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _keys(inner, old, new)
        else:
            yield KeyChange(inner, _shown(inner, old), _shown(inner, new), _price(inner))


def _shown(key: str, value: Any) -> Any:
    if value and (is_secret(key.rpartition(".")[2]) or ".headers" in key):
        return HIDDEN
    if value and key.startswith("router.") and key.endswith(".url"):
        return _site(value)
    return list(mask_command(value)) if isinstance(value, list | tuple) and key.endswith(_COMMANDS) else value


def _site(url: str) -> str:
    """Where it is; who knows the rest of a webhook's address may write to it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _price(key: str) -> str:
    return "live" if key.partition(".")[0] in _LIVE else "restart"
