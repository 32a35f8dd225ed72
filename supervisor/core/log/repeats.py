"""Has what a log says again and again told only now and then: a batch in each tenth of a second, a failing request.

What a signature means it means with its first matches (`core/clues.py` keeps 24 of an attempt), and of what is read by
sample the newest counts. Each one more would be one more event to handle, and a row of the journal, in which the past
of all servers has its room: a busy server, or requests that fail, would fill it within hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from supervisor.core.log.rules import rule_index
from supervisor.events import LineMatched
from supervisor.profile import Profile

BURST = 24  # matches of one signature that are told one after another; of what is read by sample it is one
EVERY_S = 1.0  # then one of them so often
UNTOLD = "untold"  # the field that counts those of a signature since the one before
_ACCOUNTS_KEPT = 1000  # a hostile log can make up any number of ranks


class _Account(msgspec.Struct):
    """What may be told of one signature, or of one kind of sample of one rank."""

    burst: float
    left: float
    at: float
    newest: LineMatched | None = None  # of those that were not told
    untold: int = 0

    def may(self, now: float) -> bool:
        """Whether one may be told now."""
        self.left = min(self.burst, self.left + (now - self.at) / EVERY_S)
        self.at = now
        return self.left >= 1.0

    def tell(self, match: LineMatched) -> LineMatched:
        """This one is told, and the others are not any more."""
        untold = self.untold - (match is self.newest)
        self.left, self.newest, self.untold = self.left - 1.0, None, 0
        if not untold or self.burst == 1.0:
            return match
        return msgspec.structs.replace(match, fields=match.fields | {UNTOLD: str(untold)})


class Repeats:
    """Of one attempt's log. Its steps, its bars and what is no sample are all told: each may move the start on."""

    def __init__(self, profile: Profile) -> None:
        self._sampled = rule_index(profile).sampled
        self._rules = frozenset(rule.name for rule in profile.rules) - self._sampled
        self._accounts: dict[tuple[str, str], _Account] = {}

    def told(self, matches: Iterable[LineMatched], now: float) -> list[LineMatched]:
        """What is told now, in the order of the log: of these matches, and of those that were held back."""
        told = [passed for match in matches if (passed := self._passed(match, now)) is not None]
        due = list(self._due(now))
        return sorted([*told, *due], key=_line) if due else told

    def rest(self) -> list[LineMatched]:
        """The newest of each that was held back: the log ends, or pauses."""
        return sorted((account.tell(newest) for account, newest in self._held()), key=_line)

    def _passed(self, match: LineMatched, now: float) -> LineMatched | None:
        account = None if match.rule in self._rules else self._account(match, now)
        if account is None:
            return match
        if account.may(now):
            return account.tell(match)
        account.newest = match
        account.untold += 1
        return None

    def _due(self, now: float) -> Iterator[LineMatched]:
        """While others go on talking."""
        return (account.tell(newest) for account, newest in self._held() if account.may(now))

    def _held(self) -> list[tuple[_Account, LineMatched]]:
        return [(one, one.newest) for one in self._accounts.values() if one.newest is not None]

    def _account(self, match: LineMatched, now: float) -> _Account | None:
        """Signatures are repeated by whoever says them; a sample is its rank's."""
        sample = match.rule in self._sampled
        key = (match.rule, match.rank if sample else "")
        if key not in self._accounts:
            if len(self._accounts) >= _ACCOUNTS_KEPT:
                return None
            burst = 1.0 if sample else BURST
            self._accounts[key] = _Account(burst, burst, now)
        return self._accounts[key]


def _line(match: LineMatched) -> int:
    return match.line
