"""Writes one server's decisions down, and takes them up again where an earlier daemon left off."""

from __future__ import annotations

from supervisor.core.attempt import Attempt, EndKind
from supervisor.core.budgets import Budgets
from supervisor.core.desk import Desk
from supervisor.core.settings import Settings
from supervisor.core.timers import Timer
from supervisor.events import Spawned
from supervisor.profile import CommandFacts, Profile
from supervisor.saved import SavedAttempt


def save_attempt(desk: Desk) -> SavedAttempt | None:
    """The present attempt, as far as its log does not tell it anyway."""
    attempt = desk.attempt
    if attempt is None:
        return None
    return SavedAttempt(
        number=attempt.number,
        begun=attempt.begun,
        pid=attempt.pid,
        log_path=attempt.log_path,
        ready_at=attempt.ready_at,
        ending=attempt.ending or "",
        ending_reason=attempt.ending_reason,
        fatal_text=attempt.fatal_text,
        signals=tuple(sorted(attempt.signals)),
        stop=attempt.stop,
        stop_began=attempt.stop_began,
        evidence_asked=attempt.evidence_asked,
        evidence_path=attempt.evidence_path,
        start=attempt.view(desk.now) if attempt.ready_at is not None else None,
        capacity=attempt.capacity,
        exit=attempt.exit,
        diagnosis=attempt.diagnosis,
    )


def restore_attempt(
    saved: SavedAttempt,
    settings: Settings,
    profile: Profile,
    facts: CommandFacts,
    budgets: Budgets,
    expected: int | None,
) -> Attempt:
    """The attempt as it was. Its phases come from its log, which the shell reads again from the beginning."""
    attempt = Attempt(saved.number, settings, profile, facts, saved.begun, budgets, expected)
    if saved.pid is not None:
        attempt.spawned(Spawned(saved.number, saved.pid, log_path=saved.log_path))
    attempt.ending = EndKind(saved.ending) if saved.ending else None
    attempt.ending_reason = saved.ending_reason
    attempt.fatal_text = saved.fatal_text
    attempt.signals = set(saved.signals)
    attempt.stop = saved.stop
    attempt.stop_began = saved.stop_began
    attempt.evidence_asked = saved.evidence_asked
    attempt.evidence_path = saved.evidence_path
    attempt.capacity = saved.capacity
    attempt.exit = saved.exit
    attempt.diagnosis = saved.diagnosis
    if saved.ready_at is not None:
        attempt.serve(saved.ready_at, saved.start)
    return attempt


def grace_at(desk: Desk) -> float | None:
    """When the leader's time after TERM is over."""
    return desk.timers.at(Timer.GRACE)
