"""Groups in the place of names: g:NAME, and supervisorctl's NAME:*, stand for their members to every verb."""

from __future__ import annotations

from supervisor.cli import changing, codes
from supervisor.cli.connection import RefusedError
from supervisor.cli.text import clean, complain, meant, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from supervisor.cli.connection import Client

MARK = "g:"
# Whoever comes later in a group ends first; the daemon has each wait for those that were asked before it.
_BACKWARDS = (changing.stop, changing.drain, changing.restart)


def named(options: Namespace) -> bool:
    """Whether a group may be among the names; a rolling restart asks the daemon for them itself."""
    return not getattr(options, "rolling", False) and any(map(_is_group, _names(options)))


def run(client: Client, options: Namespace) -> int:
    """The verb, on the members of the groups."""
    groups = {group["name"]: group["members"] for group in client.get("/v1/groups")["groups"]}
    unknown = [name for name in _names(options) if name.startswith(MARK) and _plain(name) not in groups]
    for name in unknown:
        say(f"{clean(name)}: ERROR (no such group)")
        if guess := meant(_plain(name), groups):
            complain(f"no such group: {_plain(name)}{guess}")
    if unknown:
        return codes.UNKNOWN
    backwards = options.verb in _BACKWARDS
    wanted = [member for name in _names(options) for member in _members(name, groups, backwards=backwards)]
    if hasattr(options, "names"):
        options.names = wanted
        code: int = options.verb(client, options)
        return code
    return _one_by_one(client, options, wanted)


def _one_by_one(client: Client, options: Namespace, names: list[str]) -> int:
    """A verb that takes one name, for each of several."""
    if getattr(options, "follow", False) or getattr(options, "output", None) is not None:
        complain(f"error: cannot do this for {len(names)} servers at once; name one of {', '.join(names)}")
        return codes.USAGE
    results = []
    for name in names:
        options.name = name
        if not getattr(options, "json", False):
            say(f"==> {clean(name)} <==")
        try:
            results.append(options.verb(client, options))
        except RefusedError as error:
            complain(f"error: {error}")
            results.append(codes.UNKNOWN if error.status == 404 else codes.ERROR)
    return codes.worst(results)


def _names(options: Namespace) -> list[str]:
    one = getattr(options, "name", None)
    return list(getattr(options, "names", None) or ([one] if one else []))


def _is_group(name: str) -> bool:
    return name.startswith(MARK) or name.endswith((":*", ":"))


def _plain(name: str) -> str:
    return name.removeprefix(MARK).removesuffix("*").removesuffix(":")


def _members(name: str, groups: dict[str, Any], *, backwards: bool) -> list[str]:
    """A name that is none of a group stays what it is: each server is a group of its own name to supervisorctl."""
    found = groups.get(_plain(name)) if _is_group(name) else None
    if found is None:
        return [name]
    return list(reversed(found)) if backwards else list(found)
