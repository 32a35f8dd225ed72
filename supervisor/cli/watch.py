"""Shows servers as they change: a picture that is repainted on a terminal, one line a change anywhere else."""

from __future__ import annotations

import os
import sys
import time

from supervisor.cli import codes
from supervisor.cli.connection import RefusedError, UnreachableError
from supervisor.cli.frame import Look, frame
from supervisor.cli.text import clean, plain_name, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from supervisor.cli.connection import Client

_EVENTS_ASKED = 50  # among them are phases, which are not told
_BEGIN_FRAME, _END_FRAME = "\x1b[?2026h", "\x1b[?2026l"  # synchronized output, ignored where it is unknown
_HIDE_CURSOR, _SHOW_CURSOR, _ERASE_BELOW, _ERASE_REST = "\x1b[?25l", "\x1b[?25h", "\x1b[J", "\x1b[K"


def watch(client: Client, options: Namespace) -> int:
    """Until Ctrl-C, or for --count looks."""
    painted = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    looks = _looks(client, options, painted=painted)
    try:
        return _paint(looks) if painted else _tell(looks)
    except KeyboardInterrupt:
        return codes.OK


def _looks(client: Client, options: Namespace, *, painted: bool) -> Iterator[Look | str]:
    """Servers as they are now, again and again; a text while the daemon cannot be reached, as when it is upgraded."""
    names = {plain_name(name) for name in options.names} - {"all"}
    left = options.count
    while left is None or left > 0:
        try:
            yield _look(client, names, painted=painted)
        except (UnreachableError, RefusedError) as error:
            if options.count is not None or not painted:
                raise
            yield f"{error}; trying again"
        left = None if left is None else left - 1
        if left != 0:
            time.sleep(options.interval)


def _look(client: Client, names: set[str], *, painted: bool) -> Look:
    """A picture shows GPUs and events as well, those of the named servers."""
    servers = [one for one in client.get("/v1/servers")["servers"] if not names or one["name"] in names]
    if not painted:
        return Look(servers)
    gpus, events = client.get("/v1/gpus"), client.get(f"/v1/events?limit={_EVENTS_ASKED}")["events"]
    if names:
        gpus["gpus"] = [gpu for gpu in gpus["gpus"] if gpu["server"] in names]
        events = [event for event in events if event["server"] in names]
    return Look(servers, gpus, events)


def _tell(looks: Iterator[Look | str]) -> int:
    """A line when state, phase or verdict of a server have changed: what goes into a file should not be a film."""
    before: dict[str, tuple[str, str, str]] = {}
    for look in looks:
        for server in () if isinstance(look, str) else look.servers:
            phase = server["start"]["phase"] if server["start"] and server["state"] == "STARTING" else ""
            now = (server["state"], phase, server["verdict"]["value"])
            if before.get(server["name"]) != now:
                at = time.strftime("%H:%M:%S")
                say(f"{at} {clean(server['name'])} {server['state']} {clean(server['description'])}")
                sys.stdout.flush()
            before[server["name"]] = now
    return codes.OK


def _paint(looks: Iterator[Look | str]) -> int:
    """A frame is written in one piece over the last one: an erased frame is what the eye sees as flicker."""
    drawn = 0
    sys.stdout.write(_HIDE_CURSOR)
    try:
        for look in looks:
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
            lines = frame(look, (columns or 80) - 1, max(1, (rows or 24) - 2))  # 0: it does not know
            up = f"\x1b[{drawn}A" if drawn else ""
            body = "".join(f"{line}{_ERASE_REST}\n" for line in lines)
            sys.stdout.write(f"{_BEGIN_FRAME}\r{up}{body}{_ERASE_BELOW}{_END_FRAME}")
            sys.stdout.flush()
            drawn = len(lines)
    finally:
        sys.stdout.write(_SHOW_CURSOR)
    return codes.OK
