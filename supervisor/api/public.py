"""What anybody on the host may read over TCP, which carries no identity: names, states, phases, times and sizes.

Reasons, evidence and last lines quote logs, to which users' prompts can get; commands and paths are nobody's business.
"""

from __future__ import annotations

from msgspec.structs import replace

from supervisor.core.gpus.views import GpusView
from supervisor.snapshot import DiagnosisView, FacetView, ServerSnapshot, StartupView


def public_server(snapshot: ServerSnapshot) -> ServerSnapshot:
    """The snapshot without words that come from elsewhere than our own rules."""
    diagnosis, ended = snapshot.diagnosis, snapshot.exit
    return replace(
        snapshot,
        lifecycle=_bare(snapshot.lifecycle),
        verdict=_bare(snapshot.verdict),
        startup=_bare(snapshot.startup),
        readiness=_bare(snapshot.readiness),
        liveness=_bare(snapshot.liveness),
        maintenance=None if snapshot.maintenance is None else _bare(snapshot.maintenance),
        start=None if snapshot.start is None else _start(snapshot.start),
        exit=None if ended is None else replace(ended, reason=""),
        diagnosis=None if diagnosis is None else DiagnosisView(diagnosis.cause, diagnosis.restart),
        evidence_path="",
        log_path="",
        votes=tuple(replace(vote, text="") for vote in snapshot.votes),
        incidents=(),
        drain=None if snapshot.drain is None else replace(snapshot.drain, note=""),
        routers=tuple(replace(router, reason="") for router in snapshot.routers),
    )


def public_gpus(view: GpusView) -> GpusView:
    """The view without other people's processes."""
    gpus = (
        replace(gpu, holders=tuple(replace(one, pid=0, user="", command="") for one in gpu.holders), reason="")
        for gpu in view.gpus
    )
    return replace(view, gpus=tuple(gpus))


def _bare(facet: FacetView) -> FacetView:
    return FacetView(facet.value, facet.since)


def _start(start: StartupView) -> StartupView:
    return replace(start, ranks=tuple(replace(rank, last_line="") for rank in start.ranks))
