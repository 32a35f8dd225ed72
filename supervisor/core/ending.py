"""Ends an attempt step by step: evidence, TERM, grace, the kill of the whole tree, proof that nobody is left."""

from __future__ import annotations

from supervisor.actions import KeepEvidence, KillTree, SignalTree
from supervisor.core.attempt import Attempt
from supervisor.core.desk import REPLY_SLACK_S, Desk
from supervisor.core.draining import Drainer
from supervisor.core.endcause import EndKind
from supervisor.core.lifecycle import State, Trigger
from supervisor.core.settings import Settings
from supervisor.core.timers import Timer
from supervisor.events import EvidenceKept, Exited, TreeStuck

_STUCK_RETRY_S = 60.0
_UNENDED = (State.STARTING, State.RUNNING, State.DRAINING)


class Ender:
    """Every way in which an attempt comes to its end; what follows is decided elsewhere."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.drainer = Drainer(desk, self.terminate)

    def by_operator(self, reason: str, grace_s: float | None = None) -> None:
        """Somebody asked: a serving server may drain, a starting one has nothing to finish.

        `grace_s` asked for has running requests waited for, when there is a router that hands out no new ones.
        """
        desk, attempt = self._desk, self._desk.current()
        attempt.end(EndKind.OPERATOR, reason)
        if desk.timers.at(Timer.SPAWN) is not None:
            return  # Spawn is on its way: its answer ends it
        if desk.state is State.RUNNING:
            desk.move(Trigger.DRAIN, reason)
            self.drainer.begin(self._grace_s(grace_s), wait=grace_s is not None)
        else:
            desk.move(Trigger.END, reason)
            self.terminate(desk.settings.stop.startup_grace_s)

    def by_mate(self, reason: str) -> None:
        """A server that it cannot do without has died: running requests cannot end well, so there is a short grace."""
        desk, attempt = self._desk, self._desk.current()
        attempt.end(EndKind.OPERATOR, reason)
        if desk.timers.at(Timer.SPAWN) is None:
            desk.move(Trigger.END, reason)
            self.terminate(desk.settings.stop.startup_grace_s)

    def hurry(self, grace_s: float | None) -> None:
        """Asked again while it drains: the earlier end counts, so that a stop ends a long drain."""
        desk = self._desk
        if self.drainer.hurry(grace_s):
            return
        earlier = desk.timers.at(Timer.GRACE)
        if earlier is None or earlier > desk.now + self._grace_s(grace_s):
            desk.after(Timer.GRACE, self._grace_s(grace_s))

    def _grace_s(self, asked: float | None) -> float:
        return self._desk.settings.stop.grace_s if asked is None else asked

    def condemn(self, kind: EndKind, reason: str) -> None:
        """The attempt is to be killed, its evidence first."""
        desk, attempt = self._desk, self._desk.current()
        if not attempt.end(kind, reason):
            return
        desk.timers.clear()
        desk.move(Trigger.END, reason)
        self._await_evidence(attempt, reason)

    def unanswered_spawn(self) -> None:
        """Nobody can say whether a process was started: kill whatever carries the attempt's number."""
        reason = "the spawn was never answered"
        self._desk.current().end(EndKind.SPAWN, reason)
        self._desk.move(Trigger.END, reason)
        self.kill()

    def _await_evidence(self, attempt: Attempt, reason: str) -> None:
        """Have the evidence kept before the next step of the end."""
        desk = self._desk
        attempt.stop.begins("evidence", desk.now)
        self.ask_evidence(attempt, reason)
        desk.after(Timer.EVIDENCE, desk.settings.evidence_limit_s + REPLY_SLACK_S)

    def ask_evidence(self, attempt: Attempt, reason: str) -> None:
        """Have the evidence kept, once per attempt."""
        attempt.evidence_asked = True
        self._desk.do(KeepEvidence(self._desk.number, reason, self._desk.settings.evidence_limit_s))

    def evidence(self, event: EvidenceKept) -> None:
        """The bundle is on disk, as far as it could be."""
        desk = self._desk
        desk.current().evidence_path = event.path
        if desk.timers.at(Timer.EVIDENCE) is not None:
            self.evidence_over()

    def evidence_over(self) -> None:
        """Kept or given up: a server judged dead has a short grace; one that was asked to stop has had its own."""
        if self._desk.current().ending is EndKind.OPERATOR:
            self.kill()
        else:
            self.terminate(self._desk.settings.stop.stall_grace_s)

    def terminate(self, grace_s: float) -> None:
        """Ask the leader to end."""
        desk, attempt = self._desk, self._desk.current()
        attempt.stop.begins("term", desk.now)
        attempt.signals.add(desk.settings.stop.signal)
        desk.timers.clear()
        desk.after(Timer.GRACE, grace_s)
        desk.do(SignalTree(desk.number, desk.settings.stop.signal))

    def grace_over(self) -> None:
        """The leader had its time."""
        desk, attempt = self._desk, self._desk.current()
        attempt.outlived = attempt.exit is None
        if desk.state is State.DRAINING:
            desk.move(Trigger.END, "the grace period is over")
        if desk.settings.stop.evidence and not attempt.evidence_asked:
            self._await_evidence(attempt, "the grace period of a stop is over")
        else:
            self.kill()

    def kill(self) -> None:
        """Kill every process of the attempt and have it proven."""
        desk = self._desk
        if desk.attempt is not None:
            desk.attempt.killing(desk.now)
        desk.timers.clear()
        desk.after(Timer.KILL, desk.settings.kill_limit_s + REPLY_SLACK_S)
        desk.do(KillTree(desk.number))

    def exited(self, event: Exited) -> None:
        """The leader's end is not the tree's end: sweep what is left."""
        desk, attempt = self._desk, self._desk.current()
        attempt.exited(event, desk.now)
        attempt.end(EndKind.EXIT, "the leader exited")
        if desk.state in _UNENDED:
            desk.move(Trigger.END, attempt.summary())
        if desk.state is State.STOPPING and attempt.stop.stage != "kill":
            self.kill()

    def stuck(self, event: TreeStuck) -> None:
        """Somebody survives SIGKILL: he sleeps in the kernel. Never called stopped; tried again now and then."""
        desk = self._desk
        if desk.state is not State.STOPPING and not (desk.state is State.QUARANTINED and desk.tree_alive):
            return  # the answer to an earlier kill; a later one has succeeded meanwhile
        desk.tree_alive = True
        desk.current().stuck = event.processes
        blocked = _blocked(desk.settings)
        reason = f"cannot be killed: {_names(event)}; it {blocked} until the kernel lets go"
        if desk.state is State.STOPPING:
            desk.move(Trigger.ISOLATE, reason)
        desk.timers.clear()
        desk.after(Timer.KILL, _STUCK_RETRY_S)


def _blocked(settings: Settings) -> str:
    """What nobody else can have meanwhile."""
    devices = f"GPU {', '.join(map(str, settings.gpus))}" if settings.gpus else ""
    port = f"port {settings.port}" if settings.port else ""
    return f"blocks {' and '.join(filter(None, (port, devices)))}" if port or devices else "stays"


def _names(event: TreeStuck) -> str:
    return ", ".join(f"pid {p.pid} ({p.state}, {p.wait_channel or 'no wait channel'})" for p in event.processes)
