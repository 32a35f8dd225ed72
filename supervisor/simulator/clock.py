"""Scales the time of a run and writes its log lines."""

from __future__ import annotations

import os
import time

from supervisor.simulator.options import Options
from supervisor.simulator.plan import Emission

_STDOUT, _STDERR = 1, 2
SHORTEST_POLL_S = 0.05  # real seconds: no loop of the simulator looks more often, whatever the speed
_CHUNK = 64 * 1024


def is_quiet(options: Options) -> bool:
    """With these levels every line below a warning disappears, all phase markers included."""
    return options.log_level.lower() in ("warning", "error", "critical")


class Clock:
    """Unscaled seconds in, real waiting out: at speed 100 a second lasts 10 ms."""

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def now(self) -> float:
        return time.monotonic()

    def real(self, seconds: float) -> float:
        return seconds / self._speed

    def sleep(self, seconds: float) -> None:
        time.sleep(self.real(seconds))


class Log:
    """Writes to the two streams the way Python's logging and the C++ libraries do: one write per record."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def emit(self, emission: Emission) -> None:
        line = emission.line(_stamp())
        descriptor = _STDOUT if emission.stdout else _STDERR
        if emission.repeat == 1:
            _write(descriptor, line)
            return
        per_chunk = max(1, _CHUNK // len(line))
        for first in range(0, emission.repeat, per_chunk):
            _write(descriptor, line * min(per_chunk, emission.repeat - first))

    def record(self, text: str, prefix: str = "", stdout: bool = False, loud: bool = False) -> None:
        """Errors and warnings are loud: they pass --log-level warning."""
        if loud or not self._quiet:
            _write(_STDOUT if stdout else _STDERR, f"[{_stamp()}{prefix}] {text}\n".encode())

    def raw(self, text: str | bytes, stdout: bool = False) -> None:
        _write(_STDOUT if stdout else _STDERR, text.encode() if isinstance(text, str) else text)


def _stamp() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except BrokenPipeError:
        return  # logging swallows it, too (Handler.handleError): the engine lives on without its reader
