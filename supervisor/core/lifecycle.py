"""The lifecycle of a server as one literal table, run by the `transitions` library.

Whatever a server may do next stands in `TABLE`; `diagram()` prints it for docs/lifecycle.md and a test compares. The
module holds one machine for all servers: the state itself lives on whoever asks (`Standing`).
"""

from __future__ import annotations

import enum

import msgspec
from transitions import Machine


class State(enum.StrEnum):
    """Where a server stands; exactly one at a time."""

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"
    RECLAIMING = "reclaiming"
    BACKOFF = "backoff"
    FATAL = "fatal"
    QUARANTINED = "quarantined"


class Trigger(enum.StrEnum):
    """What moves a server from one state to the next."""

    CLAIM = "claim"
    LAUNCH = "launch"
    READY = "ready"
    DRAIN = "drain"
    END = "end"
    EMPTIED = "emptied"
    REST = "rest"
    DELAY = "delay"
    GIVE_UP = "give_up"
    ISOLATE = "isolate"
    CANCEL = "cancel"


class Transition(msgspec.Struct, frozen=True):
    """One row of the table."""

    trigger: Trigger
    sources: tuple[State, ...]
    dest: State
    meaning: str


GIVEN_UP = (State.FATAL, State.QUARANTINED)  # the policy starts it no more
RESTING = (State.STOPPED, *GIVEN_UP)
WITHOUT_DEVICES = (State.STOPPED, State.FATAL)  # a quarantined server keeps its own: nobody knows whether they are free
ALIVE = (State.STARTING, State.RUNNING, State.DRAINING, State.STOPPING)

TABLE = (
    Transition(
        Trigger.CLAIM,
        (State.STOPPED, State.BACKOFF, State.FATAL, State.QUARANTINED),
        State.RECLAIMING,
        "a start is due: first its devices and ports must be free",
    ),
    Transition(Trigger.LAUNCH, (State.RECLAIMING,), State.STARTING, "all is free: spawn"),
    Transition(Trigger.READY, (State.STARTING,), State.RUNNING, "the startup probe succeeded"),
    Transition(Trigger.DRAIN, (State.RUNNING,), State.DRAINING, "stop asked: running requests may finish"),
    Transition(
        Trigger.END,
        (State.STARTING, State.RUNNING, State.DRAINING),
        State.STOPPING,
        "the leader exited, or the attempt must be killed",
    ),
    Transition(
        Trigger.EMPTIED, (State.STOPPING, State.STARTING), State.RECLAIMING, "no process is left: look at the devices"
    ),
    Transition(
        Trigger.EMPTIED, (State.QUARANTINED,), State.RECLAIMING, "the process that survived the kill is gone at last"
    ),
    Transition(Trigger.REST, (State.RECLAIMING,), State.STOPPED, "memory is back and nobody wants it up"),
    Transition(Trigger.DELAY, (State.RECLAIMING,), State.BACKOFF, "restart after a delay"),
    Transition(Trigger.GIVE_UP, (State.RECLAIMING,), State.FATAL, "no restart can help, or the budget is spent"),
    Transition(
        Trigger.ISOLATE,
        (State.STOPPING, State.RECLAIMING),
        State.QUARANTINED,
        "a process or its memory does not go away, or the same failure keeps coming",
    ),
    Transition(
        Trigger.CANCEL, (State.BACKOFF, State.FATAL, State.QUARANTINED), State.STOPPED, "nobody wants it up any more"
    ),
)


class Standing:
    """Holder of one server's state; `move` is the only writer."""

    __slots__ = ("state",)

    def __init__(self, state: State = State.STOPPED) -> None:
        self.state: State = state

    def move(self, trigger: Trigger) -> State:
        """Fire a trigger and return the new state. Raises transitions.MachineError when the table forbids it."""
        _MACHINE.events[trigger.value].trigger(self)
        return self.state

    def resume(self, state: State) -> None:
        """Take up the state that an earlier daemon was in."""
        self.state = state

    def may(self, trigger: Trigger) -> bool:
        """Whether the table allows the trigger now."""
        return any(row.trigger is trigger and self.state in row.sources for row in TABLE)


def diagram() -> str:
    """The table as a Mermaid state diagram, one edge a row and source."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.STOPPED}"]
    lines += [f"    {source} --> {row.dest}: {row.trigger}" for row in TABLE for source in row.sources]
    return "\n".join(lines) + "\n"


def explanation() -> str:
    """The table as Markdown rows: trigger, from, to, meaning."""
    head = "| trigger | from | to | when |\n|---|---|---|---|\n"
    rows = (f"| {r.trigger} | {' · '.join(r.sources)} | {r.dest} | {r.meaning} |" for r in TABLE)
    return head + "\n".join(rows) + "\n"


def _machine() -> Machine:
    rows = [{"trigger": row.trigger.value, "source": list(row.sources), "dest": row.dest} for row in TABLE]
    return Machine(model=None, states=State, initial=None, transitions=rows, auto_transitions=False)


_MACHINE = _machine()
