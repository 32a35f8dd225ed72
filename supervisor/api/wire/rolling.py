"""The JSON about a rolling restart or update."""

from __future__ import annotations

import msgspec

from supervisor.api.wire.moments import iso
from supervisor.core.rolling import Member, MemberState, Roll, RollKind, RollState, summary


class RollingMember(msgspec.Struct, frozen=True):
    """One server of it, and why it stands as it does."""

    name: str
    state: MemberState
    reason: str = ""


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


class RollingStatus(msgspec.Struct, frozen=True):
    """The one under way, else the last one; null when there never was any."""

    rolling: Rolling | None


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
    )


def _member(one: Member) -> RollingMember:
    return RollingMember(one.name, one.state, one.reason)
