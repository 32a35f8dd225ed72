"""The verbs for servers one after another, and for who hands requests out to them."""

from __future__ import annotations

from supervisor.cli import codes
from supervisor.cli.configuration import reroute
from supervisor.cli.connection import ANSWER_TIMEOUT_S, RefusedError
from supervisor.cli.text import as_json, clean, complain, plain_name, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from supervisor.cli.connection import Client

_LOOK_S = 30.0
_GOES_ON = "the daemon goes on: sglctl rolling shows it, sglctl rolling --cancel ends it after this server"
_MAY_GO_ON = "the daemon goes on if it has begun: sglctl rolling shows it, sglctl rolling --cancel ends it"
_CANCELLED = "cancelled: the server under way comes back, unless its start waits; nobody follows"
_WORDS = {
    "under-way": "leaves its routers, ends, starts again",
    "done": "serves again",
    "skipped": "skipped",
    "failed": "ERROR",
    "rolled-back": "ERROR",
    "left-waiting": "not waited for",
    "left-under-way": "not waited for",
    "untouched": "left alone",
}
_REMOVED = "leaves its routers, ends"
_UPDATED = {  # what an update has done, where that is no restart
    "changed": "changed, without a restart",
    "added": "added",
    "removed": "removed",
    "unchanged": "left as it is: nothing has changed",
}


def begin(client: Client, kind: str, options: Namespace) -> int:
    """Begin, and tell each server as it is done; 1 as soon as one fails. Ctrl-C ends only the telling."""
    names = [name if name.startswith("g:") else plain_name(name) for name in options.names]
    body = {"kind": kind, "names": [] if names == ["all"] and kind == "update" else names, "grace_s": options.grace}
    if kind == "restart":
        body["reason"] = options.reason
    try:
        if kind == "update" and not body["names"] and (failed := reroute(client, live=False)):
            return failed  # nobody is restarted for a file of which half has failed
        begun = client.post("/v1/rolling", body)
    except RefusedError as error:
        complain(f"error: {error}")
        return codes.UNKNOWN if error.status == 404 else codes.ERROR
    except KeyboardInterrupt:
        complain(_MAY_GO_ON)
        raise
    _warn(begun)
    roll = begun["rolling"]
    if not roll["members"]:
        say("No config updates to processes")
        return codes.OK
    if options.no_wait:
        say(clean(roll["summary"]))
        return codes.OK
    return _followed(client, roll)


def rolling(client: Client, options: Namespace) -> int:
    """What rolls, or has rolled last; 1 when that did not end well."""
    if options.cancel:
        _warn(client.post("/v1/rolling/cancel"))
        say(_CANCELLED)
        return codes.OK
    roll = client.get("/v1/rolling")["rolling"]
    if options.json:
        say(as_json({"rolling": roll}))
    elif roll is None:
        say("nothing rolls, and nothing has")
    elif options.follow:
        return _followed(client, roll)
    else:
        say(clean(roll["summary"]))
        for member in roll["members"]:
            say(f"  {clean(member['name'])}: {_told(member, member['state'])}{clean(_waits(member))}")
    return codes.OK if roll is None or roll["state"] in ("running", "done") else codes.ERROR


def routers(client: Client, options: Namespace) -> int:
    """One line a router: whether it can be asked, and how many servers it has; 1 when one cannot."""
    found = client.get("/v1/info")["routers"]
    if options.json:
        say(as_json({"routers": found}))
    for one in () if options.json else found:
        state = {True: "reachable", False: "unreachable", None: "not asked yet"}[one["reachable"]]
        count = f"{one['servers']} server{'' if one['servers'] == 1 else 's'}"
        problem = f": {clean(one['problem'])}" if one["problem"] else ""
        say(f"{clean(one['name'])} ({clean(one['kind'])}): {state}, {count}{problem}")
    if not found and not options.json:
        say("no routers are configured")
    return codes.ERROR if any(one["reachable"] is False for one in found) else codes.OK


def _followed(client: Client, roll: Any) -> int:
    shown: dict[str, tuple[str, str]] = {}
    try:
        while True:
            _tell(roll, shown)
            if roll["state"] != "running":
                break
            target = f"/v1/rolling?known={roll['version']}&timeout_s={_LOOK_S:g}"
            roll = client.get(target, _LOOK_S + ANSWER_TIMEOUT_S)["rolling"]
    except KeyboardInterrupt:
        complain(_GOES_ON)
        raise
    if roll["state"] == "done":
        return codes.OK
    complain(f"error: {roll['summary']}")
    return codes.ERROR


def _tell(roll: Any, shown: dict[str, tuple[str, str]]) -> None:
    """What is new of each server; while its start waits, what for."""
    for member in roll["members"]:
        name, state, waits = member["name"], member["state"], member.get("waits", "")
        before, waited = shown.get(name, ("waiting", ""))
        shown[name] = state, waits
        if state != before:
            say(f"{clean(name)}: {_happened(member)}")
        if waits and waits != waited:
            say(f"{clean(name)}: its start {clean(waits)}")


def _waits(member: Any) -> str:
    return f", its start {member['waits']}" if member.get("waits") else ""


def _warn(answer: Any) -> None:
    """The disk has not taken what was asked, and it is done all the same."""
    if answer.get("problem"):
        complain(f"warning: {answer['problem']}")


def _happened(member: Any) -> str:
    """What is done to a server, or has been done."""
    state, reason = member["state"], member["reason"]
    if state == "done" and reason in _UPDATED:
        return _UPDATED[reason]
    return _told(member, _REMOVED if state == "under-way" and reason else _WORDS.get(state, state))


def _told(member: Any, words: str) -> str:
    return clean(f"{words} ({member['reason']})" if member["reason"] else words)
