"""Says what to change, with the values that the log's own numbers give."""

from __future__ import annotations

import re

from supervisor.core.clues import Clue
from supervisor.core.log.figures import amount_of
from supervisor.events import LineMatched
from supervisor.profile import Cause, Profile

_COMMAND = re.compile(r"\b(sglctl [a-z]+) NAME\b")
_SIZE = re.compile(r"([\d.]+) ?([KMGT])(?:i?B)")
_HOLDER = re.compile(r"Process \d+ has ([\d.]+ [KMGT]iB) memory in use")
_OWN = re.compile(r"this process has ([\d.]+ [KMGT]iB) memory in use")
_UNIT_GB = {"K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}
_OCCUPIED = 0.85  # of a GPU's memory was not even there before the load
_HELD = 0.2  # of a GPU's memory is held by others
_OOM_CAUSES = frozenset({"gpu-oom-weights", "gpu-oom-kv-pool", "gpu-oom-graph-capture", "gpu-oom-runtime"})
_OCCUPIED_CAUSE = "gpu-memory-occupied"
_EVERY_START = "It came before anything was served, so it comes back with every start."


def with_name(advice: str, name: str) -> str:
    """Advice that names our own commands, for one server: they can be copied as they stand."""
    return _COMMAND.sub(lambda found: f"{found[1]} {name}", advice)


class Figures:
    """Numbers of the launch that remedies are computed from."""

    def __init__(self, profile: Profile) -> None:
        self._rules = {rule.name: rule for rule in profile.rules}
        self.fraction: float | None = None
        self.left_before_gb: float | None = None  # the least of all ranks, before anything was loaded
        self._seen: set[str] = set()

    def observe(self, match: LineMatched) -> None:
        """Takes the numbers of one match in."""
        rule = self._rules.get(match.rule)
        if rule is None:
            return
        fraction = amount_of(match.fields.get("fraction", "")) if rule.facts else None
        if fraction is not None:
            self.fraction = fraction
        if rule.baseline and match.rank not in self._seen and len(self._seen) < 4096:
            self._seen.add(match.rank)
            left = amount_of(match.fields.get("left", ""))
            if left is not None:
                self.left_before_gb = left if self.left_before_gb is None else min(left, self.left_before_gb)

    def resolve(self, clue: Clue) -> str:
        """The cause, after the numbers: memory that was gone before the load began is somebody else's."""
        if clue.cause not in _OOM_CAUSES or clue.stage == "serving":
            return clue.cause
        total = gigabytes(clue.match.fields.get("total", ""))
        if total is None:
            return clue.cause
        if self.left_before_gb is not None and self.left_before_gb < _OCCUPIED * total:
            return _OCCUPIED_CAUSE
        holders = sum(gigabytes(text) or 0.0 for text in _HOLDER.findall(clue.match.text))
        own = _OWN.search(clue.match.text)
        own_gb = gigabytes(own[1]) if own else None
        if own_gb is not None and holders > _HELD * total and own_gb < total - holders:
            return _OCCUPIED_CAUSE
        return clue.cause

    def values(self, clue: Clue) -> dict[str, str]:
        """What a remedy's text may name."""
        values = {name: value for name, value in clue.match.fields.items() if value}
        tried, total = gigabytes(values.get("tried", "")), gigabytes(values.get("total", ""))
        if self.left_before_gb is not None:
            values["left_before"] = f"{self.left_before_gb:.1f} GB"
        if self.fraction is not None:
            values["fraction_now"] = f"{self.fraction:g}"
            if tried is not None and total:
                lower = self.fraction - max(0.02, tried / total + 0.01)
                values["fraction_lower"] = f"{max(0.1, lower):.2f}"
        return values


def remedy(profile: Profile, cause: str, clue: Clue, figures: Figures) -> str:
    """The most specific text all of whose values are known."""
    known = profile.cause(cause)
    own = clue.cause == cause
    values = figures.values(clue)
    texts = [clue.signature.remedy_computed, clue.signature.remedy] if own else []
    texts += [known.remedy_computed, known.remedy] if known else []
    return next((filled for text in texts if text and (filled := _filled(text, values))), "")


def with_outcome(text: str, known: Cause | None, restart: str) -> str:
    """The remedy, and what a restart does; where this answer is "no", the class's usual hope would contradict it."""
    if known is None or not known.again:
        return text
    return f"{text} {_EVERY_START if restart == 'no' else known.again}"


def _filled(text: str, values: dict[str, str]) -> str:
    try:
        return text.format_map(values)
    except (KeyError, IndexError, ValueError):
        return ""


def gigabytes(text: str) -> float | None:
    """Of "3.10 GiB", "448.00 MiB"."""
    found = _SIZE.search(text)
    amount = amount_of(found[1]) if found else None
    return amount * _UNIT_GB[found[2]] if found and amount is not None else None
