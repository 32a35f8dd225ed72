"""Draws a start as one lane per rank: what each went through, over the pale bars of the usual start.

Everything is SVG with lengths in percent, since the content security policy allows no style in the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from supervisor.api.control import Clock
from supervisor.core import outlook
from supervisor.core.outlook import UsualPhase
from supervisor.snapshot import RankView, ServerSnapshot, SpanView, StartupView
from supervisor.units import format_duration
from supervisor.web.markup import Html, join, tag
from supervisor.web.stages import colour_of

LANES = 16  # at most; the slow ones first
_HEIGHT = 24
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_TICKS = 6
_ROOM = 1.04  # the last marker keeps off the edge
_NAME_ROOM = 0.14  # of the axis, for the name of a line
_LAST_TICK = 0.96  # of the axis: a tick beyond it would be cut off
_EDGE = 0.9  # of the axis: what is named beyond it is named to the left
_LETTER = 0.008  # of the axis, on a wide screen: a name that would be cut off there says nothing
_LAUNCHER = "launcher"


class Scale(msgspec.Struct, frozen=True):
    """The time axis: where it begins, and how many seconds it shows."""

    begin: float
    seconds: float

    def share(self, moment: float) -> float:
        """Where a moment lies, between 0 and 1."""
        return min(1.0, max(0.0, (moment - self.begin) / self.seconds))

    def percent(self, moment: float) -> str:
        """A moment as a length."""
        return f"{100 * self.share(moment):.2f}%"

    def width(self, begin: float, end: float) -> str:
        """A time as a length."""
        return f"{max(0.15, 100 * (min(end, self.begin + self.seconds) - begin) / self.seconds):.2f}%"


class Marks(msgspec.Struct, frozen=True):
    """The moments that are drawn through all lanes; None when there is none."""

    now: float | None
    deadline: float | None
    ready: float | None


def lanes(snapshot: ServerSnapshot, clock: Clock) -> Html | None:
    """The swim lanes of the current or last start; None when it never began."""
    start = snapshot.start
    if start is None or snapshot.started is None or not start.timeline:
        return None
    usual, marks, end = outlook.usual(snapshot), _marks(snapshot, clock), _end(snapshot, clock)
    scale = _scale(snapshot.started, usual, marks, end)
    drawing = _Drawing(snapshot, start, scale, marks, usual, end)
    shown, hidden = _chosen(start)
    rows = [drawing.lane(rank) for rank in shown]
    more = tag("p", f"and {hidden} more ranks", class_="more") if hidden else None
    picture = tag("div", drawing.axis(), drawing.usual_lane(), *rows, class_="lanes", aria_hidden="true")
    return tag("div", picture, more, _in_words(snapshot, start, clock), class_="timeline")


def _marks(snapshot: ServerSnapshot, clock: Clock) -> Marks:
    if snapshot.lifecycle.value != "starting":
        return Marks(None, None, snapshot.ready_since)
    now = clock.monotonic
    return Marks(now, snapshot.deadline, outlook.ready_at(snapshot, now))


def _end(snapshot: ServerSnapshot, clock: Clock) -> float:
    """Where bars that are still open end."""
    if snapshot.lifecycle.value == "starting":
        return clock.monotonic
    ends = [span.end or span.begin for span in snapshot.start.timeline] if snapshot.start else []
    known = snapshot.ready_since or (snapshot.exit.at if snapshot.exit else None)
    return known if known is not None else max([*ends, snapshot.lifecycle.since])


def _scale(begin: float, usual: Sequence[UsualPhase], marks: Marks, end: float) -> Scale:
    """A deadline far beyond everything else would squeeze the bars: it is then drawn at the edge."""
    natural = max(end, begin + (usual[-1].end_s if usual else 0.0), marks.ready or 0.0)
    seconds = max(1.0, natural - begin)
    if marks.deadline is not None and marks.deadline > natural:
        seconds = min(marks.deadline - begin, 2 * seconds)
    return Scale(begin, seconds * _ROOM)


def _chosen(start: StartupView) -> tuple[list[str], int]:
    """The lanes to draw, slow ranks first when there are too many, and how many are left out."""
    named = [rank.rank for rank in start.ranks if rank.rank]
    names = named or list(dict.fromkeys(span.rank for span in start.timeline)) or [""]
    if len(names) <= LANES:
        return names, 0
    slow = outlook.laggards(start)
    first = [name for name in names if name in slow][:LANES]
    rest = [name for name in names if name not in slow][: LANES - len(first)]
    return [name for name in names if name in {*first, *rest}], len(names) - LANES


class _Drawing:
    """One picture: what all its lanes share."""

    def __init__(
        self,
        snapshot: ServerSnapshot,
        start: StartupView,
        scale: Scale,
        marks: Marks,
        usual: Sequence[UsualPhase],
        end: float,
    ) -> None:
        self._engine = snapshot.engine
        self._start = start
        self._scale = scale
        self._marks = marks
        self._end = end
        self._begin = scale.begin
        self._slow = outlook.laggards(start)
        self._starting = snapshot.lifecycle.value == "starting"
        self._ghosts = join(self._ghost(phase) for phase in usual)
        self._usual = usual

    def axis(self) -> Html:
        """Ticks, and above them the names of the lines."""
        step = next((step for step in _STEPS_S if self._scale.seconds / step <= _TICKS), _STEPS_S[-1])
        ticks = [
            tag("text", _tick(number * step), x=self._scale.percent(self._begin + number * step), y=26, class_="tick")
            for number in range(math.floor(_LAST_TICK * self._scale.seconds / step) + 1)
        ]
        return _row("", tag("svg", *self._names(), *ticks, height=30, class_="axis"), None)

    def _names(self) -> list[Html]:
        """From the right; a name that would run into the one before it is left out."""
        marks, named, left = self._marks, list[Html](), math.inf
        for moment, text, kind in (
            (marks.deadline, "stalled", "deadline-name"),
            (marks.ready, "ready", "ready-name"),
            (marks.now, "now", "now-name"),
        ):
            if moment is None or left - moment < self._scale.seconds * _NAME_ROOM:
                continue
            edge = " at-edge" if self._scale.share(moment) > _EDGE else ""
            named.append(tag("text", text, x=self._scale.percent(moment), y=11, class_=f"{kind}{edge}"))
            left = moment
        return named

    def usual_lane(self) -> Html | None:
        """The usual start by itself, with its names."""
        if not self._usual:
            return None
        bars = [
            self._named_bar(p.phase, self._begin + p.begin_s, self._begin + p.end_s, "bar pale") for p in self._usual
        ]
        return _row("usual", self._picture(*bars), format_duration(self._usual[-1].end_s), "usual")

    def lane(self, rank: str) -> Html:
        """One rank's bars over the usual ones; before its first one, what the launcher did for it."""
        spans = [span for span in self._start.timeline if span.rank == rank]
        bars = [self._span(span) for span in (*(self._before(spans) if rank else ()), *spans)]
        view = next((view for view in self._start.ranks if view.rank == rank), None)
        slow = rank in self._slow
        note = _note(view) if view and self._starting else None
        return _row(rank or _LAUNCHER, self._picture(self._ghosts, *bars), note, "slow" if slow else "")

    def _before(self, spans: Sequence[SpanView]) -> Iterable[SpanView]:
        """The launcher goes on beside the ranks, with phases that would peep out between their bars."""
        first = min((span.begin for span in spans), default=math.inf)
        for span in self._start.timeline:
            if span.rank == "" and span.begin < first:
                end = self._end if span.end is None else span.end
                yield msgspec.structs.replace(span, end=span.end if end < first else first)

    def _picture(self, *inner: Html) -> Html:
        lines = [
            self._line(self._marks.ready, "ready-line"),
            self._line(self._marks.now, "now-line"),
            self._line(self._marks.deadline, "deadline-line"),
        ]
        return tag("svg", *inner, *lines, height=_HEIGHT, class_="bars")

    def _line(self, moment: float | None, kind: str) -> Html | None:
        if moment is None:
            return None
        x = self._scale.percent(moment)
        return tag("line", x1=x, x2=x, y1=0, y2=_HEIGHT, class_=kind)

    def _ghost(self, phase: UsualPhase) -> Html:
        begin, end = self._begin + phase.begin_s, self._begin + phase.end_s
        colour = colour_of(self._engine, phase.phase)
        x, width = self._scale.percent(begin), self._scale.width(begin, end)
        return tag("rect", x=x, width=width, y=1, height=_HEIGHT - 2, class_=f"ghost c{colour}")

    def _span(self, span: SpanView) -> Html:
        open_ = span.end is None and self._starting
        kind = "bar open" if open_ else "bar"
        return self._named_bar(span.phase, span.begin, self._end if span.end is None else span.end, kind)

    def _named_bar(self, phase: str, begin: float, end: float, kind: str) -> Html:
        """The name is cut off where the bar ends: an inner svg clips."""
        colour = colour_of(self._engine, phase)
        room = (end - begin) / self._scale.seconds >= len(phase) * _LETTER
        return tag(
            "svg",
            tag("title", f"{phase}: {format_duration(max(0.0, end - begin))}"),
            tag("rect", width="100%", height="100%", rx=2, class_=f"{kind} c{colour}"),
            tag("text", phase, x=4, y=12, class_="name") if room else None,
            x=self._scale.percent(begin),
            width=self._scale.width(begin, end),
            y=4,
            height=_HEIGHT - 8,
        )


