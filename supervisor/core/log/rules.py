"""Finds the rule of the profile that a record, a raw line or a progress bar matches."""

from __future__ import annotations

import re

import msgspec

from supervisor.core.log.patterns import Pattern, compiled
from supervisor.profile import LogRule, Profile

_RANK_WORD = re.compile(r"([A-Z]+(?:_[A-Z]+)*)(\d+)")
_STARTS_KEYED = 4  # letters by which rules are looked up


class RuleMatch(msgspec.Struct, frozen=True):
    """A rule's name and the named groups of its pattern."""

    name: str
    fields: dict[str, str]
    end: int = 0  # where the pattern ended


class _Compiled(msgspec.Struct, frozen=True):
    rule: LogRule
    pattern: Pattern | None

    def match(self, text: str) -> RuleMatch | None:
        rule = self.rule
        if rule.starts:
            if not text.startswith(rule.starts):
                return None
        elif rule.needles and not any(map(text.__contains__, rule.needles)):
            return None
        if self.pattern is None:
            return RuleMatch(rule.name, {})
        found = self.pattern.match(text)
        if found is None:
            return None
        fields = {name: value for name, value in found.groupdict().items() if value is not None}
        return RuleMatch(rule.name, fields, found.end())


class RuleIndex:
    """All rules of a profile, by where they count and by their first letters. The first that matches wins."""

    def __init__(self, profile: Profile) -> None:
        every = [_Compiled(rule, compiled(rule.pattern) if rule.pattern else None) for rule in profile.rules]
        lines = [one for one in every if not one.rule.bar]
        self._bars = [one for one in every if one.rule.bar]
        self._records = _Keyed([one for one in lines if one.rule.where in ("record", "any")])
        self._raws = _Keyed([one for one in lines if one.rule.where in ("raw", "any")])
        grammar = profile.grammar
        self.prefix = re.compile(grammar.prefix)
        self._loose = re.compile(grammar.loose_prefix) if grammar.loose_prefix else None
        self._wrapped = re.compile(f"(?:{'|'.join(grammar.wrappers)})+") if grammar.wrappers else None
        self.benign = grammar.benign
        self.places = [(compiled(place.frames), place.stage) for place in profile.places]
        self.untrusted = profile.grammar.untrusted
        self.telling = frozenset(rule.name for rule in profile.rules if rule.hint in ("fatal", "drain"))
        self.sampled = frozenset(rule.name for rule in profile.rules if rule.sampled)
        self._sampled_starts = tuple(start for rule in profile.rules if rule.sampled for start in rule.starts)
        # uvicorn's access lines are no records of the engine's own logger
        self.access_starts = frozenset(
            start for rule in profile.rules if rule.sampled and rule.where == "any" for start in rule.starts
        )
        self._tag = re.compile(profile.grammar.rank_tag) if profile.grammar.rank_tag else None
        self._tag_name = profile.grammar.rank_tag_name
        self._speaks = "speaker" in self.prefix.groupindex
        self._aliases = profile.grammar.rank_aliases
        self._order = profile.grammar.rank_order
        self._identity = profile.grammar.rank_identity
        self._ranks: dict[str, str] = {"": ""}

    @property
    def record_marks(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The starts and the needles without all of which no rule is in a record."""
        return self._records.marks

    def leading(self, text: str) -> re.Match[str] | None:
        """The prefix at the start of the line, in any of its forms."""
        found = self.prefix.match(text)
        if found is None and self._loose is not None:
            found = self._loose.match(text)
        return found

    def speaker(self, prefix: re.Match[str]) -> str:
        """Which process says it, "" when the prefix does not tell."""
        return prefix.groupdict().get("speaker") or "" if self._speaks else ""

    def unwrap(self, text: str) -> str:
        """The line without what a collector has put in front of it."""
        found = self._wrapped.match(text) if self._wrapped is not None else None
        return text[found.end() :] if found is not None else text

    def place(self, frames: str) -> str:
        """The stage that a traceback's functions tell, "" when they tell none."""
        return next((stage for pattern, stage in self.places if pattern.search(frames)), "")

    def sampled_start(self, text: str, at: int) -> str:
        """The beginning of a message at `at` of which only the newest is read, "" for any other."""
        if not text.startswith(self._sampled_starts, at):
            return ""
        return next(start for start in self._sampled_starts if text.startswith(start, at))

    def record(self, message: str) -> RuleMatch | None:
        """Behind the engine's prefix."""
        return self._records.match(message)

    def raw(self, message: str) -> RuleMatch | None:
        """A line without prefix."""
        return self._raws.match(message)

    def bar(self, text: str) -> RuleMatch | None:
        """A progress bar."""
        return next((match for one in self._bars if (match := one.match(text)) is not None), None)

    def rank_tag(self, text: str) -> tuple[str, str]:
        """The rank that a third-party line carries ("" without one) and the line behind the tag."""
        if self._tag is None or not text.startswith("["):
            return "", text
        found = self._tag.match(text)
        if found is None:
            return "", text
        return self._tag_name.format(rank=found["rank"]), text[found.end() :]

    def canonical(self, ranks: str) -> str:
        """The prefix's rank words in one order, without those that the others imply: "DP1 TP0"."""
        known = self._ranks.get(ranks)
        if known is None:
            known = self._canonical(ranks)
            if len(self._ranks) < 4096:  # a hostile log can make up any number of ranks
                self._ranks[ranks] = known
        return known

    def _canonical(self, ranks: str) -> str:
        for other, word in self._aliases.items():
            ranks = ranks.replace(other, word)
        words = {word: word + number for word, number in _RANK_WORD.findall(ranks)}
        identity = [name for name in self._identity if name in words]
        names = identity or [name for name in self._order if name in words]
        return " ".join(words[name] for name in names)


class _Keyed:
    """Rules looked up by the first letters of the text; those without a fixed start are always tried."""

    def __init__(self, rules: list[_Compiled]) -> None:
        self._always = tuple(one for one in rules if not one.rule.starts)
        self._by_key: dict[str, tuple[_Compiled, ...]] = {}
        keys = {start[:_STARTS_KEYED] for one in rules for start in one.rule.starts}
        for key in keys:
            self._by_key[key] = tuple(one for one in rules if _may_start(one.rule, key))

    @property
    def marks(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        needles = tuple(needle for one in self._always for needle in one.rule.needles)
        return tuple(self._by_key), needles

    def match(self, text: str) -> RuleMatch | None:
        for one in self._by_key.get(text[:_STARTS_KEYED], self._always):
            match = one.match(text)
            if match is not None:
                return match
        return None


def _may_start(rule: LogRule, key: str) -> bool:
    return not rule.starts or any(start.startswith(key) for start in rule.starts)


def rule_index(profile: Profile) -> RuleIndex:
    """The index of that profile, built once."""
    kept = _KEPT.get(id(profile))
    if kept is None or kept[0] is not profile:
        kept = _KEPT[id(profile)] = (profile, RuleIndex(profile))
    return kept[1]


_KEPT: dict[int, tuple[Profile, RuleIndex]] = {}
