"""The JSON of one server's past: its story, failed attempts, timelines, evidence bundles."""

from __future__ import annotations

import msgspec

from supervisor.api.control import Clock
from supervisor.api.wire.journal import Event
from supervisor.api.wire.model import Diagnosis, Span
from supervisor.api.wire.moments import ago, iso, iso_or_none, seconds
from supervisor.api.wire.server import diagnosis, signal_name, span
from supervisor.edge.evidence import Bundle
from supervisor.snapshot import IncidentView, ServerSnapshot, StopView


class Incident(msgspec.Struct, frozen=True):
    """An attempt that failed. `decision` is what followed; `stop` the steps of its end in seconds."""

    attempt: int
    began: str
    ended: str
    ended_ago_s: float | None
    seconds: float
    reason: str
    phase: str
    stage: str
    decision: str
    laggard: str
    diagnosis: Diagnosis | None
    exit_code: int | None
    signal: str | None
    evidence_path: str
    log_path: str
    stop: StopView | None


class Story(msgspec.Struct, frozen=True):
    """Why a server is as it is: sentences from the present back to the cause, with what proves them.

    `incidents` are the failed attempts that are remembered, the newest last; `told` is the one in the sentences.
    `log_segments` are the files of a log that has been archived: there is none at `log_path` any more.
    """

    name: str
    state: str
    sentences: tuple[str, ...]
    diagnosis: Diagnosis | None
    evidence_path: str
    log_path: str
    events: tuple[Event, ...]
    told: int | None
    odd_rank: str
    incidents: tuple[Incident, ...]
    log_segments: tuple[str, ...] = ()


class Timeline(msgspec.Struct, frozen=True):
    """The phases of one start per rank. `at` is now, or when the attempt's evidence was kept; `stall_at` the deadline.

    `ended` is when the attempt ended, and no phase lasts longer.

    `usual` is the median of each phase's seconds in earlier starts.
    """

    name: str
    attempt: int
    at: str
    began: str | None
    phase: str
    laggard: str
    stall_at: str | None
    stall_in_s: float | None
    ready: str | None
    ended: str | None
    spans: tuple[Span, ...]
    usual: dict[str, float]


class EvidenceBundle(msgspec.Struct, frozen=True):
    """One evidence bundle; `complete` is false when it is being written, or its daemon died over it: `missing` says so.

    `cause` is the class of the attempt's failure, "" when it is not remembered any more or names none.
    """

    attempt: int
    at: str
    path: str
    bytes: int
    complete: bool
    reason: str
    files: tuple[str, ...]
    missing: tuple[str, ...]
    cause: str = ""


class Bundles(msgspec.Struct, frozen=True):
    """The bundles of one server, the newest first."""

    name: str
    bundles: tuple[EvidenceBundle, ...]


def incident(view: IncidentView, clock: Clock) -> Incident:
    """The incident for readers outside."""
    return Incident(
        attempt=view.attempt,
        began=iso(clock.wall_of(view.begun)),
        ended=iso(clock.wall_of(view.ended)),
        ended_ago_s=ago(view.ended, clock),
        seconds=seconds(view.ended - view.begun),
        reason=view.reason,
        phase=view.phase,
        stage=view.stage,
        decision=view.decision,
        laggard=view.laggard,
        diagnosis=None if view.diagnosis is None else diagnosis(view.diagnosis),
        exit_code=view.exit_code,
        signal=signal_name(view.exit_code),
        evidence_path=view.evidence_path,
        log_path=view.log_path,
        stop=view.stop,
    )


def timeline(snapshot: ServerSnapshot, clock: Clock) -> Timeline:
    """The start of the snapshot's attempt, as of the clock."""
    start, deadline, over = snapshot.start, snapshot.deadline, _end(snapshot)
    until = clock if over is None else Clock(over, clock.wall_of(over))
    return Timeline(
        name=snapshot.name,
        attempt=snapshot.attempt,
        at=iso(clock.wall),
        began=iso_or_none(snapshot.started, clock),
        phase=start.phase if start else "",
        laggard=start.laggard if start else "",
        stall_at=iso_or_none(deadline, clock),
        stall_in_s=None if deadline is None else round(deadline - clock.monotonic, 3),
        ready=iso_or_none(snapshot.ready_since, clock),
        ended=iso_or_none(over, clock),
        spans=tuple(span(one, until) for one in start.timeline) if start else (),
        usual={one.phase: one.median_s for one in snapshot.deadlines if one.median_s is not None},
    )


def _end(snapshot: ServerSnapshot) -> float | None:
    """When the snapshot's attempt ended."""
    view = snapshot.exit
    return view.at if view is not None and view.attempt == snapshot.attempt else None


def bundle(found: Bundle, cause: str) -> EvidenceBundle:
    """The bundle for readers outside."""
    manifest = found.manifest
    return EvidenceBundle(
        attempt=found.attempt,
        at=iso(found.wall),
        path=found.path,
        bytes=found.bytes,
        complete=found.whole,
        reason=manifest.reason if manifest else "",
        files=tuple(file.name for file in manifest.files) if manifest else (),
        missing=(*(manifest.missing if manifest else ()), *found.lost),
        cause=cause,
    )
