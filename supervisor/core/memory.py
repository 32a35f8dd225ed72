"""Writes one server's decisions down, and takes them up again where an earlier daemon left off."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from supervisor.actions import SignalTree
from supervisor.core.attempt import Attempt
from supervisor.core.claiming import Claimer
from supervisor.core.desk import Desk
from supervisor.core.endcause import EndKind
from supervisor.core.ending import Ender
from supervisor.core.lifecycle import ALIVE, GIVEN_UP, State, Trigger
from supervisor.core.maintenance import FACET, Maintenance
from supervisor.core.restart import Disposition, Next
from supervisor.core.stopclock import StopClock
from supervisor.core.timers import Timer
from supervisor.core.watching import Watcher
from supervisor.events import Exited, Spawned
from supervisor.saved import SavedAttempt, SavedServer
from supervisor.snapshot import IncidentView


def unusable(saved: SavedServer) -> str:
    """Why no server can go on from a record, "" when one can: a newer version wrote it, or it was changed by hand."""
    attempt = saved.attempt
    if saved.state not in set(State):
        return f"it has the state {saved.state!r}"
    if saved.next not in set(Next):
        return f"it is followed by {saved.next!r}"
    if attempt is not None and attempt.ending not in {"", *EndKind}:
        return f"its attempt ended by {attempt.ending!r}"
    if attempt is None and (saved.state in ALIVE or saved.tree_alive):
        return f"it is {saved.state} without an attempt"
    return ""


def started_again(saved: SavedServer, reason: str, now: float) -> SavedServer:
    """The record of a server that somebody has stopped only to start it again: who takes it up starts it."""
    if saved.goal_up or saved.state in GIVEN_UP:
        return saved
    state = State.RECLAIMING.value if saved.state == State.STOPPED else saved.state
    follows = Next.RELAUNCH.value
    return replace(
        saved, goal_up=True, state=state, next=follows, next_reason=reason, next_due=now, next_by_itself=False
    )


def past_of(saved: SavedServer, boot_id: str, now: float, wall: float) -> tuple[IncidentView, ...]:
    """What went wrong before, in the times of this boot; nothing of a record that does not say when it was written."""
    if saved.boot_id == boot_id:
        return saved.incidents
    by = (now - wall) - (saved.at - saved.wall)
    return tuple(replace(one, begun=one.begun + by, ended=one.ended + by) for one in saved.incidents if saved.wall)


class Memory:
    """One per server; the parts that have something to remember write and read it here."""

    def __init__(self, desk: Desk, ender: Ender, watcher: Watcher, claimer: Claimer, maintenance: Maintenance) -> None:
        self._desk = desk
        self._ender = ender
        self._watcher = watcher
        self._claimer = claimer
        self._maintenance = maintenance

    def save(self, boot_id: str) -> SavedServer:
        """Everything that the next daemon cannot find out by itself."""
        desk, lifecycle, paused = self._desk, self._desk.facets.view("lifecycle"), self._desk.facets.view(FACET)
        return SavedServer(
            name=desk.settings.name,
            boot_id=boot_id,
            goal_up=desk.goal_up,
            state=desk.state.value,
            since=lifecycle.since,
            reason=lifecycle.reason,
            number=desk.number,
            next=desk.next.next.value,
            next_reason=desk.next.reason,
            next_due=desk.next.due,
            next_by_itself=desk.next.by_itself,
            tree_alive=desk.tree_alive,
            grace_at=desk.timers.at(Timer.GRACE),
            attempt=save_attempt(desk),
            drain=self._ender.drainer.save(),
            book=desk.book.save(),
            incidents=tuple(desk.incidents),
            would_have_killed=dict(self._watcher.would_have_killed),
            paused=desk.paused,
            paused_reason=paused.reason,
            paused_since=paused.since,
            dirty=self._claimer.dirty,
            force=self._claimer.force,
        )

    def restore(
        self,
        saved: SavedServer,
        new: Callable[[int, float], Attempt],
        *,
        tree_lives: bool,
        ended: int | None,
    ) -> None:
        """Everything as it was, and the next moment of the state named anew."""
        desk = self._desk
        desk.goal_up, self._claimer.force, self._claimer.dirty = saved.goal_up, saved.force, saved.dirty
        desk.next = Disposition(Next(saved.next), saved.next_reason, saved.next_due, saved.next_by_itself)
        desk.book.restore(saved.book)
        desk.incidents.extend(saved.incidents)
        self._watcher.would_have_killed.update(saved.would_have_killed)
        desk.number = max(desk.number, saved.number)
        desk.tree_alive = tree_lives
        desk.standing.resume(State(saved.state))
        desk.facets.resume("goal", "up" if saved.goal_up else "down", "as it was before", desk.now)
        desk.facets.resume("lifecycle", saved.state, saved.reason, saved.since)
        self._maintenance.restore(saved, desk.now)
        if saved.attempt is not None:
            desk.attempt = new(saved.attempt.number, saved.attempt.begun)
            restore_attempt(saved.attempt, desk.attempt)
        self._resume(saved, ended)

    def _resume(self, saved: SavedServer, ended: int | None) -> None:
        """What was asked of the world before is asked again."""
        desk = self._desk
        match desk.state:
            case State.STARTING | State.RUNNING if desk.tree_alive:
                self._watcher.resume()
            case State.DRAINING if desk.tree_alive and saved.drain is not None:
                self._ender.drainer.resume(saved.drain)
            case State.DRAINING if desk.tree_alive:
                desk.timers.set(Timer.GRACE, saved.grace_at if saved.grace_at is not None else desk.now)
                desk.do(SignalTree(desk.number, desk.settings.stop.signal))  # the first may have died with its sender
            case State.STARTING if saved.attempt is None or saved.attempt.pid is None:
                self._never_spawned()
            case State.STARTING | State.RUNNING | State.DRAINING:
                self._ender.exited(Exited(desk.number, ended))  # it ended while nobody watched
            case State.STOPPING:
                self._ender.kill()
            case State.QUARANTINED if desk.tree_alive:
                self._ender.kill()
            case State.RECLAIMING:
                self._claimer.look()
            case State.BACKOFF:
                desk.timers.set(Timer.BACKOFF, saved.next_due)
            case _:
                pass

    def _never_spawned(self) -> None:
        """The daemon died between the decision and the spawn, which is no failure of the server."""
        desk, reason = self._desk, "the daemon ended before the spawn"
        desk.current().end(EndKind.OPERATOR, reason)
        desk.next = Disposition(Next.RELAUNCH, reason, desk.now)
        desk.move(Trigger.END, reason)
        self._ender.kill()


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
        stop=attempt.stop.view,
        stop_began=attempt.stop.began,
        evidence_asked=attempt.evidence_asked,
        evidence_path=attempt.evidence_path,
        start=attempt.view() if attempt.ready_at is not None else None,
        capacity=attempt.capacity,
        exit=attempt.exit,
        diagnosis=attempt.diagnosis,
    )


def restore_attempt(saved: SavedAttempt, attempt: Attempt) -> None:
    """Make a new attempt the one that was. Its phases come from its log, which the shell reads again."""
    if saved.pid is not None:
        attempt.spawned(Spawned(saved.number, saved.pid, log_path=saved.log_path))
    attempt.ending = EndKind(saved.ending) if saved.ending else None
    attempt.ending_reason = saved.ending_reason
    attempt.fatal_text = saved.fatal_text
    attempt.signals = set(saved.signals)
    attempt.stop = StopClock(saved.stop, saved.stop_began)
    attempt.evidence_asked = saved.evidence_asked
    attempt.evidence_path = saved.evidence_path
    attempt.capacity = saved.capacity
    attempt.exit = saved.exit
    attempt.diagnosis = saved.diagnosis
    if saved.ready_at is not None:
        attempt.serve(saved.ready_at, saved.start)
