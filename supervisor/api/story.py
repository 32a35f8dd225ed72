"""Tells in plain words why a server is as it is: from the present back to the cause, then what to change."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.api.control import Clock
from supervisor.api.words import describe, state_of
from supervisor.snapshot import DiagnosisView, ExitView, FacetView, ServerSnapshot, StartupView
from supervisor.units import format_duration

_RESTART_WORDS = {
    "yes": "a restart can help",
    "no": "no restart can help",
    "maybe": "a restart may help",
}


def sentences(snapshot: ServerSnapshot, clock: Clock) -> tuple[str, ...]:
    """One fact a sentence."""
    return tuple(_tell(snapshot, clock))


def _tell(snapshot: ServerSnapshot, clock: Clock) -> Iterator[str]:
    yield f"{snapshot.name} is {state_of(snapshot).name} ({describe(snapshot, clock)}); it is wanted {snapshot.goal}."
    yield _facet("lifecycle", snapshot.lifecycle, clock)
    if snapshot.lifecycle.value in ("starting", "running"):
        yield _facet("verdict", snapshot.verdict, clock)
        yield _facet("readiness", snapshot.readiness, clock)
        yield from (f"{vote.source} says {vote.says}: {vote.text}." for vote in snapshot.votes)
    if snapshot.lifecycle.value == "starting" and snapshot.start is not None:
        yield from _start(snapshot, snapshot.start, clock)
    if snapshot.exit is not None:
        yield _exit(snapshot.exit, clock)
    if snapshot.diagnosis is not None:
        yield from _diagnosis(snapshot.diagnosis)
    yield from _next(snapshot, clock)


def _facet(name: str, facet: FacetView, clock: Clock) -> str:
    reason = f": {facet.reason}" if facet.reason else ""
    return f"{name} {facet.value} for {_since(facet.since, clock)}{reason}."


def _start(snapshot: ServerSnapshot, start: StartupView, clock: Clock) -> Iterator[str]:
    lag = f"; slowest rank {start.laggard}" if start.laggard else ""
    yield f"attempt {snapshot.attempt} is in phase {start.phase} for {_since(start.since, clock)}{lag}."
    if start.last_progress:
        yield f"last progress was {_since(start.last_progress, clock)} ago."
    for rank in start.ranks:
        if start.laggard and rank.rank == start.laggard and rank.last_line:
            yield f"last line of {rank.rank}: {rank.last_line}"
    if snapshot.deadline is not None:
        left_s = snapshot.deadline - clock.monotonic
        yield f"it is called stalled in {format_duration(left_s)}." if left_s > 0 else "its deadline has passed."


def _exit(exit_view: ExitView, clock: Clock) -> str:
    reason = f": {exit_view.reason}" if exit_view.reason else ""
    ago = _since(exit_view.at, clock)
    return f"attempt {exit_view.attempt} ended {ago} ago with {_code(exit_view.code)}{reason}."


def _code(code: int | None) -> str:
    if code is None:
        return "an unknown status"
    return f"signal {-code}" if code < 0 else f"status {code}"


def _diagnosis(diagnosis: DiagnosisView) -> Iterator[str]:
    yield f"cause: {diagnosis.cause}; {_RESTART_WORDS.get(diagnosis.restart, diagnosis.restart)}."
    if diagnosis.evidence:
        yield f"evidence, line {diagnosis.evidence_line}: {diagnosis.evidence}"
    if diagnosis.remedy:
        yield f"what to change: {diagnosis.remedy}"


def _next(snapshot: ServerSnapshot, clock: Clock) -> Iterator[str]:
    match snapshot.lifecycle.value:
        case "backoff" if snapshot.backoff_until is not None:
            left = format_duration(max(0.0, snapshot.backoff_until - clock.monotonic))
            yield f"next start in {left}; {snapshot.budget_remaining} restarts are left in this window."
        case "fatal" | "quarantined":
            yield f"nothing more happens until somebody starts it: sglctl start {snapshot.name}"
        case _:
            pass


def _since(moment: float, clock: Clock) -> str:
    return format_duration(max(0.0, clock.monotonic - moment))
