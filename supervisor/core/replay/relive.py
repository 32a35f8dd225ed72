"""Judges a log's starts by today's deadlines, as if its lines came in just now: phases, silences, and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from supervisor.actions import KeepEvidence
from supervisor.core.log.grammar import LogReader
from supervisor.core.log.stamps import seconds
from supervisor.core.progress import Movement, PhaseTracker
from supervisor.core.replay.rehearsal import Obliging, Rehearsal
from supervisor.core.server import Server
from supervisor.events import LineMatched, ProbeOutcome, StartRequested
from supervisor.lines import Line
from supervisor.profile import Profile


class PhaseStretch(msgspec.Struct):
    """One phase of the start as a whole. Times on the log's own clock; `allowed_s` is today's patience with silence."""

    phase: str
    begin: float
    seconds: float = 0.0
    longest_silence_s: float = 0.0
    allowed_s: float | None = None
    limit_s: float | None = None


class Charge(msgspec.Struct, frozen=True):
    """Today's rules would have ended the attempt. `went_on_s`: how much later it moved all the same."""

    at: float
    reason: str
    went_on_s: float | None = None


class Life(msgspec.Struct):
    """One attempt of the log."""

    attempt: int
    begin: float
    end: float
    line: int
    phases: list[PhaseStretch]
    ready: float | None = None
    charge: Charge | None = None
    deadline: float | None = None  # when silence would be called a stall, of a start that is under way at the end


class Relived:
    """Feed it the log's lines; `conclude` answers its attempts. `make` answers a server for a moment to begin at."""

    def __init__(self, profile: Profile, make: Callable[[float], Server]) -> None:
        self._profile = profile
        self._rules = {rule.name: rule for rule in profile.rules}
        self._make = make
        self._reader = LogReader(profile, 1)
        self._clock = 0.0
        self._lives: list[Life] = []
        self._moved = False  # the present attempt has gone beyond its first line

    @property
    def stamp(self) -> str:
        """The newest time that the log tells."""
        return self._reader.stamp

    def read(self, lines: Iterable[Line]) -> None:
        """Take the next lines in."""
        for match in self._reader.read(lines):
            self._take(match)

    def conclude(self, until: float | None = None) -> list[Life]:
        """The attempts, the last one up to `until` on the log's clock."""
        for match in self._reader.finish():
            self._take(match)
        if self._lives:
            self._pass(max(until or 0.0, seconds(self._reader.stamp), self._clock))
            self._close()
        return self._lives

    # --- one record ----------------------------------------------------------------------------------------------

    def _take(self, match: LineMatched) -> None:
        if match.stamp:
            self._clock = max(self._clock, seconds(match.stamp))
        if not self._clock:
            return  # before the first time that the log tells
        rule = self._rules.get(match.rule)
        restarts = rule is not None and rule.hint == "restart"
        if not self._lives or (restarts and self._moved):
            self._begin(match)
        self._pass(self._clock)
        advance = self._tracker.observe(match, self._clock)
        if advance.listening and self._world.health is ProbeOutcome.REFUSED:
            self._world.health = ProbeOutcome.UNAVAILABLE
        if advance.ready:
            self._world.health = ProbeOutcome.OK
        if advance.movement is Movement.PROGRESS:
            self._moved = self._moved or not restarts
            self._progress()
        if self._lives[-1].charge is None:
            self._rehearsal.at(self._clock, match)
            self._pass(self._clock)

    def _begin(self, match: LineMatched) -> None:
        if self._lives:
            self._close()
        self._moved = False
        self._tracker = PhaseTracker(self._profile)
        self._tracker.begin(self._clock)
        self._world = Obliging()
        self._rehearsal = Rehearsal(self._make(self._clock), self._clock, self._world)
        self._rehearsal.tell(StartRequested("replay"))
        first = PhaseStretch(self._tracker.view().phase, self._clock)
        self._last_progress = self._clock
        self._lives.append(Life(len(self._lives) + 1, self._clock, self._clock, match.line, [first]))

    def _pass(self, until: float) -> None:
        """Let time pass for the server, until it condemns the attempt."""
        life = self._lives[-1]
        life.end = until
        if life.charge is not None:
            return
        for decided in self._rehearsal.until(until):
            for action in decided:
                if isinstance(action, KeepEvidence):
                    life.charge = Charge(self._rehearsal.now, action.reason)
                    return

    def _progress(self) -> None:
        life, now = self._lives[-1], self._clock
        if life.charge is not None and life.charge.went_on_s is None:
            life.charge = msgspec.structs.replace(life.charge, went_on_s=now - life.charge.at)
        if life.ready is not None:
            return
        self._silence(now)
        view = self._tracker.view()
        if view.ready_seen:
            life.ready = now
            life.phases[-1].seconds = now - life.phases[-1].begin
        elif view.phase != life.phases[-1].phase:
            life.phases[-1].seconds = now - life.phases[-1].begin
            life.phases.append(PhaseStretch(view.phase, now))

    def _silence(self, now: float) -> None:
        phase = self._lives[-1].phases[-1]
        phase.longest_silence_s = max(phase.longest_silence_s, now - self._last_progress)
        self._last_progress = now

    def _close(self) -> None:
        """The attempt is over, or the log is."""
        life, server = self._lives[-1], self._rehearsal.server
        if life.ready is None:
            self._silence(life.end)
            life.phases[-1].seconds = life.end - life.phases[-1].begin
        allowed = {view.phase: view for view in server.snapshot().deadlines}
        for phase in life.phases:
            if (view := allowed.get(phase.phase)) is not None:
                phase.allowed_s, phase.limit_s = view.stall_s, view.limit_s
        if life.ready is None and life.charge is None:
            life.deadline = server.snapshot().deadline
