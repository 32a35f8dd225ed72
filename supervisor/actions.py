"""Everything a server's decision can ask of the world, as frozen values that survive JSON.

An action is imperative. The shell carries it out; its result comes back as an event of the same attempt:
Spawn → Spawned | SpawnFailed · SignalTree → nothing · KillTree → TreeEmptied | TreeStuck · Probe → Probed ·
CheckDevices → DevicesChecked · KeepEvidence → EvidenceKept · AskCanary → CanaryAnswered · LeaveRouters → RoutersLeft ·
CountRequests → RequestsCounted · Remember, Announce → nothing.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec


class Action(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """Base of all actions."""


class Spawn(Action, frozen=True):
    """Start the attempt's process tree."""

    attempt: int


class SignalTree(Action, frozen=True):
    """Send a signal to the leader alone (the engine drains on TERM only when its children do not get it)."""

    attempt: int
    signal: int


class KillTree(Action, frozen=True):
    """Kill every process of the attempt and prove that none is left."""

    attempt: int


class Probe(Action, frozen=True):
    """Ask the server's readiness path once. Never two at once for one server."""

    attempt: int
    timeout_s: float
    identify: bool = False  # also ask who answers (model identity)


class CheckDevices(Action, frozen=True):
    """Look whether the server's devices have their memory back.

    For a `start` they are leased first (a plan that only counts may get others), its ports must be free, and the
    preflight must find no error; `force` overrules the preflight alone.
    """

    attempt: int
    start: bool = True
    force: bool = False


class KeepEvidence(Action, frozen=True):
    """Write the evidence bundle of the attempt before it is killed."""

    attempt: int
    reason: str
    limit_s: float


class PhaseRecord(msgspec.Struct, frozen=True):
    """One phase of one finished start, over all ranks: its length and its longest time without progress."""

    phase: str
    seconds: float
    longest_silence_s: float


class StartRecord(msgspec.Struct, frozen=True):
    """One start that became healthy. `key` is the hash of what makes starts comparable: engine, command, devices."""

    key: str
    total_s: float
    phases: tuple[PhaseRecord, ...]
    capacity_tokens: int | None = None


class Remember(Action, frozen=True):
    """Keep how this start went: later ones are measured by it."""

    attempt: int
    record: StartRecord


class AskCanary(Action, frozen=True):
    """Send an idle server a small real request and look whether the answer makes sense. Answered by CanaryAnswered."""

    attempt: int
    timeout_s: float


class LeaveRouters(Action, frozen=True):
    """Have everybody who hands requests out let go of the server, and wait until they have, at most `limit_s`."""

    attempt: int
    limit_s: float


class CountRequests(Action, frozen=True):
    """Ask the engine's own counters how many requests it has."""

    attempt: int


class Announce(Action, frozen=True):
    """A facet of the server changed: written to journal and log, shown to followers, wakes waiters."""

    facet: str
    before: str
    after: str
    reason: str
    attempt: int = 0


AnyAction: TypeAlias = (
    Spawn
    | SignalTree
    | KillTree
    | Probe
    | CheckDevices
    | KeepEvidence
    | Remember
    | AskCanary
    | LeaveRouters
    | CountRequests
    | Announce
)

_decoder = msgspec.json.Decoder(AnyAction)
_encoder = msgspec.json.Encoder()


def encode(action: AnyAction) -> bytes:
    """The action as one JSON object, tagged by its type name."""
    return _encoder.encode(action)


def decode(data: bytes | str) -> AnyAction:
    """The action that `encode` wrote. Raises msgspec.ValidationError naming the path of what is wrong."""
    action: Any = _decoder.decode(data)
    return action  # type: ignore[no-any-return]
