"""The verbs about the configuration file: reread, avail, update, reload, add, remove."""

from __future__ import annotations

import sys

from supervisor.cli import codes
from supervisor.cli.connection import RefusedError
from supervisor.cli.duration import short, words
from supervisor.cli.reading import segment, starts_line
from supervisor.cli.text import as_json, clean, complain_each, complain_unknown, plain_name, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from supervisor.cli.connection import Client

_NEXT_START = {"restart": "with sglctl upgrade, or the next start of the daemon"}
_LINES = {  # supervisorctl's, as far as it has one
    "added": ("added process group",),
    "removed": ("stopped", "removed process group"),
    "restarted": ("stopped", "updated process group", "restarted"),
    "changed": ("updated process group",),
    "skipped": ("left as it is: it costs a restart",),
}
_ROUTED = {
    "added": "added",
    "changed": "updated",
    "removed": "removed",
    "skipped": "left as it is: the file has it no more, without --live its servers would leave it",
}
_UP = ("STARTING", "RUNNING", "BACKOFF", "STOPPING")
_SEVERAL = "update waits for none of them to serve again before it restarts the next; update --rolling does"
_NOTHING = "No config updates to processes"
_IN_FORCE = "nothing has been changed: what is in force stays in force"
_WHOLE_LIST = 100  # characters
_KEPT = "left as it is: the file has it no more, without --live it would be stopped and removed"
_RULE_DURATIONS = ("stall", "limit", "backoff", "backoff_max", "window", "stopped", "stuck", "canary", "reclaim_limit")
_STOP_DURATIONS = ("grace", "startup_grace", "leave_limit")
_DURATIONS = frozenset((*_RULE_DURATIONS, *_STOP_DURATIONS, "timeout", "interval", "period", "rotate_age"))
_SIZES = frozenset(("size", "rotate_size", "memory_tolerance"))
_UNITS = (("GiB", 2**30), ("GB", 10**9), ("MiB", 2**20), ("MB", 10**6), ("KiB", 2**10))


def reread(client: Client, options: Namespace) -> int:
    """What the file would change, in supervisorctl's words, with its price, each key below. Nothing is changed."""
    read = _read(client)
    if options.json:
        say(as_json(read))
        return codes.OK
    changes = read["differences"]
    up = _up(client) if changes["servers"] else set()
    for server in changes["servers"]:
        price = _price(server, read["last_start_s"], server["name"] in up)
        say(f"{clean(server['name'])}: {clean(server['kind'])}{price}")
        _print_keys(server["keys"], {"restart": "restart needed", "live": "live"})
    restarts = read.get("restarts", [])
    for first, *mates in restarts:
        if mates:
            say(f"{clean(first)} restarts together with {clean(' and '.join(mates))}")
    if len(restarts) > 1:
        say(_SEVERAL)
    if not changes["servers"]:
        say(_NOTHING)
    for router in changes.get("routers", []):
        price = " (update takes its servers out of it)" if router["kind"] == "disappeared" else " (live)"
        say(f"router {clean(router['name'])}: {clean(router['kind'])}{price}")
        _print_keys(router["keys"], {"live": "live"})
    _print_keys(changes.get("groups", []), {"live": "live"})
    _print_keys(changes["daemon"], _NEXT_START)
    return codes.OK


def _read(client: Client) -> Any:
    """What the daemon finds in the file. Raises RefusedError for a file that cannot be used."""
    try:
        return client.get("/v1/config/reread")
    except RefusedError as error:
        raise RefusedError(error.status, f"{error}\n{_IN_FORCE}" if error.status == 409 else str(error)) from None


def _up(client: Client) -> set[str]:
    """Who has processes, or is about to have some."""
    return {one["name"] for one in client.get("/v1/status")["servers"] if one["state"] in _UP}


def _restarts(server: Any) -> bool:
    return any(key["price"] == "restart" for key in server["keys"])


def _price(server: Any, last_start_s: dict[str, float], up: bool) -> str:
    if server["kind"] == "disappeared":
        return " (update stops and removes it)" if up else " (update removes it)"
    if server["kind"] != "changed":
        return ""
    if not _restarts(server):
        return " (live)"
    took = last_start_s.get(server["name"]) if server["name"] in last_start_s else None
    return " (restart needed)" if took is None else f" (restart needed, last start took {words(took)})"


def _print_keys(keys: list[Any], prices: dict[str, str]) -> None:
    for key in keys:
        before, after = _values(key["key"], key["before"], key["after"])
        say(f"  {clean(key['key'])}: {before} -> {after} ({prices[key['price']]})")


def _values(key: str, before: Any, after: Any) -> tuple[str, str]:
    """Both values. Of long lists, as commands are, what differs, behind the word before it: with its option."""
    texts = _value(key, before), _value(key, after)
    if not (isinstance(before, list) and isinstance(after, list)) or max(map(len, texts)) <= _WHOLE_LIST:
        return texts
    same = _common(before, after)
    end = _common(before[same:][::-1], after[same:][::-1])
    first = max(0, same - 1)
    return _excerpt(before, first, len(before) - end), _excerpt(after, first, len(after) - end)


