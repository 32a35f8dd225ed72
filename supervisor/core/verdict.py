"""The facets that follow from the others: phase, verdict, health; and the snapshot of them all."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.core.attempt import Attempt
from supervisor.core.endcause import EndKind
from supervisor.core.facets import Facets
from supervisor.core.health import Health
from supervisor.core.lifecycle import State
from supervisor.core.restart import RestartBook
from supervisor.core.settings import Settings
from supervisor.core.timers import Timer, Timers
from supervisor.core.vitals import RECENT_S
from supervisor.snapshot import ServerSnapshot, VoteView


def judge(state: State, attempt: Attempt | None, now: float) -> Iterator[tuple[str, str, str]]:
    """Each derived facet as (facet, value, reason)."""
    yield "phase", *_phase(state, attempt)
    yield "verdict", *_verdict(state, attempt, now)
    if attempt is not None:
        opinion = attempt.health.opinion
        on = state in (State.STARTING, State.RUNNING, State.DRAINING)
        for facet, value in (
            ("startup", opinion.startup),
            ("readiness", opinion.readiness),
            ("liveness", opinion.liveness),
        ):
            yield facet, (value if on else Health.UNKNOWN), (opinion.reason if on else "not running")


def _phase(state: State, attempt: Attempt | None) -> tuple[str, str]:
    if attempt is None or attempt.pid is None or state not in (State.STARTING, State.RUNNING, State.DRAINING):
        return "", ""
    if attempt.ready_at is not None:
        return "healthy", ""
    view = attempt.view()
    return view.phase, view.laggard


def _verdict(state: State, attempt: Attempt | None, now: float) -> tuple[str, str]:
    match state:
        case State.STARTING if attempt and attempt.fatal_text:
            return "dead", attempt.fatal_text
        case State.STARTING if attempt and (still := attempt.vitals.standstills()):
            return "warming", still[0].words
        case State.STARTING if attempt and attempt.patience.blind:
            return "warming", f"{attempt.health.opinion.reason}; {attempt.patience.blind}"
        case State.STARTING:
            return "warming", attempt.health.opinion.reason if attempt else ""
        case State.RUNNING if attempt:
            return _serving(attempt, now)
        case State.DRAINING:
            return "draining", "running requests may finish"
        case State.STOPPED:
            return "unknown", "not running"
        case _:
            return _ended(attempt)


def _serving(attempt: Attempt, now: float) -> tuple[str, str]:
    if attempt.fatal_text:
        return "dead", attempt.fatal_text
    judgement = attempt.serving(now)
    return judgement.verdict, judgement.reason


def _ended(attempt: Attempt | None) -> tuple[str, str]:
    if attempt is None:
        return "unknown", "not running"
    match attempt.ending:
        case EndKind.STALL:
            return "stalled", attempt.ending_reason
        case EndKind.OPERATOR:
            return "draining" if attempt.exit is None else "dead", attempt.ending_reason
        case _:
            return "dead", attempt.summary()


def snapshot(
    settings: Settings,
    facets: Facets,
    attempt: Attempt | None,
    number: int,
    book: RestartBook,
    timers: Timers,
    now: float,
) -> ServerSnapshot:
    """The facts about one server at `now`."""
    alive = attempt is not None and attempt.exit is None and attempt.pid is not None
    doomed = alive and attempt is not None and bool(attempt.fatal_text)
    return ServerSnapshot(
        name=settings.name,
        at=now,
        goal=facets.view("goal").value,
        lifecycle=facets.view("lifecycle"),
        verdict=facets.view("verdict"),
        startup=facets.view("startup"),
        readiness=facets.view("readiness"),
        liveness=facets.view("liveness"),
        attempt=number,
        pid=attempt.pid if attempt and alive else None,
        started=attempt.begun if attempt else None,
        ready_since=attempt.ready_at if attempt and alive else None,
        start=attempt.view() if attempt else None,
        deadline=None if doomed else timers.at(Timer.PHASE),
        ends_at=timers.at(Timer.FATAL_LINE) if doomed else None,
        restarts=book.total,
        budget_remaining=book.remaining(now),
        backoff_until=timers.at(Timer.BACKOFF),
        exit=attempt.exit if attempt else None,
        diagnosis=attempt.diagnosis if attempt else None,
        evidence_path=attempt.evidence_path if attempt else "",
        stop_stage=attempt.stop.stage if attempt else "",
        stop=attempt.stop.view if attempt and attempt.stop.stage else None,
        log_path=attempt.log_path if attempt else "",
        port=settings.port,
        gpus=settings.gpus,
        engine=settings.engine,
        last_progress=attempt.patience.last_progress() if attempt else None,
        votes=_votes(attempt, now) if attempt and alive else (),
        capacity_tokens=attempt.capacity if attempt else None,
        capacity_expected=attempt.capacity_expected if attempt else None,
    )


def _votes(attempt: Attempt, now: float) -> tuple[VoteView, ...]:
    """Every signal's word about the server, the log's and the probes' first."""
    moved = attempt.view().last_progress
    log = VoteView("log", "moving" if now - moved <= RECENT_S else "still", moved, "recognised progress in the log")
    opinion = attempt.health.opinion
    health = VoteView("health", str(opinion.readiness), attempt.health.failing_since, opinion.reason)
    return (log, health, *attempt.vitals.votes(now))
