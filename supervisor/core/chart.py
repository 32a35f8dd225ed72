"""Draws the timeline of a start as a small chart of letters, one row per rank."""

from __future__ import annotations

from supervisor.core.log.stamps import text
from supervisor.snapshot import SpanView, StartupView
from supervisor.units import format_duration

_ROWS = 16
_LABEL = 10
_BETWEEN = "·"  # one phase is over, the next has not begun: waiting for others, mostly
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_NO_LETTER = "#"


def chart(view: StartupView, ended: float, like: str, width: int) -> str:
    """The chart with its legend; "" when nothing took any time."""
    spans = [span for span in view.timeline if span.phase]
    if not spans:
        return ""
    begin = min(span.begin for span in spans)
    length = max([ended, *(span.end or ended for span in spans)]) - begin
    if length <= 0:
        return ""
    letters = _letters(spans)
    columns = max(20, width - _LABEL - 4)
    names = list(dict.fromkeys(span.rank for span in spans))
    ranked = [name for name in names if name] or names
    shown = ranked[:_ROWS]
    rows = [_row(name, spans, begin, length, columns, ended, letters) for name in shown]
    if len(ranked) > len(shown):
        rows.append(f"  … and {len(ranked) - len(shown)} more")
    axis = _axis(text(begin, like), text(begin + length, like), columns)
    told = [span for span in spans if span.rank in shown]
    return "\n".join([axis, *rows, *_legend(told, ended, letters, width)])


def _letters(spans: list[SpanView]) -> dict[str, str]:
    """A letter for each phase: its first one that is free; no two have the same, unless there are more than letters."""
    chosen: dict[str, str] = {}
    for phase in dict.fromkeys(span.phase for span in spans):
        wanted = "".join(word[:1] for word in phase.split("-")) + phase + _LETTERS
        free = (letter for letter in wanted.upper() if letter.isalnum() and letter not in chosen.values())
        chosen[phase] = next(free, _NO_LETTER)
    return chosen


def _row(
    name: str, spans: list[SpanView], begin: float, length: float, columns: int, ended: float, letters: dict[str, str]
) -> str:
    own = [span for span in spans if span.rank == name]
    cells = [" "] * columns
    for column in range(int((min(span.begin for span in own) - begin) / length * columns), columns):
        cells[column] = _BETWEEN
    for span in own:
        first = int((span.begin - begin) / length * columns)
        last = int(((span.end if span.end is not None else ended) - begin) / length * columns)
        for column in range(min(first, columns - 1), min(max(last, first + 1), columns)):
            cells[column] = letters[span.phase]
    return f"  {name or 'launcher':<{_LABEL}}{''.join(cells).rstrip()}"


def _axis(begin: str, end: str, columns: int) -> str:
    begin, end = begin.rpartition(" ")[2], end.rpartition(" ")[2]
    return f"  {'':<{_LABEL}}{begin} {'─' * max(1, columns - len(begin) - len(end) - 2)} {end}"


def _legend(spans: list[SpanView], ended: float, letters: dict[str, str], width: int) -> list[str]:
    """Each phase's letter with the longest time any rank spent in it."""
    longest: dict[str, float] = {}
    totals: dict[tuple[str, str], float] = {}
    for span in spans:
        key = span.phase, span.rank
        totals[key] = totals.get(key, 0.0) + (span.end if span.end is not None else ended) - span.begin
        longest[span.phase] = max(longest.get(span.phase, 0.0), totals[key])
    entries = [f"{letters[phase]} {phase} {format_duration(length)}" for phase, length in longest.items()]
    lines = [""]
    for entry in entries:
        if lines[-1] and len(lines[-1]) + len(entry) + 3 > width - 2:
            lines.append("")
        lines[-1] += f" · {entry}" if lines[-1] else entry
    return [f"  {line}" for line in lines]
