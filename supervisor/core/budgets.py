"""The deadlines of a start's phases in three layers: the profile's, the configuration's, and what was learned."""

from __future__ import annotations

import math

from supervisor.config import DetectorMode
from supervisor.core.history import History, Lesson
from supervisor.core.settings import PhaseLimit, Settings
from supervisor.snapshot import DeadlineView


class Budgets:
    """Answers for each phase how long it may be silent, and where that comes from."""

    def __init__(self, settings: Settings, history: History) -> None:
        self._settings = settings
        self._history = history
        self._lessons: dict[str, Lesson | None] = {}
        self._views: tuple[DeadlineView, ...] | None = None

    def learn_anew(self) -> None:
        """The history has grown."""
        self._lessons.clear()
        self._views = None

    def limit(self, phase: str, pace: float = 1.0) -> PhaseLimit:
        """The deadlines that act. What was learned only ever shortens the patience with silence.

        A start that has been `pace` times slower than usual so far may be silent for as many times longer; one whose
        processes are idle may not: slow work is work.
        """
        base = self._settings.limit(phase)
        lesson = self._lesson(phase)
        if lesson is None or not self._acts(lesson) or not _shortens(lesson.stall_s(), base):
            return base
        idle_s = min(base.idle_s, lesson.stall_s()) if base.idle_s < math.inf else base.idle_s
        return PhaseLimit(min(base.stall_s, lesson.stall_s(pace)), base.limit_s, idle_s, base.floor_s, "learned")

    def observed_stall_s(self, phase: str, pace: float = 1.0) -> float | None:
        """The learned patience that does not act yet; None when it acts or there is none."""
        lesson = self._lesson(phase)
        if lesson is None or self._acts(lesson) or not _shortens(lesson.stall_s(pace), self._settings.limit(phase)):
            return None
        return lesson.stall_s(pace)

    def usual_s(self, phase: str) -> float | None:
        """How long the phase usually takes; None while too few starts tell."""
        lesson = self._lesson(phase)
        return lesson.median_s if lesson is not None and lesson.enough else None

    def usual(self, phase: str) -> str:
        """What is usual, in words for a reason; "" when nothing is known."""
        lesson = self._lesson(phase)
        if lesson is None:
            return ""
        times = "once before" if lesson.samples == 1 else f"in {lesson.samples} starts"
        return f"never silent for more than {max(1.0, lesson.longest_silence_s):.0f} s {times}"

    def views(self) -> tuple[DeadlineView, ...]:
        """Every phase's deadlines, explained. Kept until the next lesson: every snapshot has them."""
        if self._views is None:
            self._views = tuple(self._view(phase) for phase in self._settings.deadlines)
        return self._views

    def _view(self, phase: str) -> DeadlineView:
        limit, lesson = self.limit(phase), self._lesson(phase)
        return DeadlineView(
            phase,
            _finite(limit.stall_s),
            _finite(limit.idle_s),
            _finite(limit.limit_s),
            limit.source,
            samples=lesson.samples if lesson else 0,
            median_s=lesson.median_s if lesson else None,
            longest_silence_s=lesson.longest_silence_s if lesson else None,
            mode="enforce" if lesson is None or self._acts(lesson) else "observe",
            text=_explain(phase, limit, lesson),
        )

    def _lesson(self, phase: str) -> Lesson | None:
        if phase not in self._lessons:
            floor_s = self._settings.limit(phase).floor_s
            self._lessons[phase] = self._history.lesson(self._settings.history_key, phase, floor_s)
        return self._lessons[phase]

    def _acts(self, lesson: Lesson) -> bool:
        mode = self._settings.detectors.learned
        return mode is DetectorMode.ENFORCE or (mode is DetectorMode.AUTO and lesson.enough)


def _shortens(stall_s: float, base: PhaseLimit) -> bool:
    """A deadline that is switched off stays off, whatever was learned."""
    return stall_s < base.stall_s < math.inf


def _explain(phase: str, limit: PhaseLimit, lesson: Lesson | None) -> str:
    silence = f"{limit.stall_s:.0f} s of silence ({limit.source})" if math.isfinite(limit.stall_s) else ""
    whole = f"{limit.limit_s:.0f} s in all" if math.isfinite(limit.limit_s) else ""
    deadline = f"deadline {', '.join(filter(None, (silence, whole)))}" if silence or whole else "no deadline"
    if lesson is None:
        return f"{phase}: no earlier start, {deadline}"
    starts = "1 start" if lesson.samples == 1 else f"{lesson.samples} starts"
    usual = f"median {lesson.median_s:.0f} s, longest silence {lesson.longest_silence_s:.0f} s"
    return f"{phase}: {starts}, {usual}, {deadline}"


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
