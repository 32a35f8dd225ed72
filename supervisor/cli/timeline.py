"""Draws the phases of a start as lanes of letters, one a rank, with the deadline that threatens."""

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

_LABEL = 10
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
    end = ready or max(span["start"] + span["seconds"] for span in spans)
    stall = _moment(found["stall_at"]) - begin if found["stall_at"] and not _over(found) else None
    length = max(end - begin, 1e-3)
    drawn = max(length, stall) if stall is not None and stall < _FAR * length else length
    drawn *= 1.0 if ready is None else 1 + _BEYOND
    scale = (max(_COLUMNS_MIN, columns - _LABEL - 1)) / drawn
    yield f"{clean(found['name'])}, attempt {found['attempt']}: {_outcome(found, length)}"
    yield f"{'':{_LABEL}}0 s{words(drawn):>{max(1, int(drawn * scale) - 2)}}"
    yield from _lanes(spans, begin, scale, None if stall is None or stall > drawn else stall)
    yield from _legend(spans, found["usual"], columns)
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


def _lanes(spans: list[Any], begin: float, scale: float, stall: float | None) -> Iterator[str]:
    letters = _letters(spans)
    ranks = list(dict.fromkeys(span["rank"] for span in spans))
    for rank in ranks[:_LANES_MAX]:
        cells = _lane([span for span in spans if span["rank"] == rank], begin, scale, letters)
        if stall is not None:
            mark = int(stall * scale)
            cells += [" "] * (mark + 1 - len(cells))
            cells[mark] = _DEADLINE
        yield f"{clean(rank or 'launcher'):<{_LABEL}}{''.join(cells)}"
    if len(ranks) > _LANES_MAX:
        yield f"{'':{_LABEL}}and {len(ranks) - _LANES_MAX} more"


def _lane(spans: list[Any], begin: float, scale: float, letters: dict[str, str]) -> list[str]:
    last = max(int((span["start"] + span["seconds"] - begin) * scale) for span in spans)
    first = min(int((span["start"] - begin) * scale) for span in spans)
    cells = [" "] * first + [_WAITING] * (max(last, first + 1) - first)
    for span in sorted(spans, key=lambda one: one["start"]):
        at = int((span["start"] - begin) * scale)
        stop = int((span["start"] + span["seconds"] - begin) * scale)
        for column in range(min(at, len(cells) - 1), min(max(stop, at + 1), len(cells))):
            cells[column] = letters[span["phase"]]
    return cells


def _letters(spans: list[Any]) -> dict[str, str]:
    """A letter for each phase: the first of its own that is free."""
    chosen: dict[str, str] = {}
    for phase in dict.fromkeys(span["phase"] for span in spans):
        wanted = [word[0] for word in phase.split("-") if word] + list(phase) + list(_LETTERS)
        free = (letter for letter in (*map(str.upper, wanted), *_LETTERS) if letter not in chosen.values())
        chosen[phase] = next((letter for letter in free if letter.isascii() and letter.isalpha()), "?")
    return chosen


def _legend(spans: list[Any], usual: dict[str, float], columns: int) -> Iterator[str]:
    """Each phase's letter, the longest time that a rank spent in it, and what is usual."""
    longest: dict[str, float] = {}
    for span in spans:
        longest[span["phase"]] = max(longest.get(span["phase"], 0.0), span["seconds"])
    letters = _letters(spans)
    line = ""
    for phase, seconds in longest.items():
        known = f" (usually {words(usual[phase])})" if phase in usual else ""
        took = "" if phase == _SERVING else f" {words(seconds)}{known}"  # it goes on, and nothing is usual
        entry = f"{letters[phase]} {clean(phase)}{took}"
        if line and len(line) + len(entry) + 3 > columns - _LABEL:
            yield f"{'':{_LABEL}}{line}"
            line = ""
        line += f"   {entry}" if line else entry
    yield f"{'':{_LABEL}}{line}"


def _moment(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
