"""Draws the phases of a start as lanes of letters, one a rank, over the usual one, with the deadline that threatens."""

from __future__ import annotations

import sys
from datetime import datetime

from supervisor.cli import codes
from supervisor.cli.duration import words
from supervisor.cli.past import attempt_query
from supervisor.cli.reading import segment
from supervisor.cli.text import as_json, clean, say, width

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from typing import Any

    from supervisor.cli.connection import Client

_LABEL_MIN = 10
_SLOW = "> "
_USUAL = "usual"
_COLUMNS_MIN = 20
_LANES_MAX = 32
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_WAITING = "."  # one phase is over, the next has not begun: mostly, others are waited for
_DEADLINE = "|"
_BEYOND = 0.1  # of a finished start: what is drawn of the serving after it
_SERVING = "healthy"
_FAR = 2.0  # a deadline so many times further away than all that has been is told, and not drawn


def timeline(client: Client, options: Namespace) -> int:
    """The present or last start, or that of an attempt whose evidence is kept."""
    found = client.get(f"/v1/servers/{segment(options.name)}/timeline{attempt_query(options)}")
    if options.json:
        say(as_json(found))
        return codes.OK
    for line in draw(found, width(sys.stdout)):
        say(line)
    return codes.OK


def draw(found: Any, columns: int) -> Iterator[str]:
    """The lines of the drawing."""
    spans = [{**span, "start": _moment(span["begin"])} for span in found["spans"] if span["phase"]]
    if not spans:
        yield f"{clean(found['name'])}: no start is known"
        return
    begin = min(span["start"] for span in spans)
    ready = _moment(found["ready"]) if found["ready"] else None
    if ready is not None:
        spans = list(_until(spans, ready + _BEYOND * (ready - begin)))
    ended = _moment(found["ended"]) if found["ended"] else None
    end = ready or ended or max(span["start"] + span["seconds"] for span in spans)
    stall = _moment(found["stall_at"]) - begin if found["stall_at"] and not _over(found) else None
    length = max(end - begin, 1e-3)
    usual = list(_usual(spans, found["usual"], begin))
    ahead = () if _over(found) else (stall, _length(usual, begin))
    further = [moment for moment in ahead if moment is not None and moment < _FAR * length]
    drawn = max(length, *further) if further else length
    drawn *= 1.0 if ready is None else 1 + _BEYOND
    label = max(_LABEL_MIN, *(len(_SLOW + span["rank"]) + 1 for span in spans))
    scale = (max(_COLUMNS_MIN, columns - label - 1)) / drawn
    yield f"{clean(found['name'])}, attempt {found['attempt']}: {_outcome(found, length)}"
    yield f"{'':{label}}0 s{words(drawn):>{max(1, int(drawn * scale) - 2)}}"
    seen_stall = None if stall is None or stall > drawn else stall
    drawing = _Drawing(begin, scale, label, _letters([*spans, *usual]), seen_stall)
    if usual:
        yield drawing.lane(_USUAL, list(_until(usual, begin + drawn)), slow=False)
    yield from _lanes(spans, drawing, set() if _over(found) else _slow(spans, found["phase"]))
    yield from _legend([*spans, *_until(usual, begin + drawn)], found["usual"], columns, drawing)
    if stall is not None:
        yield f"{_DEADLINE} called stalled {words(stall)} after the launch, {_left(found['stall_in_s'])}"
    if found["laggard"] and not _over(found):
        yield clean(found["laggard"])


def _until(spans: list[Any], end: float) -> Iterator[Any]:
    """What had begun by then, no longer than until then: days of serving are no part of a start."""
    for span in spans:
        if span["start"] <= end:
            yield {**span, "seconds": min(span["seconds"], end - span["start"])}


def _over(found: Any) -> bool:
    return bool(found["ready"] or found["ended"])


def _outcome(found: Any, length: float) -> str:
    if found["ready"]:
        return f"healthy after {words(length)}"
    if found["ended"]:
        return f"ended in {clean(found['phase'])}, {words(length)} after its launch"
    return f"in {clean(found['phase'])}, {words(length)} so far"


def _left(seconds: float) -> str:
    return f"in {words(seconds)}" if seconds > 0 else "which has passed"


def _usual(spans: list[Any], lengths: dict[str, float], begin: float) -> Iterator[Any]:
    """The usual start: the phases of this one in its order, then those that are known to follow."""
    if not lengths:
        return
    present = _longest(spans)
    for phase in dict.fromkeys([*present, *lengths]):
        if phase in lengths and phase != _SERVING:
            yield {"rank": _USUAL, "phase": phase, "start": begin, "seconds": lengths[phase]}
        begin += lengths.get(phase, present.get(phase, 0.0))