def _row(label: str, picture: Html, note: str | None, kind: str = "") -> Html:
    return tag(
        "div",
        tag("span", label, class_="rank"),
        picture,
        tag("span", note, class_="note"),
        class_=f"lane {kind}".strip(),
    )


def _note(view: RankView) -> str:
    bar = f" {view.progress.ratio:.0%}" if view.progress and view.progress.ratio < 1 else ""
    return f"{view.phase}{bar}"


def _tick(seconds: float) -> str:
    return "0" if seconds == 0 else format_duration(seconds)


def _in_words(snapshot: ServerSnapshot, start: StartupView, clock: Clock) -> Html:
    """The same for who does not see the picture."""
    rows = [_rank_row(rank, clock) for rank in start.ranks if rank.rank] or [_rank_row(r, clock) for r in start.ranks]
    head = tag("tr", *(tag("th", text, scope="col") for text in ("Rank", "Phase", "For", "Progress")))
    caption = tag("caption", f"Ranks of {snapshot.name}. {start.laggard}")
    return tag("div", tag("table", caption, tag("thead", head), tag("tbody", *rows)), class_="unseen")


def _rank_row(rank: RankView, clock: Clock) -> Html:
    since = format_duration(max(0.0, clock.monotonic - rank.since))
    bar = f"{rank.progress.done} of {rank.progress.total} {rank.progress.unit}" if rank.progress else ""
    cells: Iterable[str] = (rank.phase, since, bar)
    return tag("tr", tag("th", rank.rank or _LAUNCHER, scope="row"), *(tag("td", cell) for cell in cells))
