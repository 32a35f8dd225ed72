"""Shows servers as they change: a picture that is repainted on a terminal, one line a change anywhere else."""

from __future__ import annotations

import os
import sys
import time

from supervisor.cli import codes
from supervisor.cli.connection import RefusedError, UnreachableError
from supervisor.cli.duration import words
from supervisor.cli.text import clean, coloured, fitted, plain_name, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from typing import Any

    from supervisor.cli.connection import Client

_BAR_CELLS = 20
_RANKS_MAX = 16
_STATE_WIDTH = 10
_BEGIN_FRAME, _END_FRAME = "\x1b[?2026h", "\x1b[?2026l"  # synchronized output, ignored where it is unknown
_HIDE_CURSOR, _SHOW_CURSOR, _ERASE_BELOW, _ERASE_REST = "\x1b[?25l", "\x1b[?25h", "\x1b[J", "\x1b[K"


def watch(client: Client, options: Namespace) -> int:
    """Until Ctrl-C, or for --count looks."""
    looks = _looks(client, options)
    try:
        return _paint(looks) if sys.stdout.isatty() else _tell(looks)
    except KeyboardInterrupt:
        return codes.OK


def _looks(client: Client, options: Namespace) -> Iterator[list[Any] | str]:
    """Servers as they are now, again and again; a text while the daemon cannot be reached, as when it is upgraded."""
    names = {plain_name(name) for name in options.names} - {"all"}
    left = options.count
    while left is None or left > 0:
        try:
            servers = client.get("/v1/servers")["servers"]
            yield [server for server in servers if not names or server["name"] in names]
        except (UnreachableError, RefusedError) as error:
            if options.count is not None or not sys.stdout.isatty():
                raise
            yield f"{error}; trying again"
        left = None if left is None else left - 1
        if left != 0:
            time.sleep(options.interval)


def _tell(looks: Iterator[list[Any] | str]) -> int:
    """A line when state, phase or verdict of a server have changed: what goes into a file should not be a film."""
    before: dict[str, tuple[str, str, str]] = {}
    for look in looks:
        for server in look if isinstance(look, list) else ():
            phase = server["start"]["phase"] if server["start"] and server["state"] == "STARTING" else ""
            now = (server["state"], phase, server["verdict"]["value"])
            if before.get(server["name"]) != now:
                at = time.strftime("%H:%M:%S")
                say(f"{at} {clean(server['name'])} {server['state']} {clean(server['description'])}")
                sys.stdout.flush()
            before[server["name"]] = now
    return codes.OK


def _paint(looks: Iterator[list[Any] | str]) -> int:
    """A frame is written in one piece over the last one: an erased frame is what the eye sees as flicker."""
    drawn = 0
    sys.stdout.write(_HIDE_CURSOR)
    try:
        for look in looks:
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
            lines = list(frame(look, (columns or 80) - 1))[: max(1, (rows or 24) - 2)]  # 0: it does not know
            up = f"\x1b[{drawn}A" if drawn else ""
            body = "".join(f"{line}{_ERASE_REST}\n" for line in lines)
            sys.stdout.write(f"{_BEGIN_FRAME}\r{up}{body}{_ERASE_BELOW}{_END_FRAME}")
            sys.stdout.flush()
            drawn = len(lines)
    finally:
        sys.stdout.write(_SHOW_CURSOR)
    return codes.OK


def frame(look: list[Any] | str, columns: int) -> Iterator[str]:
    """One picture, no line wider than the columns."""
    if isinstance(look, str):
        yield fitted(clean(look), columns)
        return
    width = max((len(server["name"]) for server in look), default=0) + 2
    for server in look:
        description = fitted(clean(server["description"]), max(0, columns - width - _STATE_WIDTH))
        yield f"{clean(server['name']):<{width}}{coloured(server['state'], _STATE_WIDTH)}{description}".rstrip()
        if server["state"] == "STARTING" and server["start"]:
            yield from (fitted(line, columns) for line in _start(server, server["start"]))


def _start(server: Any, start: Any) -> Iterator[str]:
    yield f"  {_trail(start)}"
    silent, left = start["last_progress_ago_s"], server["deadline_in_s"]
    if silent is not None and left is not None and left > 0:
        yield f"  silence  {_bar(silent / (silent + left))} {words(silent)} of {words(silent + left)} allowed"
    if start["laggard"]:
        yield f"  {clean(start['laggard'])}"
    for rank in start["ranks"][:_RANKS_MAX]:
        yield f"  {_rank(rank)}"
    if len(start["ranks"]) > _RANKS_MAX:
        yield f"  and {len(start['ranks']) - _RANKS_MAX} more ranks"


def _trail(start: Any) -> str:
    """The phases so far, each with the longest time that a rank spent in it."""
    longest: dict[str, float] = {}
    for span in start["timeline"]:
        longest[span["phase"]] = max(longest.get(span["phase"], 0.0), span["seconds"])
    return " > ".join(f"{clean(phase)} {words(seconds)}" for phase, seconds in longest.items() if phase)


def _rank(rank: Any) -> str:
    head = f"{clean(rank['rank'] or 'launcher'):<9}{clean(rank['phase']):<20}"
    bar = rank["progress"]
    if bar is None:
        return f"{head}{words(rank['seconds'])}"
    eta = f", {words(bar['eta_s'])} left" if bar["eta_s"] else ""
    return f"{head}{_bar(bar['ratio'])} {bar['done']} of {bar['total']} {clean(bar['unit'])}{eta}"


def _bar(ratio: float) -> str:
    full = round(min(1.0, max(0.0, ratio)) * _BAR_CELLS)
    return f"[{'#' * full}{'.' * (_BAR_CELLS - full)}]"
