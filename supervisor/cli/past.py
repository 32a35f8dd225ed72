"""The verbs about one server's past: why, deadlines, bundle."""

from __future__ import annotations

import os
import sys

from supervisor.cli import codes
from supervisor.cli.connection import RefusedError
from supervisor.cli.duration import short
from supervisor.cli.reading import event_line, segment
from supervisor.cli.text import as_json, clean, complain, fitted, local, say, width, wrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from typing import Any

    from supervisor.cli.connection import Client

_COLUMNS = ("  phase", "silent", "idle", "in all", "median", "longest", "runs", "from")  # longest: of its silences
_EVENTS_TOLD = 3  # the sentences and these fit a screen; `sglctl events` has them all


def why(client: Client, options: Namespace) -> int:
    """The story of one server in sentences, where the proof lies, what happened last."""
    story = client.get(f"/v1/servers/{segment(options.name)}/story{attempt_query(options)}")
    if options.json:
        say(as_json(story))
        return codes.OK
    columns = width(sys.stdout) if sys.stdout.isatty() else 0
    for line in _lines(story):
        for part in wrapped(line, columns, 4 if line.startswith(" ") else 2) if columns else (line,):
            say(part)
    return codes.OK


def _lines(story: Any) -> Iterator[str]:
    yield from map(clean, story["sentences"])
    # "evidence" is the line of the log that proves the cause.
    segments = story.get("log_segments")
    log = f"{' '.join(segments)} (archived: sglsup diagnose, sglctl tail --attempt)" if segments else story["log_path"]
    for label, path in (("bundle", story["evidence_path"]), ("log file", log)):
        if path:
            yield f"{label}: {clean(path)}"
    events = [event for event in story["events"] if event["facet"] in ("lifecycle", "daemon")][-_EVENTS_TOLD:]
    if events:
        yield f"last changes (all: sglctl events {clean(story['name'])}):"
    for event in events:
        said = _is_said(event["reason"], story)
        yield f"  {event_line({**event, 'reason': '' if said else event['reason']})}"


def _is_said(reason: str, story: Any) -> bool:
    """Whether the sentences have told an event's reason."""
    remedy = story["diagnosis"]["remedy"] if story["diagnosis"] else ""
    return reason.partition("; ")[0] in "\n".join(story["sentences"]) or bool(remedy and remedy in reason)


def attempt_query(options: Namespace) -> str:
    """As the daemon takes it; nothing for the newest attempt."""
    return "" if options.attempt is None else f"?attempt={options.attempt}"


def deadlines(client: Client, options: Namespace) -> int:
    """A table: how long each phase may be silent and last in all, and what earlier starts took."""
    server = client.get(f"/v1/servers/{segment(options.name)}")
    found = server["deadlines"]
    if options.json:
        say(as_json({"name": options.name, "deadlines": found}))
        return codes.OK
    passed = {span["phase"] for span in server["start"]["timeline"]} if server["start"] else set()
    applied = [one for one in found if _has_deadline(one) and (one["samples"] or one["phase"] in passed)]
    shown = found if options.all or not applied else applied
    for row in _aligned([_COLUMNS, *(_deadline_row(one, _running(server)) for one in shown)]):
        say(row)
    if len(shown) < len(found):
        say(f"  {len(found) - len(shown)} more that never applied or have no deadline: --all")
    if any(one["mode"] == "observe" for one in shown):
        say("* what was learned is only observed yet")
    return codes.OK


def _running(server: Any) -> str:
    """The phase that it is in now; "" when it is in none."""
    return str(server["start"]["phase"]) if server["state"] == "STARTING" and server["start"] else ""


def _has_deadline(one: Any) -> bool:
    return any(one[key] is not None for key in ("stall_s", "idle_s", "limit_s"))


def _deadline_row(one: Any, running: str) -> tuple[str, ...]:
    source = clean(one["source"]) + ("*" if one["mode"] == "observe" else "")
    times = (one[key] for key in ("stall_s", "idle_s", "limit_s", "median_s", "longest_silence_s"))
    mark = ">" if one["phase"] == running else " "
    starts = str(one["samples"]) if one["samples"] else "-"
    return (f"{mark} {clean(one['phase'])}", *("-" if time is None else short(time) for time in times), starts, source)


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{width_}}" for cell, width_ in zip(row, widths, strict=True)).rstrip()


def bundle(client: Client, options: Namespace) -> int:
    """Fetch an attempt's evidence as tar.gz, or --list what there is."""
    found = client.get(f"/v1/servers/{segment(options.name)}/bundles")["bundles"]
    if options.json or options.list:
        _print_bundles(found, options)
        return codes.OK
    chosen = next((one for one in found if options.attempt in (None, one["attempt"])), None)
    if chosen is None:
        which = "" if options.attempt is None else f" of attempt {options.attempt}"
        complain(f"{options.name}: ERROR (no evidence{which} is kept)")
        return codes.ERROR
    target = f"/v1/servers/{segment(options.name)}/bundle?attempt={chosen['attempt']}"
    if options.output == "-":
        for piece in client.stream(target, forever=False):
            sys.stdout.buffer.write(piece)
        return codes.OK
    return _save(client, target, options.output or f"{options.name}-{chosen['attempt']:06d}.tar.gz")


def _print_bundles(found: list[Any], options: Namespace) -> None:
    if options.json:
        say(as_json({"name": options.name, "bundles": found}))
        return
    if not found:
        complain(f"{options.name}: no evidence is kept")
    for one in found:
        at = local(one["at"], precise=False)
        state = "" if one["complete"] else "  (incomplete)"
        cause = one.get("cause", "")
        reason = clean(f"{cause}: {one['reason']}" if cause else one["reason"])
        line = f"{one['attempt']:>6}  {at}  {len(one['files']):>3} files  {one['bytes'] / 1e6:6.1f} MB  {reason}{state}"
        say(fitted(line, width(sys.stdout)) if sys.stdout.isatty() else line)


def _save(client: Client, target: str, path: str) -> int:
    """The file has its name when it is whole."""
    part = f"{path}.part"
    try:
        with open(part, "wb") as out:
            for piece in client.stream(target, forever=False):
                out.write(piece)
        os.replace(part, path)
    except OSError as error:
        raise RefusedError(500, f"cannot write {path}: {error.strerror}") from None
    finally:
        if os.path.exists(part):
            os.unlink(part)
    say(f"{clean(path)}: {os.path.getsize(path)} bytes")
    return codes.OK
