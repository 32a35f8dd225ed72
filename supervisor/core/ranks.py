"""One rank of a start: the phase it is in, the phases it has been through, its progress and its memory."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from supervisor.core.log.figures import amount_of
from supervisor.events import LineMatched
from supervisor.snapshot import ProgressView, RankView, SpanView

_SPANS_KEPT = 64
_WORD = re.compile(r"([A-Z_a-z]+)(\d{1,9})")


class Step(msgspec.Struct):
    """One visit of a phase."""

    phase: str
    begin: float
    end: float | None = None
    memory_gb: float | None = None


class Rank:
    """Where one rank is."""

    def __init__(self, name: str, step: Step) -> None:
        self.name = name
        self.step = step
        self.outer: Step | None = None  # the phase around a nested one
        self.sort_key = tuple((word, int(number)) for word, number in _WORD.findall(name))
        self._visited: list[Step] = [step]
        self._progress: ProgressView | None = None
        self._label = ""
        self._memory_used_gb: float | None = None
        self._memory_left_gb: float | None = None
        self._last_progress = step.begin
        self._last_line = ""

    def hear(self, match: LineMatched) -> None:
        """The rank has said something; memory figures are taken from wherever they are."""
        self._last_line = match.text[:200]
        self._memory_left_gb = _gigabytes(match.fields.get("left", ""), self._memory_left_gb)
        self._memory_used_gb = _gigabytes(match.fields.get("used", ""), self._memory_used_gb)

    def enter(self, phase: str, now: float, *, nested: bool) -> bool:
        """Goes into that phase; False when it is there already (a phase may announce itself in several lines)."""
        if self.step.phase == phase and self.step.end is None:
            return False
        if self.outer is not None and self.outer.phase == phase:
            self._close(self.step, now)
            self.step, self.outer = self.outer, None
            return True
        if nested:
            self.outer = self.outer or self.step
        else:
            self._leave_all(now)
        self.step = Step(phase, now)
        if len(self._visited) < _SPANS_KEPT:
            self._visited.append(self.step)
        self._progress, self._label = None, ""
        self._last_progress = now
        return True

    def leave(self, phase: str, now: float, fields: dict[str, str]) -> str:
        """Ends the phase, if the rank is in it, and names it. What follows has not begun: it stays the rank's phase."""
        step, outer = self.step, self.outer
        if step.phase == phase and step.end is None:
            ended, self.step, self.outer = step, outer or step, None
        elif outer is not None and outer.phase == phase and outer.end is None:
            self._close(step, now)
            ended, self.step, self.outer = outer, outer, None
        else:
            return ""
        self._close(ended, now)
        ended.memory_gb = _gigabytes(fields.get("used", ""), None)
        self._last_progress = now
        return ended.phase

    def count(self, progress: ProgressView, label: str, now: float) -> bool:
        """Takes a bar's numbers; True when they have moved."""
        before = self._progress
        same = before is not None and before.total == progress.total and before.done == progress.done
        moved = not same or label != self._label
        self._progress, self._label = progress, label
        if moved:
            self._last_progress = now
        return moved

    def been_past(self, phase: str) -> bool:
        """Whether the rank has been in that phase and has left it."""
        return any(step.phase == phase and step.end is not None for step in self._visited)

    def view(self, stage: str) -> RankView:
        """The facts for readers."""
        return RankView(
            rank=self.name,
            stage=stage,
            phase=self.step.phase,
            since=self.step.begin,
            progress=self._progress,
            memory_used_gb=self._memory_used_gb,
            memory_left_gb=self._memory_left_gb,
            last_progress=self._last_progress,
            last_line=self._last_line,
        )

    def spans(self) -> list[SpanView]:
        """The bars of the timeline."""
        return [SpanView(self.name, step.phase, step.begin, step.end, step.memory_gb) for step in self._visited]

    def _leave_all(self, now: float) -> None:
        self._close(self.step, now)
        if self.outer is not None:
            self._close(self.outer, now)
            self.outer = None

    def _close(self, step: Step, now: float) -> None:
        if step.end is None:
            step.end = now


def timeline(ranks: Sequence[Rank], order: Sequence[str]) -> tuple[SpanView, ...]:
    """The phases of all, in that order of ranks; `order` is that of the phases in this start.

    The launcher (the rank without a name) announces what it begins and never its end: a phase of its is over once a
    rank has come beyond it.
    """
    firsts: dict[str, float] = {}
    for span in (span for rank in ranks if rank.name for span in rank.spans()):
        firsts[span.phase] = min(span.begin, firsts.get(span.phase, span.begin))
    return tuple(span if rank.name else _outdone(span, firsts, order) for rank in ranks for span in rank.spans())


def _outdone(span: SpanView, firsts: dict[str, float], order: Sequence[str]) -> SpanView:
    place = order.index(span.phase)
    beyond = [at for phase, at in firsts.items() if order.index(phase) > place and at >= span.begin]
    end = min([*beyond, *(() if span.end is None else (span.end,))], default=None)
    return msgspec.structs.replace(span, end=end)


def _gigabytes(text: str, otherwise: float | None) -> float | None:
    amount = amount_of(text)
    return otherwise if amount is None else amount
