"""Finds the rank whose stack is not like the others': in a collective that hangs, the one that everybody waits for.

Of two ranks none is the odd one: where both are is told, and whoever knows the engine sees which one waits.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

_FILE = re.compile(r"stack-.*?-([A-Z]+\d+(?:-[A-Z]+\d+)*)-\d+\.txt")  # stack-ROLE-RANK-PID.txt
_MAIN_THREAD = re.compile(r'^Thread [^\n]*"MainThread"\n((?:    [^\n]*\n?)+)', re.MULTILINE)
_FRAME = re.compile(r"^    ([^\s(]+)", re.MULTILINE)
_INNERMOST = 2
# What decorators, context managers and torch's modules put between a function and who called it.
_PASSED_THROUGH = frozenset(
    ("wrapper", "decorate_context", "__enter__", "__exit__", "__call__", "_call_impl", "_wrapped_call_impl")
)
_FILES_MAX = 128
_FILE_BYTES = 2**20


def odd_rank(bundle: str) -> str:
    """One sentence about the ranks' stacks in a bundle, "" when they tell nothing or cannot be read. Blocks."""
    stacks: dict[str, str] = {}
    try:
        for name in sorted(os.listdir(bundle))[:_FILES_MAX]:
            if found := _FILE.fullmatch(name):
                stacks[found[1].replace("-", " ")] = _text(Path(bundle, name))
    except OSError:  # pruned meanwhile, or somebody else's directory: the story goes without it
        return ""
    return odd_one_out(stacks)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_FILE_BYTES).decode(errors="replace")


def odd_one_out(stacks: Mapping[str, str]) -> str:
    """The same of stacks by rank, as py-spy dumps them."""
    places: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for rank, dump in stacks.items():
        if frames := _innermost(dump):
            places[frames].append(rank)
    if len(places) != 2:
        return ""
    (odd, odd_ranks), (usual, usual_ranks) = sorted(places.items(), key=lambda place: len(place[1]))
    if len(stacks) == 2:
        (one,), (other,) = odd_ranks, usual_ranks
        first, second = sorted([(one, odd), (other, usual)])
        return f"{first[0]} is in {_place(first[1])}, {second[0]} in {_place(second[1])}"
    if len(odd_ranks) == len(usual_ranks):
        return ""
    verb = "is" if len(odd_ranks) == 1 else "are"
    names = ", ".join(sorted(odd_ranks))
    return f"{names} {verb} in {_place(odd)}, the other {len(usual_ranks)} ranks are in {_place(usual)}"


def _innermost(dump: str) -> tuple[str, ...]:
    thread = _MAIN_THREAD.search(dump)
    frames = _FRAME.findall(thread[1]) if thread else []
    telling = [frame for frame in frames if frame.rpartition(".")[2] not in _PASSED_THROUGH]
    return tuple((telling or frames)[:_INNERMOST])


def _place(frames: tuple[str, ...]) -> str:
    inner, *callers = (frame.rpartition(".")[2] for frame in frames)
    return f"{inner} (called by {callers[0]})" if callers else inner
