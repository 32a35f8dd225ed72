"""What people ask of one server: up, down, a fresh attempt, a signal; their word goes before the policy's."""

from __future__ import annotations

from supervisor.actions import SignalTree
from supervisor.core.course import Course
from supervisor.core.desk import Desk
from supervisor.core.ending import Ender
from supervisor.core.lifecycle import ALIVE, GIVEN_UP, State, Trigger
from supervisor.core.restart import Disposition, Next
from supervisor.events import SignalRequested


class Requests:
    """One per server."""

    def __init__(self, desk: Desk, ender: Ender, course: Course) -> None:
        self._desk = desk
        self._ender = ender
        self._course = course

    def start(self, by: str, *, force: bool) -> None:
        """Somebody wants it up; by force whatever the look at its devices finds."""
        reason = f"start asked by {by}"
        if force or not self._desk.goal_up or self._desk.state in GIVEN_UP:
            self._course.claimer.force = force
        if self._set_goal("up", reason) or self._desk.state in GIVEN_UP:
            self.begin(reason)
        elif self._desk.state is State.BACKOFF:
            self._course.claim(Disposition(Next.RELAUNCH, reason, self._desk.now))

    def begin(self, reason: str) -> None:
        """Start as soon as the table allows: at once from rest, else when the present attempt is over."""
        desk = self._desk
        desk.book.forgive()
        relaunch = Disposition(Next.RELAUNCH, reason, desk.now)
        if desk.state is State.QUARANTINED and desk.tree_alive:
            desk.next = relaunch
            self._ender.kill()
        elif desk.standing.may(Trigger.CLAIM):
            self._course.claim(relaunch)
        else:
            desk.next = relaunch

    def stop(self, by: str, grace_s: float | None, *, hold: bool) -> None:
        """Somebody wants it down; `hold`: its attempt is ended when the same is asked again."""
        desk = self._desk
        reason = f"stop asked by {by}" if grace_s is None else f"drain of at most {grace_s:.0f} s asked by {by}"
        self._set_goal("down", reason)
        desk.next = Disposition(Next.REST, reason, desk.now)
        match desk.state:
            case State.STARTING | State.RUNNING if hold:
                pass
            case State.STARTING | State.RUNNING:
                self._ender.by_operator(reason, grace_s)
            case State.DRAINING:
                self._ender.hurry(grace_s)
            case State.BACKOFF | State.FATAL:
                desk.timers.clear()
                desk.move(Trigger.CANCEL, reason)
            case State.QUARANTINED if desk.tree_alive:
                self._ender.kill()
            case State.QUARANTINED:
                self._course.claim(desk.next)
            case _:
                pass

    def restart(self, by: str, why: str, grace_s: float | None) -> None:
        """Somebody wants a fresh attempt."""
        reason = why or f"restart asked by {by}"
        self._set_goal("up", reason)
        if self._desk.state in (State.STARTING, State.RUNNING):
            self._desk.book.forgive()
            self._desk.next = Disposition(Next.RELAUNCH, reason, self._desk.now)
            self._ender.by_operator(reason, grace_s)
        else:
            self.begin(reason)

    def pass_signal(self, event: SignalRequested) -> None:
        """Hand it on while there is a process."""
        attempt = self._desk.attempt
        if attempt and attempt.pid and self._desk.state in ALIVE:
            attempt.asked_signal(event)
            self._desk.do(SignalTree(self._desk.number, event.signal))

    def _set_goal(self, goal: str, reason: str) -> bool:
        """Change what is wanted. False when it was wanted already."""
        changed = self._desk.goal_up != (goal == "up")
        self._desk.goal_up = goal == "up"
        self._desk.set("goal", goal, reason)
        return changed