def _common(one: list[Any], other: list[Any]) -> int:
    """How many items both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _excerpt(items: list[Any], first: int, end: int) -> str:
    shown = ["..."] * (first > 0) + [as_json(item) for item in items[first:end]] + ["..."] * (end < len(items))
    return f"[{', '.join(shown)}]"


def _value(key: str, value: Any) -> str:
    """With its unit where the key has one, else as JSON."""
    name = key.rpartition(".")[2]
    if name in _DURATIONS | _SIZES and value is None:
        return "-"
    if name in _DURATIONS and isinstance(value, int | float):
        return short(value)
    if name in _SIZES and isinstance(value, int):
        unit, size = next(((unit, size) for unit, size in _UNITS if value and value % size == 0), ("B", 1))
        return f"{value // size} {unit}"
    return as_json(value)


def avail(client: Client, options: Namespace) -> int:
    """Every server of the file or in force, in supervisorctl's columns; on a terminal how far a boot has come."""
    found, starts = _read(client)["servers"], client.get("/v1/status").get("starts")
    if options.json:
        say(as_json({"servers": found, "starts": starts}))
        return codes.OK
    for server in found:
        in_use, start = "in use" if server["in_use"] else "avail", "auto" if server["autostart"] else "manual"
        say(f"{clean(server['name']):<32} {in_use:<9} {start:<9} 999:999")
    if sys.stdout.isatty() and starts:
        say(starts_line(starts))
    return codes.OK


def update(client: Client, options: Namespace) -> int:
    """Bring the file into force: all of it, or what it says about some servers; told as each is done."""
    if options.rolling:
        from supervisor.cli.rolling import begin

        return begin(client, "update", options)
    read = _read(client)
    names = [plain_name(name) for name in options.names]
    known = {server["name"] for server in read["servers"]}
    unknown = [name for name in names if name not in known and name != "all"]
    for name in unknown:
        say(f"{clean(name)}: ERROR (no such process)")
        complain_unknown(name, known)
    everybody = not names or "all" in names
    changes = [one for one in read["differences"]["servers"] if everybody or one["name"] in names]
    routers = everybody and bool(read["differences"].get("routers"))
    rerouted = [reroute(client, live=options.live)] if routers else []
    done = set[str]()  # one may have gone with a mate of its group
    results = [_updated(client, one, done, live=options.live) for one in changes if one["name"] not in done]
    if everybody and not changes and read["differences"].get("groups"):
        client.post("/v1/config/update", {"names": [], "free_only": True})
    _print_keys(read["differences"].get("groups", []), {"live": "live"})
    _print_keys(read["differences"]["daemon"], _NEXT_START)
    if not changes and not unknown and not routers and not (everybody and read["differences"].get("groups")):
        say(_NOTHING)
    return codes.worst([*rerouted, *results, codes.UNKNOWN if unknown else codes.OK])


def reroute(client: Client, *, live: bool) -> int:
    """The routers of the file, before the servers that they hand requests to; how each of them takes it."""
    answer = client.post("/v1/config/update", {"names": [], "routers_only": True, "free_only": live}, None)
    for one in answer["routers"]:
        if one["kind"] == "failed":
            complain_each("router: ERROR (", one["problem"], ")")
            return codes.ERROR
        problem = f" ({clean(one['problem'])})" if one["problem"] else ""
        say(f"router {clean(one['name'])}: {_ROUTED[one['kind']]}{problem}")
    return codes.OK


def _updated(client: Client, change: Any, done: set[str], *, live: bool) -> int:
    """One server, and those that go with it: waits as long as it takes to stop. `done` gets their names."""
    name = change["name"]
    answer = client.post("/v1/config/update", {"names": [name], "free_only": live}, None)
    for one in answer["servers"]:
        done.add(one["name"])
        if one["kind"] == "failed":
            complain_each(f"{one['name']}: ERROR (", one["problem"], ")")
            return codes.ERROR
        gone = one["kind"] == "skipped" and change["kind"] == "disappeared"
        for line in (_KEPT,) if gone else _LINES[one["kind"]]:
            say(f"{clean(one['name'])}: {line}")
    return codes.OK


def add(client: Client, options: Namespace) -> int:
    """`NAME: added process group`: a server of the file; started if it starts by itself."""
    return codes.worst([_one(client, "/v1/config/add", name, "added process group") for name in options.names])


def remove(client: Client, options: Namespace) -> int:
    """`NAME: removed process group`: out of the daemon, whatever the file says; it must be stopped."""
    return codes.worst(
        [
            _one(client, f"/v1/servers/{segment(plain_name(name))}/remove", name, "removed process group")
            for name in options.names
        ]
    )


def _one(client: Client, target: str, name: str, done: str) -> int:
    body = {"name": plain_name(name)} if target.endswith("/add") else {}
    try:
        client.post(target, body)
    except RefusedError as error:
        if error.status == 404:
            say(f"{clean(name)}: ERROR (no such process)")
            return codes.UNKNOWN
        complain_each(f"{name}: ERROR (", str(error), ")")
        return codes.ERROR
    say(f"{clean(name)}: {done}")
    return codes.OK
