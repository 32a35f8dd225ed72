"""Tells what went wrong with a server before: cause, remedy, what was done and what followed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from supervisor.api.control import Clock
from supervisor.core.remedy import with_name
from supervisor.snapshot import IncidentView, ServerSnapshot
from supervisor.units import format_duration
from supervisor.web.markup import Html, tag
from supervisor.web.pieces import LINE_MAX, length, preformatted, quoted, since

SHOWN = 5  # of one server
_FOLLOWED = {
    "backoff": "restarted",
    "relaunch": "restarted",
    "fatal": "given up",
    "quarantine": "quarantined",
    "rest": "left stopped",
}


def incidents(snapshot: ServerSnapshot, clock: Clock, *, full: bool) -> Html | None:
    """The newest first, each row of the same failure once; None when nothing went wrong."""
    if not snapshot.incidents:
        return None
    rows = list(_rows(snapshot.incidents))[:SHOWN]
    items = [_incident(row, snapshot, clock, full=full) for row in rows]
    return tag("div", tag("h4", "What went wrong before"), tag("ol", *items, class_="incidents"))


def _rows(incidents: tuple[IncidentView, ...]) -> Iterator[list[IncidentView]]:
    """What failed in the same way several times running would push everything else off the screen."""
    for _, same in groupby(reversed(incidents), lambda incident: (_cause(incident), incident.phase)):
        yield list(same)


def _cause(incident: IncidentView) -> str:
    return incident.diagnosis.cause if incident.diagnosis and incident.diagnosis.cause else "unknown cause"


def _incident(row: list[IncidentView], snapshot: ServerSnapshot, clock: Clock, *, full: bool) -> Html:
    incident, found = row[0], row[0].diagnosis
    head = tag(
        "p",
        tag("b", _cause(incident)),
        f" in {incident.phase or 'launch'} after ",
        length(incident.ended - incident.begun),
        ", ",
        since(incident.ended, clock),
        f" ago (attempt {incident.attempt})",
    )
    parts = [
        head,
        _repeated(row, clock) if len(row) > 1 else None,
        tag("p", tag("span", "To do: ", class_="quiet"), with_name(found.remedy, snapshot.name))
        if found and found.remedy
        else None,
        tag("p", _ending(incident, gpus=bool(snapshot.gpus), new=incident.attempt == snapshot.attempt), class_="quiet"),
    ]
    if full and found and found.evidence:
        parts.append(preformatted(quoted(found.evidence, 4 * LINE_MAX)))
    if full and incident.evidence_path:
        parts.append(tag("p", "Evidence: ", tag("code", incident.evidence_path), class_="quiet"))
    return tag("li", *parts)


def _repeated(row: list[IncidentView], clock: Clock) -> Html:
    times, first = "once" if len(row) == 2 else f"{len(row) - 1} times", row[-1]
    return tag("p", f"the same {times} before, first ", since(first.ended, clock), f" ago (attempt {first.attempt})")


def _ending(incident: IncidentView, *, gpus: bool, new: bool) -> str:
    """What was done, and how long it took. `new`: a restart that was decided has not come yet, if it ever does."""
    stop, said = incident.stop, [_exit(incident.exit_code)]
    if stop is not None and stop.empty_s is not None:
        said.append(f"no process left after {format_duration(stop.empty_s)}")
    if stop is not None and stop.killed:
        said.append(f"{stop.killed} killed")
    if stop is not None and stop.free_s is not None and gpus:
        said.append(f"GPU memory back after {format_duration(stop.free_s)}")
    following = _FOLLOWED.get(incident.decision.partition(":")[0])
    if new and following == "restarted":
        return "; ".join(said)
    return "; ".join([*said, f"then {following}"] if following else said)


def _exit(code: int | None) -> str:
    if code is None:
        return "exit status unknown"
    return f"signal {-code}" if code < 0 else f"exit status {code}"
