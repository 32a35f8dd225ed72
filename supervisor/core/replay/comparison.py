"""Lays two lists of decisions side by side: what was decided both times, at another moment, or only once."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from difflib import SequenceMatcher
from typing import TypeAlias

import msgspec

from supervisor.actions import Announce, AnyAction, KeepEvidence, KillTree, Remember, SignalTree, Spawn
from supervisor.core.replay.rehearsal import Decision

MOVED_S = 1.0  # the daemon's own lateness is below that
_FACETS = ("goal", "lifecycle", "phase", "verdict", "detector")
_DAILY = ("busy", "idle")  # verdicts that change with every request

_Key: TypeAlias = tuple[str | int, ...]


class Mark(enum.StrEnum):
    """How a decision then and now compare."""

    SAME = "same"
    MOVED = "moved"
    THEN = "then"
    NOW = "now"


class Moment(msgspec.Struct, frozen=True):
    """One moment on the daemon's clock and on the wall's."""

    at: float
    wall: float

    @property
    def date(self) -> str:
        """Day and time, UTC."""
        return f"{datetime.fromtimestamp(self.wall, UTC):%Y-%m-%d %H:%M:%S}"

    @property
    def clock(self) -> str:
        """Time of day, UTC."""
        return self.date[11:]


class Row(msgspec.Struct, frozen=True):
    """One decision. `moment` is that of the mark's own side (then, if both had it); `later_s`: now's minus then's."""

    mark: Mark
    moment: Moment
    attempt: int
    what: str
    reason: str = ""
    later_s: float = 0.0
    daily: bool = False  # of no interest while nothing differs


def compare(then: Iterable[Decision], now: Iterable[Decision], offset: float) -> tuple[Row, ...]:
    """All rows in order of time. `offset` is the wall clock minus the clock of the decisions."""
    before, after = _shown(then), _shown(now)
    rows: list[Row] = []
    for tag, begin, end, other, last in _opcodes([_key(x.action) for x in before], [_key(x.action) for x in after]):
        if tag == "equal":
            rows += [_both(*pair, offset) for pair in zip(before[begin:end], after[other:last], strict=True)]
        else:
            rows += [_row(Mark.THEN, one, offset) for one in before[begin:end]]
            rows += [_row(Mark.NOW, one, offset) for one in after[other:last]]
    return tuple(sorted(rows, key=lambda row: row.moment.at))


def _opcodes(before: Sequence[_Key], after: Sequence[_Key]) -> list[tuple[str, int, int, int, int]]:
    """As SequenceMatcher has them, without its square cost for the long part that is alike."""
    alike = 0
    while alike < min(len(before), len(after)) and before[alike] == after[alike]:
        alike += 1
    matcher = SequenceMatcher(None, before[alike:], after[alike:], autojunk=False)
    rest = [(tag, a + alike, b + alike, c + alike, d + alike) for tag, a, b, c, d in matcher.get_opcodes()]
    return [("equal", 0, alike, 0, alike), *rest]


def _shown(decisions: Iterable[Decision]) -> list[Decision]:
    return [one for one in decisions if what(one.action)]


def _both(then: Decision, now: Decision, offset: float) -> Row:
    later_s = now.at - then.at
    mark = Mark.MOVED if abs(later_s) > MOVED_S else Mark.SAME
    row = _row(mark, then, offset)
    return msgspec.structs.replace(row, later_s=later_s if mark is Mark.MOVED else 0.0, reason=reason(now.action))


def _row(mark: Mark, one: Decision, offset: float) -> Row:
    action = one.action
    daily = isinstance(action, Announce) and action.facet == "verdict" and action.after in _DAILY
    moment = Moment(one.at, one.at + offset)
    return Row(mark, moment, action.attempt, what(action), reason(action), daily=daily)


def _key(action: AnyAction) -> _Key:
    """What makes two decisions the same one, whatever their words."""
    match action:
        case Announce():
            return "announce", action.facet, action.after, action.attempt
        case SignalTree():
            return "signal", action.signal, action.attempt
        case _:
            return type(action).__name__, action.attempt


def what(action: AnyAction) -> str:
    """The decision in a few words; "" for those that are only questions or of minor facets."""
    match action:
        case Announce() if action.facet in _FACETS:
            return f"{action.facet} {action.after or '-'}"
        case Spawn():
            return f"spawn attempt {action.attempt}"
        case SignalTree():
            return f"signal {action.signal} to the leader"
        case KillTree():
            return "kill the tree"
        case KeepEvidence():
            return "keep the evidence"
        case Remember():
            return "remember this start"
        case _:
            return ""


def reason(action: AnyAction) -> str:
    """Why, as far as the decision says it."""
    match action:
        case Announce():
            return action.reason
        case KeepEvidence():
            return action.reason
        case Remember():
            return f"healthy after {action.record.total_s:.1f} s"
        case _:
            return ""
