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


def reach(run: Callable[[], object]) -> Reach:
    """Of whatever is run. Seconds are the processor's: a crowded machine makes no test longer."""
    seen: dict[CodeType, set[int]] = {}
    begun = time.process_time()
    before = sys.gettrace()
    sys.settrace(_tracer(seen))
    try:
        run()
    finally:
        sys.settrace(before)
    lines: Lines = {}
    for code, found in seen.items():
        lines.setdefault(_module(code), set()).update(found)
    return Reach(time.process_time() - begun, lines)


def _tracer(seen: dict[CodeType, set[int]]) -> Callable[..., Any]:
    whole: dict[CodeType, set[int]] = {}

    def called(frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if not code.co_filename.startswith(_CORE):
            return None
        if code not in seen:
            seen[code] = set()
            whole[code] = {line for _, _, line in code.co_lines() if line is not None} - {code.co_firstlineno}
        if whole[code] <= seen[code]:
            return None  # nothing new can be seen: run at full speed
        found = seen[code]

        def line(frame: FrameType, event: str, _argument: object) -> Any:
            if event == "line":
                found.add(frame.f_lineno)
            return line

        return line

    return called


def _module(code: CodeType) -> str:
    return code.co_filename.removeprefix(_CORE).removesuffix(".py").replace("/", ".")
