"""Which lines of the core each test runs, and how long it takes: whoever does not run a mistake cannot notice it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec

import supervisor.core

_CORE = str(Path(supervisor.core.__file__).parent) + "/"
Lines = dict[str, set[int]]
"""By module, as `fleet.starts`."""


class Reach(msgspec.Struct, frozen=True):
    """Of one test."""

    seconds: float
    lines: Lines

    def meets(self, module: str, lines: range) -> bool:
        return not self.lines.get(module, set()).isdisjoint(lines)


class _Seen(msgspec.Struct):
    """Of one function: the lines that were run, and those that were not."""

    code: CodeType
    lines: set[int]
    others: set[int]


def reach(run: Callable[[], object]) -> Reach:
    """Of whatever is run. Seconds are the processor's: a crowded machine makes no test longer."""
    seen: dict[int, _Seen] = {}  # by id: to hash a function's code costs more than to run it
    begun = time.process_time()
    before = sys.gettrace()
    sys.settrace(_tracer(seen))
    try:
        run()
    finally:
        sys.settrace(before)
    lines: Lines = {}
    for one in seen.values():
        lines.setdefault(_module(one.code), set()).update(one.lines)
    return Reach(time.process_time() - begun, lines)


def _tracer(seen: dict[int, _Seen]) -> Callable[..., Any]:
    def called(frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if not code.co_filename.startswith(_CORE):
            return None
        found = seen.get(id(code))
        if found is None:
            every = {line for _, _, line in code.co_lines() if line is not None}
            found = seen[id(code)] = _Seen(code, set(), every - {code.co_firstlineno})
        if not found.others:
            return None  # nothing new can be seen: run at full speed
        lines, others = found.lines, found.others

        def line(frame: FrameType, event: str, _argument: object) -> Any:
            if event == "line":
                lines.add(frame.f_lineno)
                others.discard(frame.f_lineno)
            return line

        return line

    return called


def _module(code: CodeType) -> str:
    return code.co_filename.removeprefix(_CORE).removesuffix(".py").replace("/", ".")
