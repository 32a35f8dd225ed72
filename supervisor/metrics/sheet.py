"""Collects samples by metric and writes them as Prometheus text or OpenMetrics.

The Python client's writer takes 10 µs a sample, 140 ms for 64 servers; this one under 10 ms, since most of what a
server says is what it said at the scrape before (docs/decisions/0011). The client's parsers check it in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from supervisor.core.histogram import Histogram
from supervisor.metrics.families import FAMILIES, Family, Kind

Values: TypeAlias = Mapping[tuple[str, ...], float]  # by the labels in which the samples of a group differ

_REMEMBERED = 20_000  # series and groups; forgotten all at once, since only servers that come and go make new ones
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


class Memo:
    """Remembers how each series is written, and each group of series as it was last."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, tuple[str, ...]], str] = {}
        self.groups: dict[tuple[str, tuple[str, ...]], tuple[object, str]] = {}
        self.books: dict[str, tuple[object, dict[str, list[str]]]] = {}

    def tidy(self) -> None:
        """Between two scrapes."""
        if len(self.series) + len(self.groups) + len(self.books) > _REMEMBERED:
            self.series.clear()
            self.groups.clear()
            self.books.clear()


class Sheet:
    """One scrape. Series that nobody adds are not there: those of removed servers are gone by themselves."""

    def __init__(self, memo: Memo) -> None:
        memo.tidy()
        self._memo = memo
        self._lines: dict[str, list[str]] = {family.name: [] for family in FAMILIES}

    def add(self, family: Family, value: float | None, *labels: str) -> None:
        """One sample; none for None, which means that there is no such fact now."""
        if value is None:
            return
        key = (family.name, labels)
        series = self._memo.series.get(key)
        if series is None:
            series = self._memo.series[key] = _series(family.sample, family.labels, labels)
        self._lines[family.name].append(f"{series}{_number(value)}\n")

    def one_of(self, family: Family, names: Iterable[str], current: str, *labels: str) -> None:
        """A state set: 1 for the current name, 0 for the others."""
        key, state = (family.name, labels), (current, tuple(names))
        known = self._memo.groups.get(key)
        if known is None or known[0] != state:
            series = [(_series(family.sample, family.labels, (*labels, name)), int(name == current)) for name in names]
            known = self._memo.groups[key] = (state, "".join(f"{name}{value}\n" for name, value in series))
        self._lines[family.name].append(known[1])

    def each(self, family: Family, names: Iterable[str], values: Mapping[str, float], *labels: str) -> None:
        """A sample per name, 0 when it has no value: else a counter's first increment would be invisible."""
        self.group(family, {(name,): values.get(name, 0) for name in names}, *labels)

    def group(self, family: Family, values: Values, *labels: str) -> None:
        """Several samples whose last labels are given with their values; written anew only when one has changed."""
        key = (family.name, labels)
        known = self._memo.groups.get(key)
        if known is None or known[0] != values:
            series = [(_series(family.sample, family.labels, (*labels, *last)), of) for last, of in values.items()]
            known = self._memo.groups[key] = (values, "".join(f"{name}{_number(of)}\n" for name, of in series))
        self._lines[family.name].append(known[1])

    def histogram(self, family: Family, observed: Histogram | None, *labels: str) -> None:
        """All buckets, the count and the sum."""
        counts = tuple(observed.counts) if observed else (0,) * (len(family.buckets) + 1)
        total = observed.total if observed else 0.0
        key = (family.name, labels)
        known = self._memo.groups.get(key)
        if known is None or known[0] != (counts, total):
            known = self._memo.groups[key] = ((counts, total), _histogram(family, labels, counts, total))
        self._lines[family.name].append(known[1])

    def book(self, name: str, source: object, write: Callable[[Sheet], None]) -> None:
        """What `write` writes of a source that never changes, only while it is another object than last time."""
        known = self._memo.books.get(name)
        if known is None or known[0] is not source:
            part = Sheet(self._memo)
            write(part)
            known = self._memo.books[name] = (source, {name: lines for name, lines in part._lines.items() if lines})
        for family, lines in known[1].items():
            self._lines[family] += lines

    def write(self, *, openmetrics: bool) -> str:
        """The page. Families without samples are left out."""
        parts: list[str] = []
        for family in FAMILIES:
            if lines := self._lines[family.name]:
                parts.append(_head(family, openmetrics=openmetrics))
                parts += lines
        if openmetrics:
            parts.append("# EOF\n")
        return "".join(parts)


def _histogram(family: Family, labels: Sequence[str], counts: Iterable[int], total: float) -> str:
    lines, seen, names = [], 0, (*family.labels, "le")
    for bound, count in zip((*family.buckets, math.inf), counts, strict=True):
        seen += count
        lines.append(f"{_series(f'{family.name}_bucket', names, (*labels, _bound(bound)))}{seen}\n")
    return "".join([*lines, _count_and_sum(family, labels, seen, total)])


def _count_and_sum(family: Family, labels: Sequence[str], count: int, total: float) -> str:
    rows = (("_count", count), ("_sum", total))
    return "".join(f"{_series(f'{family.name}{end}', family.labels, labels)}{_number(value)}\n" for end, value in rows)


def _head(family: Family, *, openmetrics: bool) -> str:
    """The text format types what is queried, OpenMetrics the family; the text format has no info."""
    name = family.name if openmetrics else family.sample
    kind = Kind.GAUGE if family.kind is Kind.INFO and not openmetrics else family.kind
    return f"# HELP {name} {family.help}\n# TYPE {name} {kind}\n"


def _series(name: str, labels: Sequence[str], values: Sequence[str]) -> str:
    """`name{label="value"} ` with its blank."""
    inner = ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True))
    return f"{name}{{{inner}}} " if inner else f"{name} "


def _escaped(value: str) -> str:
    """Lone surrogates (a path that is not UTF-8) have no place on the page."""
    return value.translate(_ESCAPES).encode("utf-8", "replace").decode()


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _bound(bound: float) -> str:
    return "+Inf" if math.isinf(bound) else repr(bound)
