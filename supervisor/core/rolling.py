"""One server after another: what a rolling restart or update has done, and what the one under way has come to."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from supervisor.core.clues import NO_EVIDENCE
from supervisor.core.lifecycle import GIVEN_UP
from supervisor.snapshot import ServerSnapshot


class RollKind(enum.StrEnum):
    """What is done to each server."""

    RESTART = "restart"
    UPDATE = "update"  # the configuration file is brought into force


class RollState(enum.StrEnum):
    """How the whole stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"  # the daemon ended, and the next one could not go on


class MemberState(enum.StrEnum):
    """How one server stands."""

    WAITING = "waiting"
    UNDER_WAY = "under-way"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"
    ROLLED_BACK = "rolled-back"
    UNTOUCHED = "untouched"  # its turn never came


class Member(msgspec.Struct, frozen=True):
    """One server. `attempt` is the one that ran when its turn came."""

    name: str
    state: MemberState = MemberState.WAITING
    reason: str = ""
    attempt: int = 0


class Roll(msgspec.Struct, frozen=True):
    """One rolling restart or update. `version` grows with every change; times are seconds of the epoch."""

    kind: RollKind
    by: str
    members: tuple[Member, ...]
    grace_s: float
    begun: float
    reason: str = ""
    boot_id: str = ""
    state: RollState = RollState.RUNNING
    note: str = ""
    ended: float | None = None
    version: int = 1


class Done(msgspec.Struct, frozen=True):
    """The server serves again, and its routers have it."""


class Failed(msgspec.Struct, frozen=True):
    """The server does not come back; nobody else is to follow."""

    reason: str


class Wait(msgspec.Struct, frozen=True):
    """Not decided yet. `healthy`: only its routers are waited for."""

    healthy: bool = False


def begin(
    kind: RollKind, names: Iterable[str], by: str, grace_s: float, begun: float, reason: str = "", boot_id: str = ""
) -> Roll:
    """Each name once, in order."""
    members = tuple(Member(name) for name in dict.fromkeys(names))
    return Roll(kind, by, members, grace_s, begun, reason, boot_id)


def turn(roll: Roll) -> Member | None:
    """Whose turn it is: the one under way, else the first that waits; None when all have had theirs."""
    if roll.state is not RollState.RUNNING:
        return None
    pending = (MemberState.UNDER_WAY, MemberState.WAITING)
    return next((one for state in pending for one in roll.members if one.state is state), None)


def noted(roll: Roll, name: str, state: MemberState, reason: str = "", attempt: int | None = None) -> Roll:
    """The same with one server's news."""
    members = tuple(
        replace(one, state=state, reason=reason, attempt=one.attempt if attempt is None else attempt)
        if one.name == name
        else one
        for one in roll.members
    )
    return replace(roll, members=members, version=roll.version + 1)


def ended(roll: Roll, state: RollState, at: float, note: str = "") -> Roll:
    """The same, over: who still waited is left as he is."""
    left = tuple(
        replace(one, state=MemberState.UNTOUCHED) if one.state is MemberState.WAITING else one for one in roll.members
    )
    return replace(roll, state=state, members=left, note=note, ended=at, version=roll.version + 1)


def judge(before: int, snapshot: ServerSnapshot | None, missing: str) -> Done | Failed | Wait:
    """What has become of a server since it was asked to restart. `missing` are routers that do not have it yet.

    The first failure of the new attempt counts: whether later ones would succeed is for people to decide.
    """
    if snapshot is None:
        return Failed("it has been removed")
    if snapshot.goal != "up":
        return Failed("somebody wants it down")
    lifecycle = snapshot.lifecycle
    if lifecycle.value in GIVEN_UP:
        return Failed(f"{lifecycle.value}: {lifecycle.reason}")
    if lifecycle.value == "stopped" and snapshot.maintenance is not None:
        return Failed(f"it is held back: {lifecycle.reason}")
    if snapshot.attempt <= before:
        return Wait()
    if snapshot.attempt == before + 1 and lifecycle.value == "stopping":
        return Wait()  # why is known when nothing is left of it, which its own deadlines bound
    if snapshot.attempt > before + 1 or lifecycle.value not in ("starting", "running"):
        return Failed(f"its start failed: {_why(snapshot, before + 1)}")
    if snapshot.healthy:
        return Wait(healthy=True) if missing else Done()
    return Wait()


def _why(snapshot: ServerSnapshot, attempt: int) -> str:
    """What ended this attempt: earlier ones may have failed as well. The cause says more than the exit code."""
    incident = next((one for one in snapshot.incidents if one.attempt == attempt), None)
    if incident is None:
        return snapshot.lifecycle.reason or snapshot.lifecycle.value
    cause = incident.diagnosis.cause if incident.diagnosis is not None else ""
    return incident.reason if cause in ("", NO_EVIDENCE) else f"{cause}: {incident.reason}"


def summary(roll: Roll) -> str:
    """The whole in one line."""
    done = [one.name for one in roll.members if one.state is MemberState.DONE]
    now = next((one.name for one in roll.members if one.state is MemberState.UNDER_WAY), "")
    parts = [f"rolling {roll.kind} {roll.state}: {len(done)} of {len(roll.members)} done"]
    parts += [f"{now} under way"] if now and roll.state is RollState.RUNNING else []
    for state in (MemberState.FAILED, MemberState.ROLLED_BACK, MemberState.SKIPPED, MemberState.UNTOUCHED):
        names = [one.name for one in roll.members if one.state is state]
        parts += [f"{state} {', '.join(names)}"] if names else []
    return ", ".join(parts) + (f"; {roll.note}" if roll.note else "")
