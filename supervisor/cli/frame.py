"""Draws one look at the daemon as lines for a terminal: servers, the ranks of starts, GPUs, what happened last."""

from __future__ import annotations

from supervisor.cli.duration import words
from supervisor.cli.text import change, clean, coloured, fitted, local

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

_BAR_CELLS = 20
_RANKS_MAX, _RANKS_FEW = 16, 3
_STATE_WIDTH = 10
_EVENTS_MAX = 6
_NAME_PART = 3  # of the columns, a name takes at most one in so many
# Phases are seen above anyway.
_TOLD = ("lifecycle", "verdict", "goal", "maintenance", "request", "supervisor", "daemon")
_WORTH_TELLING_BYTES = 10**8
_OWN, _OTHERS, _DRIVER, _FREE = "#", "!", "-", "."


class Look:
    """What the daemon says at one moment; `gpus` is None where nobody asked."""

    def __init__(self, servers: Sequence[Any], gpus: Any = None, events: Sequence[Any] = ()) -> None:
        self.servers = servers
        self.gpus = gpus
        self.events = events


def frame(look: Look | str, columns: int, rows: int) -> list[str]:
    """One picture, no wider and no higher than that. What must be seen first is what goes last."""
    if isinstance(look, str):
        return [fitted(clean(look), columns)]
    starts = sum(_starts(server) for server in look.servers)
    room, below = rows - len(list(_servers(look.servers, columns, ranks=0))), list[str]()
    for part in (_gpus(look.gpus, columns), _events(look.events, columns)):
        lines = list(part)
        if lines and 1 + len(lines) + _RANKS_FEW * starts <= room:
            room -= 1 + len(lines)
            below += ["", *lines]
    ranks = min(_RANKS_MAX, max(1, room // max(1, starts)))
    above = [*_servers(look.servers, columns, ranks=ranks), *below]
    if len(above) <= rows:
        return above
    return [*above[: rows - 1], fitted(f"... {len(above) - rows + 1} more lines: watch NAME shows less", columns)]


# --- servers ---------------------------------------------------------------------------------------------------------


def _starts(server: Any) -> bool:
    return bool(server["state"] == "STARTING" and server["start"])


def _servers(servers: Sequence[Any], columns: int, ranks: int) -> Iterator[str]:
    width = min(max((len(server["name"]) for server in servers), default=0), columns // _NAME_PART) + 2
    for server in servers:
        name = fitted(clean(server["name"]), width - 2)
        description = fitted(clean(server["description"]), max(0, columns - width - _STATE_WIDTH))
        yield f"{name:<{width}}{coloured(server['state'], _STATE_WIDTH)}{description}".rstrip()
        if _starts(server):
            yield f"  {_trail(server['start'], columns - 2)}"
            yield from (fitted(line, columns) for line in _start(server, server["start"], ranks))


def _start(server: Any, start: Any, ranks: int) -> Iterator[str]:
    ready, so_far = server.get("ready_in_s"), server["lifecycle"]["seconds"]
    if ready is not None:
        when = f"in about {words(ready)}" if ready > 0 else "at any moment"
        yield f"  ready    {_bar(so_far / max(so_far + ready, 1e-3))} {when}, as usual"
    silent, left = start["last_progress_ago_s"], server["deadline_in_s"]
    if silent is not None and left is not None and left > 0:
        yield f"  silence  {_bar(silent / (silent + left))} {words(silent)} of {words(silent + left)} allowed"
    if start["laggard"]:
        yield f"  {clean(start['laggard'])}"
    # Those in the phase that the start as a whole is in hold the others up: they are seen whatever the room.
    shown = sorted(start["ranks"], key=lambda rank: rank["phase"] != start["phase"])[:ranks]
    width = max((len(rank["phase"]) for rank in shown), default=0) + 2
    yield from (f"  {_rank(rank, width)}" for rank in start["ranks"] if rank in shown)
    if len(start["ranks"]) > len(shown):
        yield f"  and {len(start['ranks']) - len(shown)} more ranks"


def _trail(start: Any, columns: int) -> str:
    """The phases so far, each with the longest time that a rank spent in it; the newest ones where there is no room."""
    longest: dict[str, float] = {}
    for span in start["timeline"]:
        longest[span["phase"]] = max(longest.get(span["phase"], 0.0), span["seconds"])
    steps = [f"{clean(phase)} {words(seconds)}" for phase, seconds in longest.items() if phase]
    for first in range(len(steps)):
        text = " > ".join([*(["..."] if first else []), *steps[first:]])
        if len(text) <= columns:
            return text
    return fitted(steps[-1] if steps else "", columns)


def _rank(rank: Any, width: int) -> str:
    head = f"{clean(rank['rank'] or 'launcher'):<9}{clean(rank['phase']):<{width}}"
    bar = rank["progress"]
    if bar is None:
        return f"{head}{words(rank['seconds'])}"
    eta = f", {words(bar['eta_s'])} left" if bar["eta_s"] else ""
    return f"{head}{_bar(bar['ratio'])} {bar['done']}/{bar['total']} {clean(bar['unit'])}{eta}"


def _bar(ratio: float) -> str:
    full = round(min(1.0, max(0.0, ratio)) * _BAR_CELLS)
    return f"[{_OWN * full}{_FREE * (_BAR_CELLS - full)}]"


# --- GPUs ------------------------------------------------------------------------------------------------------------


def _gpus(answer: Any, columns: int) -> Iterator[str]:
    """Whose memory it is: # its server, ! somebody else or nobody who can be named, - the driver."""
    if answer is None or answer["sight"] == "absent":
        return
    if answer["sight"] != "seeing":
        yield fitted(f"GPUs not seen for {words(answer['seconds'])}: {clean(answer['reason'])}", columns)
    for gpu in answer["gpus"]:
        whose = gpu["server"] if gpu["state"] == "leased" else f"{gpu['state']}: {gpu['reason']}".removesuffix(": ")
        yield fitted(f"GPU {gpu['index']:<3}{_memory(gpu['memory'])}  {clean(whose)}{_strangers(gpu)}", columns)


def _strangers(gpu: Any) -> str:
    """The exclamation marks in words, where they are in a server's way."""
    others = (gpu["memory"]["foreign"] or 0) + (gpu["memory"]["unattributed"] or 0)
    told = gpu["state"] == "leased" and others >= _WORTH_TELLING_BYTES
    return f", {others / 1e9:.1f} GB somebody else's" if told else ""


def _memory(memory: Any) -> str:
    used, total = memory["used"], memory["total"]
    if used is None or not total:
        return f"[{'?' * _BAR_CELLS}] not seen"
    own, others = memory["server"] or 0, (memory["foreign"] or 0) + (memory["unattributed"] or 0)
    cells, before, drawn = "", 0, 0
    for letter, held in ((_OWN, own), (_OTHERS, others), (_DRIVER, max(0, used - own - others))):
        drawn += held
        until = round(min(1.0, drawn / total) * _BAR_CELLS)
        cells, before = cells + letter * (until - before), until
    return f"[{cells:{_FREE}<{_BAR_CELLS}}] {used / 1e9:5.1f} of {total / 1e9:.1f} GB"


# --- events ----------------------------------------------------------------------------------------------------------


def _events(events: Sequence[Any], columns: int) -> Iterator[str]:
    told = [event for event in events if event["facet"] in _TOLD][-_EVENTS_MAX:]
    return (fitted(_event(event, columns), columns) for event in told)


def _event(event: Any, columns: int) -> str:
    """As `events` has it, but the hour alone: it is today's, or nearly."""
    hour = local(event["at"])[11:19]
    name = fitted(clean(event["server"]), columns // _NAME_PART)
    return "  ".join(filter(None, (hour, name, clean(event["facet"]), change(event))))
