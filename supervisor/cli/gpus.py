"""The verbs about GPUs: gpus, gpu release."""

from __future__ import annotations

import sys

from supervisor.cli import codes
from supervisor.cli.duration import short
from supervisor.cli.text import as_json, clean, local, say, width, wrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from typing import Any

    from supervisor.cli.connection import Client

_HEAD = ("GPU", "NAME", "STATE", "SERVER'S", "OTHERS'", "NOBODY'S", "OF", "XID", "TEMP")
_MAKER = "NVIDIA "  # of all of them: a table fits 80 columns without it
_LEFT = 3  # columns of words; those of numbers are set right
_NO_LEASE = "whose gpus in the configuration do not name it"
_QUIET = ("free", "leased")  # states that need no explanation


def gpus(client: Client, options: Namespace) -> int:
    """One line a GPU: whose memory it holds, its state, its last Xid; below, what is to be said about them."""
    answer = client.get("/v1/gpus")
    if options.json:
        say(as_json(answer))
        return codes.OK
    if answer["sight"] != "seeing":
        since = "" if answer["sight"] == "absent" else f" for {_time(answer['seconds'])}"
        say(f"GPUs: {clean(answer['sight'])}{since}: {clean(answer['reason'])}")
    if answer["gpus"]:
        _print_table([_row(gpu) for gpu in answer["gpus"]])
    columns = width(sys.stdout) if sys.stdout.isatty() else 0
    for line in _remarks(answer):
        for part in wrapped(line, columns) if columns else (line,):
            say(part)
    return codes.OK


def gpu(client: Client, options: Namespace) -> int:
    """`GPU N: released`."""
    client.post(f"/v1/gpus/{clean(options.index) if options.index.isalnum() else '-'}/release")
    say(f"GPU {clean(options.index)}: released")
    return codes.OK


def _row(gpu: Any) -> tuple[str, ...]:
    memory, xid = gpu["memory"], gpu["last_xid"]
    state = f"{gpu['state']} to {gpu['server']}" if gpu["state"] == "leased" else gpu["state"]
    return (
        str(gpu["index"]),
        clean(gpu["name"]).removeprefix(_MAKER),
        clean(state),
        *(_size(memory[kind]) for kind in ("server", "foreign", "unattributed")),
        _size(memory["total"]),
        "-" if xid is None else str(xid["xid"]),
        "-" if gpu["temperature_c"] is None else f"{gpu['temperature_c']} C",
    )


def _print_table(rows: list[tuple[str, ...]]) -> None:
    table = [_HEAD, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(_HEAD))]
    for row in table:
        cells = [
            cell.ljust(width) if column < _LEFT else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        say("  ".join(cells).rstrip())


def _remarks(answer: Any) -> Iterator[str]:
    if not answer["pids_trusted"]:
        yield "the driver's pids are not ours (a container): memory is told apart by lease alone"
    for gpu in answer["gpus"]:
        if gpu["state"] not in _QUIET and gpu["reason"]:
            since = f" since {local(gpu['quarantined_since'], precise=False)}" if gpu["quarantined_since"] else ""
            yield f"GPU {gpu['index']}: {clean(gpu['state'])}{since}: {clean(gpu['reason'])}"
        for holder in gpu["holders"]:
            if holder["kind"] == "foreign":
                yield f"GPU {gpu['index']}: {_size(holder['bytes'])} held by {_who(holder)}"
            elif _lodges(holder, gpu):
                who = f"server {clean(holder['server'])}, {_NO_LEASE}"
                yield f"GPU {gpu['index']}: {_size(holder['bytes'])} held by {who}"
        if gpu["last_xid"] is not None:
            ago = _time(gpu["last_xid"]["seconds"])
            yield f"GPU {gpu['index']}: {clean(gpu['last_xid']['text'])}, {ago} ago"
        if gpu["problems"]:
            yield f"GPU {gpu['index']}: cannot be read: {clean('; '.join(gpu['problems']))}"


def _who(holder: Any) -> str:
    user = f" of {clean(holder['user'])}" if holder["user"] else ""
    command = f" ({clean(holder['command'])})" if holder["command"] else ""
    return f"pid {holder['pid']}{user}{command}"


def _lodges(holder: Any, gpu: Any) -> bool:
    """Whether a server of ours is on a device that is not leased to it, and in the way of whoever has it."""
    leased = gpu["state"] == "unknown" or holder["server"] == gpu["server"]
    return holder["kind"] == "server" and bool(holder["bytes"]) and not leased


def _size(count: int | None) -> str:
    """Tenths of decimal gigabytes, as the sizes of GPUs are told; megabytes below one."""
    if count is None:
        return "-"
    return f"{count / 1e9:.1f} GB" if count >= 10**9 else f"{count / 1e6:.0f} MB" if count else "0"


def _time(seconds: float) -> str:
    """Whole seconds, as everywhere else."""
    return short(round(seconds))
