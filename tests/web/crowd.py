"""Eight servers in trouble of every kind, with long names and hostile text: what an operator sees on a bad night."""

from __future__ import annotations

import msgspec

from supervisor.config import Config, ServerConfig
from supervisor.snapshot import (
    DiagnosisView,
    FacetView,
    IncidentView,
    RankView,
    ServerSnapshot,
    SpanView,
    StartupView,
    StopView,
)
from tests.api.fake import FakeControl, snapshot
from tests.metrics import fleet
from tests.metrics.fleet import COMMAND, NOW, deadlines, gpus, pulse

LONG = "qwen3-235b-a22b-instruct-2507-fp8-speculative-eagle3-tp8-prefill-node-with-a-very-long-name"
HOSTILE = (
    '[2026-11-29 02:14:10 TP0] <script>alert("x")</script> \x1b[31mred\x1b[0m \u202eevil\u202c '
    "api_key=sk-secret " + "AVeryLongWordWithoutAnyBlank" * 12
)


def stalled() -> ServerSnapshot:
    """Four ranks in the capture; one has said nothing for longer than is allowed, and its evidence is being kept."""
    begun = NOW - 640.0
    spans, views = [SpanView("", "launch", begun, begun + 20)], []
    for number in range(4):
        rank, late = f"TP{number}", number == 3
        spans += [
            SpanView(rank, "weights", begun + 20, begun + 230),
            SpanView(rank, "memory-pool", begun + 230, begun + 240),
            SpanView(rank, "verify-graph", begun + 240),
        ]
        seen = NOW - 400 if late else NOW - 331
        views.append(
            RankView(rank, "graph-capture", "verify-graph", begun + 240, last_progress=seen, last_line=HOSTILE)
        )
    start = StartupView(
        "verify-graph", "graph-capture", begun + 240, tuple(views), "TP3 still in verify-graph", NOW - 331,
        timeline=tuple(spans), lagging=("TP3",),
    )  # fmt: skip
    return snapshot(
        LONG,
        "stopping",
        at=NOW,
        engine="sglang",
        lifecycle=FacetView("stopping", NOW - 4, "stalled in verify-graph: no progress for 331 s, 330 s are allowed"),
        verdict=FacetView("stalled", NOW - 4, "stalled in verify-graph"),
        attempt=12,
        started=begun,
        start=start,
        stop_stage="evidence",
        deadlines=deadlines(),
        port=30010,
        gpus=(0, 1, 2, 3),
        restarts=11,
        budget_remaining=1,
        incidents=tuple(_incident(number, "scheduler-hang") for number in range(7, 12)),
    )


def near() -> ServerSnapshot:
    """A start that will soon be called stalled, of sixty-four ranks."""
    made = fleet.starting("deepseek-v3", ranks=64, slow="TP41", line=HOSTILE)
    return msgspec.structs.replace(made, deadline=NOW + 9, gpus=tuple(range(8)))


def backoff() -> ServerSnapshot:
    return snapshot(
        "glm-4.6-air", "backoff", at=NOW, engine="sglang",
        lifecycle=FacetView("backoff", NOW - 20, "restart 4 in 80 s"), verdict=FacetView("dead", NOW - 22),
        attempt=4, restarts=4, budget_remaining=1, backoff_until=NOW + 61, port=30011, gpus=(4, 5),
        diagnosis=DiagnosisView("nccl-timeout", "yes", "Look at NVLink and the fabric manager.", 9, HOSTILE, 0.8),
        incidents=(_incident(4, "nccl-timeout"),), deadlines=deadlines(),
    )  # fmt: skip


def quarantined() -> ServerSnapshot:
    reason = (
        "cannot be killed: pid 4711 (D, nvidia_uvm_fault); it blocks port 30012 and GPU 6, 7 until the kernel lets go"
    )
    return snapshot(
        "llama-4-maverick", "quarantined", at=NOW, engine="sglang",
        lifecycle=FacetView("quarantined", NOW - 3900, reason), verdict=FacetView("dead", NOW - 3900),
        attempt=2, restarts=1, budget_remaining=4, port=30012, gpus=(6, 7),
        diagnosis=DiagnosisView("gpu-fallen-off-bus", "no", "Drain the host and reset the GPU.", 1, "", 0.9),
        incidents=(_incident(2, "gpu-fallen-off-bus"),), deadlines=deadlines(),
    )  # fmt: skip


def _incident(attempt: int, cause: str) -> IncidentView:
    found = DiagnosisView(cause, "yes", "Look at the stacks in the evidence; check storage and NCCL.", 7, HOSTILE, 0.6)
    stop = StopView("kill", 3.1, 3.0, 3.2, 3.9, 9)
    begun = NOW - 9000 + 700 * attempt
    return IncidentView(
        attempt, begun, begun + 640, "stalled", "verify-graph", "graph-capture", "backoff: restart", "", found, -9,
        "/var/lib/sglang-supervisor/evidence/" + LONG + "/000011", "/l", stop,
    )  # fmt: skip


def control() -> FakeControl:
    shown = (
        stalled(),
        near(),
        fleet.running("qwen3-32b", gpus=(8,)),
        fleet.running("embeddings", (8,), verdict=FacetView("degraded", NOW - 70), readiness=FacetView("failure", NOW)),
        msgspec.structs.replace(backoff(), gpus=(0, 2, 4, 6, 8, 10, 12, 14)),
        fleet.fatal(),
        quarantined(),
        snapshot("spare", "stopped"),
    )
    made = FakeControl(*shown, monotonic=NOW)
    made.configuration = Config(servers={one.name: ServerConfig(one.name, COMMAND) for one in shown})
    made.put_gpus(*gpus(), sight="blind", reason="the GPU reader has been silent for 31 s: a driver call hangs")
    made.beat = pulse(*(one.name for one in shown))
    return made
