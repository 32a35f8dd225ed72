"""Says which ranks of a start are behind the others.

Ranks run the same program, so the order in which any of them first enters the phases is the order of this start,
whatever version and flags it has: that order is learned from the log, never assumed. A rank can be said to lag only at
lines which it is known to print (which ranks print what differs by version), so nobody waits for a silent rank.
"""

from __future__ import annotations

from collections.abc import Collection

from supervisor.core.ranks import Rank
from supervisor.profile import LogRule

_EVERY = "every"


class RankOrder:
    """One per attempt: told of every line that moves a rank, asked with all ranks that have a name."""

    def __init__(self, first: str) -> None:
        self.phases = [first]  # as this start goes through them, by first entry of any rank
        self._printed: dict[str, set[str]] = {}  # family of rules → ranks that have printed one of it
        self._entries: dict[str, set[str]] = {}  # phase → families by which it was entered
        self._exits: dict[str, set[str]] = {}  # phase → families by which it was left

    # --- what the log says ---------------------------------------------------------------------------------------

    def printed(self, rule: LogRule, rank: str) -> None:
        """A rank has printed such a line, so it would print the others of the family, too."""
        self._printed.setdefault(_family(rule), set()).add(rank)

    def entered_by(self, rule: LogRule, phase: str) -> None:
        """Such a line announces the phase."""
        self._entries.setdefault(phase, set()).add(_family(rule))

    def left_by(self, rule: LogRule, phase: str) -> None:
        """Such a line announces the phase's end."""
        self._exits.setdefault(phase, set()).add(_family(rule))

    def enters(self, phase: str) -> None:
        """A rank is in the phase now, announced or not."""
        if phase not in self.phases:
            self.phases.append(phase)

    # --- what follows --------------------------------------------------------------------------------------------

    def slowest(self, ranks: Collection[Rank]) -> Rank:
        """Of those that lag the last one; when nobody does, the one that is ahead."""
        leader = max(ranks, key=self._position)
        behind = [rank for rank in ranks if self._lags(rank, leader)]
        return min(behind, key=lambda rank: (self._position(rank), rank.sort_key), default=leader)

    def laggards(self, ranks: Collection[Rank]) -> list[Rank]:
        """Never all of them: the leader lags behind nobody."""
        if len(ranks) < 2:
            return []
        leader = max(ranks, key=self._position)
        return sorted((rank for rank in ranks if self._lags(rank, leader)), key=lambda rank: rank.sort_key)

    def text(self, lag: list[Rank], ranks: Collection[Rank]) -> str:
        """Who lags and who waits for him, in words; "" when nobody does."""
        if not lag:
            return ""
        ahead = [rank for rank in ranks if rank not in lag]
        leader = max(ahead, key=self._position)
        names = ", ".join(rank.name for rank in lag[:4]) + (f" and {len(lag) - 4} more" if len(lag) > 4 else "")
        waiting = f"{len(ahead)} rank{'s' if len(ahead) != 1 else ''} wait{'s' if len(ahead) == 1 else ''}"
        where = "for it" if leader.step.phase == lag[0].step.phase else f"in {leader.step.phase}"
        return f"{names} still in {lag[0].step.phase}; {waiting} {where}"

    def _position(self, rank: Rank) -> int:
        """Two steps for each phase of this start: inside it, and through with it."""
        step = rank.outer or rank.step
        return 2 * self.phases.index(step.phase) + (step.end is not None)

    def _lags(self, rank: Rank, leader: Rank) -> bool:
        """Whether the leader has entered or left a phase in a way that this rank would have announced, too."""
        steps = range(self._position(rank) + 1, self._position(leader) + 1)
        announced = [(self._exits if step % 2 else self._entries).get(self.phases[step // 2], ()) for step in steps]
        return any(self._prints(rank, family) for families in announced for family in families)

    def _prints(self, rank: Rank, family: str) -> bool:
        return family == _EVERY or rank.name in self._printed.get(family, ())


def _family(rule: LogRule) -> str:
    return _EVERY if rule.spoken_by == _EVERY else rule.family or rule.name
