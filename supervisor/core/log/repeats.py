"""Has what a log says again and again told only now and then: an engine may print a traceback for each request.

What a signature means it means with its first matches (`core/clues.py` keeps 24 of an attempt). Each one more would be
one more event to handle, and a row of the journal, in which the past of all servers has its room: two hundred requests
a second that fail fill it within the hour.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from supervisor.events import LineMatched
from supervisor.profile import Profile

BURST = 24  # matches of one signature that are told one after another
EVERY_S = 1.0  # then one of them so often
UNTOLD = "untold"  # the field that counts those since the one before


class _Account(msgspec.Struct):
    at: float
    left: float = BURST
    newest: LineMatched | None = None  # of those that were not told
    untold: int = 0


class Repeats:
    """Of one attempt's log."""

    def __init__(self, profile: Profile) -> None:
        self._rules = frozenset(rule.name for rule in profile.rules)
        self._accounts: dict[str, _Account] = {}

    def told(self, matches: Iterable[LineMatched], now: float) -> list[LineMatched]:
        """Those that are told now. Of a rule's none is left out: each may be a step of the start, or a sign of life."""
        return [told for match in matches if (told := self._passed(match, now)) is not None]

    def rest(self) -> list[LineMatched]:
        """The newest of each signature that was not told yet: the log ends, or pauses."""
        accounts = self._accounts.values()
        newest = [_released(account, account.newest) for account in accounts if account.newest is not None]
        return sorted(newest, key=_line)

    def _passed(self, match: LineMatched, now: float) -> LineMatched | None:
        if match.rule in self._rules:
            return match
        account = self._accounts.setdefault(match.rule, _Account(now))
        account.left = min(BURST, account.left + (now - account.at) / EVERY_S)
        account.at = now
        if account.left < 1.0:
            account.newest = match
            account.untold += 1
            return None
        account.left -= 1.0
        return _released(account, match)


def _released(account: _Account, match: LineMatched) -> LineMatched:
    untold = account.untold - (match is account.newest)
    account.newest, account.untold = None, 0
    return msgspec.structs.replace(match, fields=match.fields | {UNTOLD: str(untold)}) if untold else match


def _line(match: LineMatched) -> int:
    return match.line
