"""What must survive the daemon about one server, so that the next daemon goes on as if nothing had happened.

Times are CLOCK_MONOTONIC of one boot: a record of another boot is read for its goal alone.
"""

from __future__ import annotations

import msgspec

from supervisor.snapshot import DiagnosisView, ExitView, IncidentView, StartupView, StopView

FORMAT = 1


class SavedBook(msgspec.Struct, frozen=True):
    """The memory of the restart policy."""

    failures: tuple[float, ...] = ()
    streak: int = 0
    cause: str = ""
    same_cause: int = 0
    furthest: int = -1
    total: int = 0


class SavedDrain(msgspec.Struct, frozen=True):
    """A stop that has not come to its signal yet: routers are being left, or running requests waited for."""

    wait: bool
    grace_s: float
    until: float


class SavedAttempt(msgspec.Struct, frozen=True):
    """The attempt whose processes may still live."""

    number: int
    begun: float
    pid: int | None = None
    log_path: str = ""
    ready_at: float | None = None
    ending: str = ""
    ending_reason: str = ""
    fatal_text: str = ""
    signals: tuple[int, ...] = ()
    stop: StopView = StopView()
    stop_began: float | None = None
    evidence_asked: bool = False
    evidence_path: str = ""
    start: StartupView | None = None
    capacity: int | None = None
    exit: ExitView | None = None
    diagnosis: DiagnosisView | None = None


class SavedServer(msgspec.Struct, frozen=True):
    """One server. `state` is the lifecycle, `next` what was decided to follow."""

    name: str
    boot_id: str
    goal_up: bool
    state: str
    since: float
    reason: str
    number: int
    next: str = "rest"
    next_reason: str = ""
    next_due: float = 0.0
    next_by_itself: bool = False
    tree_alive: bool = False
    grace_at: float | None = None
    attempt: SavedAttempt | None = None
    book: SavedBook = SavedBook()
    incidents: tuple[IncidentView, ...] = ()
    would_have_killed: dict[str, int] = {}
    paused: bool = False
    paused_reason: str = ""
    paused_since: float = 0.0
    drain: SavedDrain | None = None
    dirty: str = ""  # what the last look at the devices found wrong with them
    force: bool = False  # started in spite of what the preflight found
    devices: tuple[int, ...] = ()  # its lease
    at: float = 0.0  # when this was written; with `wall`, what tells when something was to a daemon of another boot
    wall: float = 0.0
    left: bool = False  # the daemon has ended, and the server with it: the next one starts it as configured
    format: int = FORMAT