def _longest(spans: list[Any]) -> dict[str, float]:
    """The longest time that a rank spent in each phase, in the order of their first beginnings."""
    found: dict[str, float] = {}
    for span in sorted(spans, key=lambda one: one["start"]):
        found[span["phase"]] = max(found.get(span["phase"], 0.0), span["seconds"])
    return found


def _length(spans: list[Any], begin: float) -> float | None:
    return max((span["start"] + span["seconds"] - begin for span in spans), default=None)


def _slow(spans: list[Any], phase: str) -> set[str]:
    """The ranks that are still in the phase that the start as a whole is in, unless all are."""
    newest = {span["rank"]: span["phase"] for span in sorted(spans, key=lambda one: one["start"]) if span["rank"]}
    slow = {rank for rank, at in newest.items() if at == phase}
    return slow if len(slow) < len(newest) else set()


def _lanes(spans: list[Any], drawing: _Drawing, slow: set[str]) -> Iterator[str]:
    """With too many ranks, those that hold the others up before all others."""
    ranks = list(dict.fromkeys(span["rank"] for span in spans))
    shown = sorted(ranks, key=lambda rank: rank not in slow)[:_LANES_MAX]
    for rank in ranks:
        if rank in shown:
            own = [span for span in spans if span["rank"] == rank]
            yield drawing.lane(rank or "launcher", own, slow=rank in slow)
    if len(ranks) > len(shown):
        yield f"{'':{drawing.label}}and {len(ranks) - len(shown)} more"


class _Drawing:
    """What all lanes share: where they begin, columns a second, the width of the labels, letters, the deadline."""

    def __init__(self, begin: float, scale: float, label: int, letters: dict[str, str], stall: float | None) -> None:
        self.label = label
        self.letters = letters
        self._begin = begin
        self._scale = scale
        self._stall = stall

    def lane(self, name: str, spans: list[Any], *, slow: bool) -> str:
        """One line: the label, the phases as letters, the deadline through all lanes."""
        cells = self._cells(spans)
        if self._stall is not None:
            mark = int(self._stall * self._scale)
            cells += [" "] * (mark + 1 - len(cells))
            cells[mark] = _DEADLINE
        label = f"{_SLOW if slow else ''}{clean(name)}"
        return f"{label:<{self.label}}{''.join(cells)}"

    def _column(self, moment: float) -> int:
        return int((moment - self._begin) * self._scale)

    def _cells(self, spans: list[Any]) -> list[str]:
        last = max(self._column(span["start"] + span["seconds"]) for span in spans)
        first = min(self._column(span["start"]) for span in spans)
        cells = [" "] * first + [_WAITING] * (max(last, first + 1) - first)
        for span in sorted(spans, key=lambda one: one["start"]):
            at, stop = self._column(span["start"]), self._column(span["start"] + span["seconds"])
            for column in range(min(at, len(cells) - 1), min(max(stop, at + 1), len(cells))):
                cells[column] = self.letters[span["phase"]]
        return cells


def _letters(spans: list[Any]) -> dict[str, str]:
    """A letter for each phase: the first of its own that is free. Earlier phases choose first: attempts look alike."""
    chosen: dict[str, str] = {}
    for phase in dict.fromkeys(span["phase"] for span in sorted(spans, key=lambda span: float(span["start"]))):
        wanted = [word[0] for word in phase.split("-") if word] + list(phase) + list(_LETTERS)
        free = (letter for letter in (*map(str.upper, wanted), *_LETTERS) if letter not in chosen.values())
        chosen[phase] = next((letter for letter in free if letter.isascii() and letter.isalpha()), "?")
    return chosen


def _legend(spans: list[Any], usual: dict[str, float], columns: int, drawing: _Drawing) -> Iterator[str]:
    """Each phase's letter, the longest time that a rank spent in it, and what is usual."""
    present = _longest([span for span in spans if span["rank"] != _USUAL])
    line = ""
    for phase in dict.fromkeys([*present, *(span["phase"] for span in spans)]):
        usually = f" (usually {words(usual[phase])})" if phase in usual else ""
        spent = f" {words(present[phase])}" if phase in present else ""  # or it is still to come
        took = "" if phase == _SERVING else f"{spent}{usually}"  # it goes on, and nothing is usual
        entry = f"{drawing.letters[phase]} {clean(phase)}{took}"
        if line and len(line) + len(entry) + 3 > columns - drawing.label:
            yield f"{'':{drawing.label}}{line}"
            line = ""
        line += f"   {entry}" if line else entry
    yield f"{'':{drawing.label}}{line}"


def _moment(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
