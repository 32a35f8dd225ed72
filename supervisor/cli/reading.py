"""The verbs that look: status, pid, version, tail, maintail, events."""

from __future__ import annotations

import sys

from supervisor.cli import codes
from supervisor.cli.connection import LostError, RefusedError, UnreachableError
from supervisor.cli.duration import words
from supervisor.cli.text import (
    LogCleaner,
    as_json,
    change,
    clean,
    coloured,
    complain,
    complain_unknown,
    fitted,
    local,
    plain_name,
    say,
    width,
    wrapped,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator
    from typing import Any

    from supervisor.cli.connection import Client

_UNRESERVED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_NAME_WIDTH = 30  # supervisorctl's columns, which scripts cut; a terminal's room goes to the description
_STATE_WIDTH = 10
_NAME_PART = 3  # of a terminal's columns, the column of names takes at most one in so many
_TAIL_BYTES = 1600  # supervisorctl's default
_RANK_LINES = 20  # of one rank, unless told: among the last bytes of all there may be none of it
_LINES_MAX = 1_000_000  # what the daemon takes; it looks back some megabytes for them
_PROBLEMS = ("state_problem", "unanswered", "journal_problem")  # of the daemon, beside its servers
_DOWN = ("STOPPED", "EXITED", "FATAL", "UNKNOWN")


def status(client: Client, options: Namespace) -> int:
    """One line a server; 3 when one of them is not running, 4 when a name is unknown."""
    answer = client.get("/v1/servers" if options.json else "/v1/status")
    shown, unknown = _select(answer["servers"], options.names)
    if options.json:
        others = {key: answer.get(key) for key in ("at", "starts", *_PROBLEMS)}
        say(as_json(others | {"servers": shown}))
        for name in unknown:
            complain(f"{name}: ERROR (no such process)")
    else:
        _print_rows(shown, unknown)
        if sys.stdout.isatty() and answer.get("starts"):
            say(starts_line(answer["starts"]))
        if sys.stdout.isatty() and (advice := _advice(shown)):
            say(advice)
        for problem in filter(None, map(answer.get, _PROBLEMS)):
            complain(f"WARNING: {problem}")
    for name in unknown:
        complain_unknown(name, [server["name"] for server in answer["servers"]])
    if unknown:
        return codes.UNKNOWN
    bad = any(not server["healthy"] if options.check else server["state"] in _DOWN for server in shown)
    return codes.NOT_RUNNING if bad else codes.OK


def _advice(shown: list[Any]) -> str:
    """The next command, where nothing more happens by itself: a row has no room for it, nor may a script find it there.

    Of many the first: one is looked at after the other.
    """
    down = [server["name"] for server in shown if server["state"] in ("FATAL", "EXITED")]
    return f"what is down, and what to do about it: sglctl why {clean(down[0])}" if down else ""


def starts_line(starts: Any) -> str:
    """How far a boot has come: who starts, who waits, and when all will be ready as far as anybody can tell."""
    told = [f"{len(starts['starting'])} starting, {len(starts['waiting'])} waiting for their start"]
    if late := starts.get("overdue"):
        told.append(f"overdue: {clean(', '.join(late))}")
    known = f"not counting {clean(', '.join(starts['unknown']))}: " if starts["unknown"] else ""
    if starts["ready_s"] is not None:
        told.append(f"{known}all ready in about {words(max(60.0, starts['ready_s']))}")
    elif late:
        told.append("when all are ready nobody can tell")
    return "; ".join(told)


def status_of_hosts(clients: dict[str, Client], options: Namespace) -> int:
    """The same with HOST/ before each name; a host that cannot be reached does not hide the others."""
    rows: list[Any] = []
    results: list[int] = []
    for host, client in clients.items():
        try:
            servers = client.get("/v1/servers" if options.json else "/v1/status")["servers"]
        except (UnreachableError, RefusedError) as error:
            complain(f"{host}: {error}")
            results.append(codes.UNKNOWN)
            continue
        shown, _ = _select(servers, options.names)
        rows += [
            {**server, "host": host, "name": f"{host.removeprefix('ssh://')}/{server['name']}"} for server in shown
        ]
    bad = any(not row["healthy"] if options.check else row["state"] in _DOWN for row in rows)
    missing = {plain_name(name) for name in options.names if name != "all"} - {
        row["name"].rpartition("/")[2] for row in rows
    }
    if options.json:
        say(as_json({"servers": rows}))
    else:
        _print_rows(rows, sorted(missing))
    return codes.worst([*results, codes.UNKNOWN if missing else codes.OK, codes.NOT_RUNNING if bad else codes.OK])


def _select(servers: list[Any], names: list[str]) -> tuple[list[Any], list[str]]:
    if not names or "all" in names:
        return servers, []
    names = list(map(plain_name, names))
    by_name = {server["name"]: server for server in servers}
    return [by_name[name] for name in names if name in by_name], [name for name in names if name not in by_name]


def _print_rows(servers: list[Any], unknown: list[str]) -> None:
    """On a terminal each on one line, the description being cut: `why`, --json and pipes have all of it.

    There a very long name costs its own description room, not everybody's.
    """
    on_terminal = sys.stdout.isatty()
    longest = max((len(server["name"]) for server in servers), default=0)
    columns = width(sys.stdout) if on_terminal else 0
    names = min(longest, columns // _NAME_PART) + 2 if on_terminal else max(_NAME_WIDTH, longest) + 3
    for server in servers:
        name, state = f"{clean(server['name']) + '  ':<{names}}", coloured(server["state"], _STATE_WIDTH)
        description = clean(server["description"])
        room = columns - len(name) - _STATE_WIDTH
        say(f"{name}{state}{fitted(description, room) if room > 0 else description}".rstrip())
    for name in unknown:
        say(f"{clean(name)}: ERROR (no such process)")


def pid(client: Client, options: Namespace) -> int:
    """The daemon's pid, or one server's, or one a line for all."""
    if options.name is None:
        number = client.get("/v1/info")["pid"]
        say(as_json({"pid": number}) if options.json else str(number))
        return codes.OK
    everybody = options.name == "all"
    found = client.get("/v1/servers")["servers"] if everybody else [client.get(f"/v1/servers/{segment(options.name)}")]
    pids = [{"name": server["name"], "pid": server["pid"]} for server in found]
    if options.json:
        say(as_json({"servers": pids} if everybody else pids[0]))
    else:
        for one in pids:
            say(str(one["pid"] or 0))
    return codes.OK if everybody or pids[0]["pid"] else codes.NOT_RUNNING


def version(client: Client, options: Namespace) -> int:
    """The daemon's version."""
    info = client.get("/v1/info")
    say(as_json(info) if options.json else clean(info["version"]))
    return codes.OK


def tail(client: Client, options: Namespace) -> int:
    """The end of a server's log; 1600 bytes unless told."""
    server = f"/v1/servers/{segment(options.name)}"
    which = "" if options.attempt is None else f"&attempt={options.attempt}"
    if options.follow:
        from supervisor.cli.following import followed

        return _tail(lambda query: followed(client, server, query + which), options)
    return _tail(lambda query: client.stream(f"{server}/log?{query}{which}", forever=False), options)


def maintail(client: Client, options: Namespace) -> int:
    """The end of the daemon's own log."""
    try:
        follow = "&follow=true" if options.follow else ""
        return _tail(lambda query: client.stream(f"/v1/log?{query}{follow}", forever=options.follow), options)
    except RefusedError as error:
        complain(f"error: {error}")
        return codes.ERROR  # not 4: no name was unknown


def _tail(ask: Callable[[str], Iterator[bytes]], options: Namespace) -> int:
    lines, query = _amount(options)
    if options.follow:
        complain("==> Press Ctrl-C to exit <==")
    pieces, ranks = ask(query), None
    texts: Iterator[str] = map(LogCleaner().feed, pieces)
    if options.rank is not None and not options.raw:
        from supervisor.cli.rank import RankLines

        ranks = RankLines(options.rank, lines)
        texts = ranks.of(texts)
    try:
        for text in texts if not options.raw else ():
            sys.stdout.write(text)
            sys.stdout.flush()
        for data in pieces if options.raw else ():
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        if not options.follow:
            raise
        return codes.OK
    if ranks is not None and (missing := ranks.missing()):
        complain(f"error: {missing}")
        return codes.ERROR
    return codes.OK


def _amount(options: Namespace) -> tuple[int | None, str]:
    """How many of a rank's lines are kept, None for all; and what is asked of the daemon."""
    if options.rank is not None and not options.follow and options.bytes is None:
        return _RANK_LINES if options.lines is None else options.lines, f"lines={_LINES_MAX}"
    if options.lines is not None:
        return None, f"lines={options.lines}"
    size = _TAIL_BYTES if options.bytes is None else options.bytes
    return None, f"offset=-{size}" if size else "lines=0"


def events(client: Client, options: Namespace) -> int:
    """What happened, oldest first; with -f as it happens."""
    query = [f"limit={options.limit}"]
    if options.name is not None:
        query.append(f"server={segment(options.name)}")
    if options.follow:
        return _follow_events(client, "/v1/events?" + "&".join([*query, "follow=true"]), options)
    if options.since is not None:
        query.append(f"since={options.since}")
    for event in client.get("/v1/events?" + "&".join(query))["events"]:
        _say_event(event, options)
    return codes.OK


def _follow_events(client: Client, target: str, options: Namespace) -> int:
    """Goes on behind the last one when the daemon is upgraded meanwhile."""
    seen = options.since
    while True:
        since = "" if seen is None else f"&since={seen}"
        try:
            for event in _parsed(client.stream(target + since, forever=True, accept="text/event-stream")):
                _say_event(event, options)
                sys.stdout.flush()
                seen = event["id"]
        except KeyboardInterrupt:
            return codes.OK
        except LostError:
            client.find_again()
        else:
            raise RefusedError(503, "the daemon ended the stream")


def _say_event(event: Any, options: Namespace) -> None:
    """A line each; on a terminal broken between words, for a reason may be several sentences."""
    line = as_json(event) if options.json else event_line(event)
    columns = 0 if options.json or not sys.stdout.isatty() else width(sys.stdout)
    for part in wrapped(line, columns, 4) if columns else (line,):
        say(part)


def _parsed(pieces: Iterator[bytes]) -> Iterator[Any]:
    """The `data:` lines of a stream of server-sent events."""
    import json

    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


def event_line(event: Any) -> str:
    """One event on one line."""
    return "  ".join((local(event["at"]), clean(event["server"]), clean(event["facet"]), change(event)))


def segment(name: str) -> str:
    """A name as one segment of a path or one value of a query."""
    return "".join(
        chr(byte) if chr(byte) in _UNRESERVED else f"%{byte:02X}" for byte in name.encode("utf-8", "replace")
    )
