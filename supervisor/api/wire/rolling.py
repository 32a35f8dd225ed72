"""The JSON about a rolling restart or update."""

from __future__ import annotations

import msgspec

from supervisor.api.wire.moments import iso
from supervisor.core.rolling import Member, MemberState, Roll, RollKind, RollState, summary


class RollingMember(msgspec.Struct, frozen=True):
    """One server of it, and why it stands as it does. `waits` is what its start waits for, "" when for nothing."""

    name: str
    state: MemberState
    reason: str = ""
    waits: str = ""


class Rolling(msgspec.Struct, frozen=True):
    """One rolling restart or update; `summary` is the whole in a line. `version` grows with every change."""

    kind: RollKind
    state: RollState
    by: str
    begun: str
    ended: str | None
    grace_s: float
    reason: str
    note: str
    members: tuple[RollingMember, ...]
    summary: str
    version: int
    cancelled_by: str = ""


class RollingStatus(msgspec.Struct, frozen=True):
    """The one under way, else the last one; null when there never was any.

    `problem`, where one begins: why the next daemon would not know of it. It has begun all the same.
    """

    rolling: Rolling | None
    problem: str = ""


class RollingCancelled(msgspec.Struct, frozen=True):
    """After the server under way nobody follows. `problem`: why the next daemon would go on all the same."""

    ok: bool = True
    problem: str = ""


def rolling(roll: Roll) -> Rolling:
    """The roll for readers outside."""
    return Rolling(
        kind=roll.kind,
        state=roll.state,
        by=roll.by,
        begun=iso(roll.begun),
        ended=None if roll.ended is None else iso(roll.ended),
        grace_s=roll.grace_s,
        reason=roll.reason,
        note=roll.note,
        members=tuple(_member(one) for one in roll.members),
        summary=summary(roll),
        version=roll.version,
        cancelled_by=roll.cancelled_by,
    )


def _member(one: Member) -> RollingMember:
    return RollingMember(one.name, one.state, one.reason, one.waits)
