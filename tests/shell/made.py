"""Makes servers as the control socket answers them, for whoever draws or tells them. Second 0 is `BEGAN`."""

from __future__ import annotations

from supervisor.api import wire
from supervisor.api.control import Clock
from supervisor.snapshot import FacetView, ProgressView, RankView, ServerSnapshot, SpanView, StartupView

BEGAN = 1_700_000_000.0


def clock(now: float) -> Clock:
    return Clock(now, BEGAN + now)


def at(seconds: float) -> str:
    return wire.iso(BEGAN + seconds)


def snapshot(name: str, lifecycle: str = "starting", reason: str = "", **fields: object) -> ServerSnapshot:
    usual: dict[str, object] = {
        "goal": "up",
        "verdict": FacetView("warming", 0.0),
        "startup": FacetView("unknown", 0.0),
        "readiness": FacetView("success" if lifecycle == "running" else "unknown", 0.0),
        "liveness": FacetView("unknown", 0.0),
        "attempt": 1,
        "pid": 4711,
        "port": 30000,
    }
    return ServerSnapshot(name=name, at=0.0, lifecycle=FacetView(lifecycle, 0.0, reason), **(usual | fields))


def server(
    name: str, lifecycle: str = "starting", reason: str = "", *, now: float = 10.0, **fields: object
) -> wire.Server:
    return wire.server(snapshot(name, lifecycle, reason, **fields), clock(now))


def startup(*ranks: RankView, spans: tuple[SpanView, ...] = (), last_progress: float = 5.0) -> StartupView:
    """A start that is in the phase of its first rank."""
    return StartupView(
        phase=ranks[0].phase,
        stage=ranks[0].stage,
        since=ranks[0].since,
        ranks=ranks,
        last_progress=last_progress,
        timeline=spans,
    )


def rank(name: str, phase: str, since: float = 4.0, done: int | None = None, total: int = 10) -> RankView:
    progress = None if done is None else ProgressView(done, total, "batch sizes")
    return RankView(name, "graph-capture", phase, since, progress)


def span(rank: str, phase: str, begin: float, end: float | None) -> SpanView:
    return SpanView(rank, phase, begin, end)
