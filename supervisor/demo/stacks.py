"""Finds the rank whose stack is not like the others': in a collective that hangs, the one that everybody waits for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

_TITLE = re.compile(r"^Process \d+: .*?_?(TP\d+)\s*$", re.MULTILINE)
_MAIN_THREAD = re.compile(r'^Thread [^\n]*"MainThread"\n((?:    [^\n]*\n?)+)', re.MULTILINE)
_FRAME = re.compile(r"^    ([^\s(]+)", re.MULTILINE)
_INNERMOST = 2


def odd_one_out(dumps: Iterable[str]) -> str:
    """One sentence about the ranks' stacks as py-spy dumps them, "" when they do not tell one rank from the rest."""
    places: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for dump in dumps:
        title, thread = _TITLE.search(dump), _MAIN_THREAD.search(dump)
        if title and thread:
            places[tuple(_FRAME.findall(thread[1])[:_INNERMOST])].append(title[1])
    if len(places) != 2:
        return ""
    (odd, odd_ranks), (usual, usual_ranks) = sorted(places.items(), key=lambda place: len(place[1]))
    if len(odd_ranks) == len(usual_ranks):
        return ""
    names = ", ".join(sorted(odd_ranks))
    return f"{names} is in {_place(odd)}, the other {len(usual_ranks)} ranks are in {_place(usual)}"


def _place(frames: tuple[str, ...]) -> str:
    inner, *callers = (frame.rpartition(".")[2] for frame in frames)
    return f"{inner} (called by {callers[0]})" if callers else inner
