"""The two clocks: CLOCK_MONOTONIC for every decision, the wall clock for people."""

from __future__ import annotations

import time

from supervisor.api.control import Clock


def monotonic() -> float:
    """Seconds since some moment of this boot; the same for all processes, so timers survive a restart of the daemon."""
    return time.monotonic()


def now() -> Clock:
    """One moment on both clocks."""
    return Clock(time.monotonic(), time.time())
