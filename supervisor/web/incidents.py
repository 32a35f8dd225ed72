"""Tells what went wrong with a server before: cause, remedy, what was done and what followed."""

from __future__ import annotations

from supervisor.api.control import Clock
from supervisor.snapshot import IncidentView, ServerSnapshot
from supervisor.units import format_duration
from supervisor.web.markup import Html, tag
from supervisor.web.pieces import LINE_MAX, mask, preformatted, since

SHOWN = 5  # of one server
_FOLLOWED = {
    "backoff": "restarted",
    "relaunch": "restarted",
    "fatal": "given up",
    "quarantine": "quarantined",
    "rest": "left stopped",
}


def incidents(snapshot: ServerSnapshot, clock: Clock, *, full: bool) -> Html | None:
    """The newest first; None when nothing went wrong."""
    newest = snapshot.incidents[::-1][:SHOWN]
    if not newest:
        return None
    items = [_incident(incident, clock, gpus=bool(snapshot.gpus), full=full) for incident in newest]
    return tag("div", tag("h4", "What went wrong before"), tag("ol", *items, class_="incidents"))


def _incident(incident: IncidentView, clock: Clock, *, gpus: bool, full: bool) -> Html:
    found = incident.diagnosis
    head = tag(
        "p",
        tag("b", found.cause if found and found.cause else "unknown cause"),
        f" in {incident.phase or 'launch'} after {format_duration(max(0.0, incident.ended - incident.begun))}, ",
        since(incident.ended, clock),
        f" ago (attempt {incident.attempt})",
    )
    parts = [
        head,
        tag("p", tag("span", "To do: ", class_="quiet"), found.remedy) if found and found.remedy else None,
        tag("p", _ending(incident, gpus=gpus), class_="quiet"),
    ]
    if full and found and found.evidence:
        parts.append(preformatted(mask(found.evidence)[: 4 * LINE_MAX]))
    if full and incident.evidence_path:
        parts.append(tag("p", "Evidence: ", tag("code", incident.evidence_path), class_="quiet"))
    return tag("li", *parts)


def _ending(incident: IncidentView, *, gpus: bool) -> str:
    """What was done, and how long it took."""
    stop, said = incident.stop, [_exit(incident.exit_code)]
    if stop is not None and stop.empty_s is not None:
        said.append(f"no process left after {format_duration(stop.empty_s)}")
    if stop is not None and stop.killed:
        said.append(f"{stop.killed} killed")
    if stop is not None and stop.free_s is not None and gpus:
        said.append(f"GPU memory back after {format_duration(stop.free_s)}")
    following = _FOLLOWED.get(incident.decision.partition(":")[0])
    return "; ".join([*said, f"then {following}"] if following else said)


def _exit(code: int | None) -> str:
    if code is None:
        return "exit status unknown"
    return f"signal {-code}" if code < 0 else f"exit status {code}"
