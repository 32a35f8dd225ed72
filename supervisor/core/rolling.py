"""One server after another: what a rolling restart or update has done, and what the one under way has come to."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from supervisor.core.clues import NO_EVIDENCE
from supervisor.core.lifecycle import GIVEN_UP
from supervisor.snapshot import IncidentView, ServerSnapshot

NAMED_AFTER_S = 5.0  # devices are back sooner than that, mostly: until then nobody is told that it waits
_NUMBER = re.compile(r"[0-9.]+")


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
    LEFT_WAITING = "left-waiting"  # wanted up, and it starts when what is in its way is gone; nobody waits for that
    LEFT_UNDER_WAY = "left-under-way"  # the whole ended in the middle of its turn; nobody waits for what becomes of it
    UNTOUCHED = "untouched"  # its turn never came


class Member(msgspec.Struct, frozen=True):
    """One server. `attempt` is the one that ran when its turn came; `waits` is what its start waits for, as words."""

    name: str
    state: MemberState = MemberState.WAITING
    reason: str = ""
    attempt: int = 0
    waits: str = ""


class Roll(msgspec.Struct, frozen=True):
    """One rolling restart or update. `version` grows with every change; times are seconds of the epoch.

    `cancelled_by`: after the server under way nobody follows.
    """

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
    cancelled_by: str = ""


class Done(msgspec.Struct, frozen=True):
    """The server serves again, and its routers have it."""


class Failed(msgspec.Struct, frozen=True):
    """The server does not come back; nobody else is to follow."""

    reason: str


class Wait(msgspec.Struct, frozen=True):
    """Not decided yet. `healthy`: only its routers are waited for. `start`: what its start waits for, without a limit.

    `again`: when to judge again although nothing has happened.
    """

    healthy: bool = False
    start: str = ""
    again: float = math.inf


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
        replace(one, state=state, reason=reason, attempt=one.attempt if attempt is None else attempt, waits="")
        if one.name == name
        else one
        for one in roll.members
    )
    return replace(roll, members=members, version=roll.version + 1)


def waiting(roll: Roll, name: str, waits: str) -> Roll:
    """The same with what the server's start waits for; the very same when only figures in it have changed."""
    before = next((one.waits for one in roll.members if one.name == name), "")
    if _NUMBER.sub("", before) == _NUMBER.sub("", waits):
        return roll
    members = tuple(replace(one, waits=waits) if one.name == name else one for one in roll.members)
    return replace(roll, members=members, version=roll.version + 1)


def cancelled(roll: Roll, by: str) -> Roll:
    """The same, to end after the server under way. Who asked first counts."""
    return replace(roll, cancelled_by=roll.cancelled_by or by, version=roll.version + 1)


def ended(roll: Roll, state: RollState, at: float, note: str = "") -> Roll:
    """The same, over: who still waited, or was at it, is left as he is."""
    left = {MemberState.WAITING: MemberState.UNTOUCHED, MemberState.UNDER_WAY: MemberState.LEFT_UNDER_WAY}
    members = tuple(replace(one, state=left.get(one.state, one.state), waits="") for one in roll.members)
    return replace(roll, state=state, members=members, note=note, ended=at, version=roll.version + 1)


def judge(before: int, snapshot: ServerSnapshot | None, missing: str, now: float) -> Done | Failed | Wait:
    """What has become of a server since it was asked to restart. `missing` are routers that do not have it yet.

    The first failure of a new attempt counts: whether later ones would succeed is for people to decide. An attempt that
    was ended for somebody, or lost with a daemon before its spawn, is none: the next one is waited for.
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
    if failure := _failure(snapshot, before):
        return Failed(f"its start failed: {failure}")
    if snapshot.attempt > before and snapshot.healthy:
        return Wait(healthy=True) if missing else Done()
    return _awaited_start(snapshot, now) if lifecycle.value == "reclaiming" else Wait()


def _failure(snapshot: ServerSnapshot, before: int) -> str:
    """What ended the first later attempt that nobody wanted to end, "" when there is none."""
    if incident := next((one for one in snapshot.incidents if one.attempt > before), None):
        return _told(incident)
    lifecycle = snapshot.lifecycle
    failed = snapshot.attempt > before and lifecycle.value == "backoff"  # with a mate of its group, say
    return (lifecycle.reason or lifecycle.value) if failed else ""


def _told(incident: IncidentView) -> str:
    """The cause says more than the exit code."""
    cause = incident.diagnosis.cause if incident.diagnosis is not None else ""
    return incident.reason if cause in ("", NO_EVIDENCE) else f"{cause}: {incident.reason}"


def _awaited_start(snapshot: ServerSnapshot, now: float) -> Wait:
    """Its devices, its port or its turn; another server may have them for as long as people let it."""
    named_at = snapshot.lifecycle.since + NAMED_AFTER_S
    if snapshot.turn:
        return Wait(start=snapshot.turn)
    if now < named_at:
        return Wait(again=named_at)
    return Wait(start=f"waits: {snapshot.lifecycle.reason}")


_NAMED = (
    MemberState.FAILED,
    MemberState.ROLLED_BACK,
    MemberState.LEFT_WAITING,
    MemberState.LEFT_UNDER_WAY,
    MemberState.SKIPPED,
    MemberState.UNTOUCHED,
)


def summary(roll: Roll) -> str:
    """The whole in one line."""
    done = [one.name for one in roll.members if one.state is MemberState.DONE]
    parts = [f"rolling {roll.kind} {roll.state}: {len(done)} of {len(roll.members)} done"]
    if roll.state is RollState.RUNNING:
        under_way = [one for one in roll.members if one.state is MemberState.UNDER_WAY]
        parts += [f"{one.name} under way" + (f", its start {one.waits}" if one.waits else "") for one in under_way]
        parts += [f"cancelled by {roll.cancelled_by}"] if roll.cancelled_by else []
    for state in _NAMED:
        names = [one.name for one in roll.members if one.state is state]
        parts += [f"{state} {', '.join(names)}"] if names else []
    return ", ".join(parts) + (f"; {roll.note}" if roll.note else "")
