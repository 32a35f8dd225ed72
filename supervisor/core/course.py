"""What follows what: from the claim to the spawn, and from the end of an attempt to the decision about the next one."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from supervisor.actions import Spawn
from supervisor.core.attempt import Attempt
from supervisor.core.claiming import Claimer
from supervisor.core.desk import Desk
from supervisor.core.endcause import EndKind
from supervisor.core.ending import Ender
from supervisor.core.lifecycle import State, Trigger
from supervisor.core.maintenance import held
from supervisor.core.restart import Disposition, Ending, Next
from supervisor.core.timers import Timer
from supervisor.core.watching import Watcher
from supervisor.events import EvidenceKept, Spawned, SpawnFailed, TreeEmptied
from supervisor.profile import CommandFacts, Profile


class Course:
    """One per server. Whoever has decided (a request, the policy, a mate's failure) hands the decision to `claim`."""

    def __init__(self, desk: Desk, ender: Ender, watcher: Watcher, profile: Profile, facts: CommandFacts) -> None:
        self._desk = desk
        self._ender = ender
        self._watcher = watcher
        self._profile = profile
        self._facts = facts
        self.claimer = Claimer(desk, self._wants_start, self._proceed)

    # --- from claim to spawn -------------------------------------------------------------------------------------

    def claim(self, disposition: Disposition) -> None:
        """Wait until the way to what was decided is free."""
        self._desk.timers.clear()
        self._desk.next = disposition
        self._desk.move(Trigger.CLAIM, disposition.reason)
        self.claimer.look()

    def _wants_start(self) -> bool:
        return self._desk.goal_up and self._desk.next.next is Next.RELAUNCH

    def _proceed(self, note: str) -> None:
        """All is free (or nobody can tell, which is no reason to wait): do what was decided."""
        desk = self._desk
        if desk.attempt is not None:
            self._amend(desk.number, stop=desk.attempt.stop.view)
        decision = desk.next if desk.goal_up else Disposition(Next.REST, desk.next.reason, desk.now)
        decision = held(desk, decision)
        reason = f"{decision.reason} ({note})" if note else decision.reason
        match decision.next:
            case Next.REST:
                desk.move(Trigger.REST, reason)
            case Next.RELAUNCH if not self.claimer.asked_to_start:
                self.claimer.look()  # what was proven is the end of the last attempt, not that a new one may start
            case Next.RELAUNCH:
                self._launch(reason)
            case Next.BACKOFF if decision.due <= desk.now:
                desk.next = Disposition(Next.RELAUNCH, decision.reason, desk.now, by_itself=True)
                self.claimer.look()
            case Next.BACKOFF:
                desk.move(Trigger.DELAY, reason)
                desk.timers.set(Timer.BACKOFF, decision.due)
            case Next.FATAL:
                desk.move(Trigger.GIVE_UP, reason)
            case Next.QUARANTINE:
                desk.move(Trigger.ISOLATE, reason)
            case _:
                assert_never(decision.next)

    def _launch(self, reason: str) -> None:
        desk = self._desk
        desk.number += 1
        desk.attempt = self.new_attempt(desk.number, desk.now)
        desk.move(Trigger.LAUNCH, reason)
        desk.after(Timer.SPAWN, desk.settings.spawn_limit_s)
        desk.do(Spawn(desk.number))

    def new_attempt(self, number: int, begun: float) -> Attempt:
        """As it is at its launch."""
        expected = self._watcher.new_attempt()
        return Attempt(number, self._desk.settings, self._profile, self._facts, begun, self._watcher.budgets, expected)

    def spawned(self, event: Spawned) -> None:
        """A process runs; one that is not wanted any more is ended."""
        desk, attempt = self._desk, self._desk.current()
        attempt.spawned(event)
        desk.tree_alive = True
        desk.timers.cancel(Timer.SPAWN)
        if desk.state is State.STOPPING:
            self._ender.kill()
        elif attempt.ending is EndKind.OPERATOR:
            self._ender.by_operator(attempt.ending_reason)
        else:
            desk.after(Timer.PROBE, desk.settings.readiness.refused_interval_s)

    def spawn_failed(self, event: SpawnFailed) -> None:
        """No process came to be."""
        if self._desk.state not in (State.STARTING, State.STOPPING):
            return
        attempt = self._desk.current()
        attempt.end(EndKind.SPAWN, event.reason)
        attempt.permanent = event.permanent
        self.emptied(TreeEmptied(event.attempt))

    def backoff_over(self) -> None:
        """The delay before a restart has passed."""
        desk = self._desk
        self.claim(Disposition(Next.RELAUNCH, desk.next.reason, desk.now, by_itself=True))

    # --- from the end of an attempt to the next decision ---------------------------------------------------------

    def emptied(self, event: TreeEmptied) -> None:
        """The attempt is over: what follows is decided, and its devices are looked at first."""
        desk = self._desk
        if not desk.standing.may(Trigger.EMPTIED):
            return
        attempt = desk.current()
        attempt.emptied(event, desk.now)
        attempt.stuck = ()
        desk.tree_alive = False
        desk.timers.clear()
        if attempt.ending is not EndKind.OPERATOR:
            desk.next = self._decide(attempt)
        elif desk.goal_up and desk.next.next is Next.REST:
            desk.next = Disposition(Next.RELAUNCH, attempt.ending_reason, desk.now)
        desk.move(Trigger.EMPTIED, attempt.summary())
        self.claimer.look()

    def _decide(self, attempt: Attempt) -> Disposition:
        """Ask the policy what follows a failure."""
        now = self._desk.now
        diagnosis = attempt.conclude(now)
        if not attempt.evidence_asked:
            self._ender.ask_evidence(attempt, attempt.summary())
        ending = Ending(
            self._desk.number,
            now,
            diagnosis,
            serving_s=now - attempt.ready_at if attempt.ready_at is not None else 0.0,
            stage_order=attempt.stage_order(),
            permanent=attempt.permanent,
            host_refused=attempt.ending is EndKind.SPAWN and not attempt.permanent,
            summary=attempt.summary(),
        )
        decision = self._desk.book.decide(ending)
        # A mate was given up meanwhile, and this one with it; or somebody stopped it, or wants a fresh attempt.
        if self._desk.next.next is Next.FATAL or not self._desk.goal_up or self._asked_again(attempt):
            decision = self._desk.next
        followed = held(self._desk, decision)
        self._desk.incidents.append(attempt.incident(now, f"{followed.next}: {followed.reason}"))
        return decision

    def _asked_again(self, attempt: Attempt) -> bool:
        """Whether people have asked for another start since this attempt's own: their word goes before the policy's."""
        follows = self._desk.next
        return follows.next is Next.RELAUNCH and not follows.by_itself and follows.due > attempt.begun

    def evidence(self, event: EvidenceKept) -> None:
        """Of the present attempt, or late of an earlier one; what was found cut never goes before a whole one."""
        if event.cut and self._has_evidence(event.attempt):
            return
        self._amend(event.attempt, evidence_path=event.path, evidence_cut=event.cut)
        if event.attempt == self._desk.number and self._desk.attempt is not None:
            self._ender.evidence(event)

    def _has_evidence(self, attempt: int) -> bool:
        present = self._desk.attempt
        if present is not None and present.number == attempt and present.evidence_path:
            return True
        return any(one.attempt == attempt and one.evidence_path for one in self._desk.incidents)

    def _amend(self, attempt: int, **known: object) -> None:
        """What came after the decision: where the evidence is, when the devices had their memory back."""
        for at, incident in enumerate(self._desk.incidents):
            if incident.attempt == attempt:
                self._desk.incidents[at] = replace(incident, **known)
