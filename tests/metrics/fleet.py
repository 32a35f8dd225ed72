"""Servers and GPUs in the middle of everything, for whoever shows them."""

from __future__ import annotations

import msgspec

from supervisor.api.control import RouterFacts
from supervisor.api.pulse import Disk, Pulse, Stored
from supervisor.config import Config, ServerConfig
from supervisor.core.gpus.views import GpuView
from supervisor.core.histogram import Histogram, histogram
from supervisor.core.tally import Account
from supervisor.core.traffic import HostTraffic, Traffic
from supervisor.events import Holder
from supervisor.snapshot import (
    DeadlineView,
    DiagnosisView,
    ExitView,
    FacetView,
    IncidentView,
    ProgressView,
    RankView,
    RouterView,
    ServerSnapshot,
    SpanView,
    StartupView,
    StopView,
    VoteView,
)
from tests.api.fake import FakeControl, snapshot

GIB = 2**30
MODEL = "/models/kimi-k2"
COMMAND = ("python", "-m", "sglang.launch_server", "--model-path", MODEL, "--tp", "8", "--host", "0.0.0.0")
PHASES = {
    "launch": 25.0,
    "dist-init": 12.0,
    "weights": 210.0,
    "memory-pool": 8.0,
    "verify-graph": 65.0,
    "draft-weights": 20.0,
    "draft-graph": 30.0,
    "warmup": 6.0,
}
NOW = 1000.0
REMEDY = "Lower --mem-fraction-static to 0.82, or use more GPUs."


def deadlines() -> tuple[DeadlineView, ...]:
    views = [
        DeadlineView(phase, max(60.0, 2 * seconds), 60.0, 2400.0, "learned", samples=7, median_s=seconds)
        for phase, seconds in PHASES.items()
    ]
    return (
        *views,
        DeadlineView("pd-init", 300.0, None, 900.0, "profile"),
        DeadlineView("jit", 600.0, None, None, "profile"),
    )


def starting(name: str = "kimi-k2", *, ranks: int = 8, slow: str = "TP5", line: str = "") -> ServerSnapshot:
    """Eight ranks in the target's capture, but for one that is still loading weights, longer than usual."""
    begun = NOW - 345.0
    views, spans = [], [SpanView("", "launch", begun, begun + 24)]
    for number in range(ranks):
        rank = f"TP{number}"
        late = rank == slow
        spans += [SpanView(rank, "dist-init", begun + 24, begun + 37 + number / 5)]
        loaded = None if late else begun + 240 + number
        spans += [SpanView(rank, "weights", begun + 37 + number / 5, loaded)]
        if loaded:
            spans += [
                SpanView(rank, "memory-pool", loaded, loaded + 8, 61.0),
                SpanView(rank, "verify-graph", loaded + 8),
            ]
        views.append(
            RankView(
                rank,
                "weights" if late else "graph-capture",
                "weights" if late else "verify-graph",
                begun + (37 if late else 250),
                ProgressView(46, 62, "shards", 0.07, 121.0) if late else ProgressView(29, 35, "batch sizes", 1.0, 6.0),
                last_progress=NOW - 41 if late else NOW - 2,
                last_line=line or f"[2025-11-29 02:14:{10 + number} {rank}] Load weight begin. avail mem=138.5 GB",
            )
        )
    start = StartupView(
        "weights",
        "weights",
        begun + 37,
        tuple(views),
        f"{slow} still in weights; {ranks - 1} ranks wait in verify-graph",
        NOW - 41,
        timeline=tuple(spans),
        lagging=tuple(view.rank for view in views if view.rank == slow),
    )
    return snapshot(
        name,
        "starting",
        at=NOW,
        engine="sglang",
        lifecycle=FacetView("starting", begun, "start asked by uid 0 pid 4242"),
        verdict=FacetView("warming", begun),
        startup=FacetView("failure", begun),
        attempt=3,
        started=begun,
        start=start,
        deadline=NOW + 379,
        deadlines=deadlines(),
        port=30000,
        gpus=tuple(range(ranks)),
        last_progress=NOW - 41,
        restarts=2,
        budget_remaining=3,
        votes=(
            VoteView("log", "still", NOW - 41, "recognised progress in the log"),
            VoteView("cpu", "moving", NOW, "8.1 cores"),
        ),
        incidents=(oom(1), stall(2)),
        exit=ExitView(2, NOW - 360, -9, "stalled"),
    )


def running(name: str = "qwen3-32b", gpus: tuple[int, ...] = (8,), **fields: object) -> ServerSnapshot:
    """Healthy for two hours, with the engine's own counters known."""
    began = NOW - 7200.0
    spans, at = [], began - sum(PHASES.values())
    for phase, seconds in PHASES.items():
        spans.append(SpanView("TP0", phase, at, at + seconds))
        at += seconds
    plain = snapshot(
        name,
        "running",
        at=NOW,
        engine="sglang",
        lifecycle=FacetView("running", began),
        verdict=FacetView("busy", NOW - 30, "12 requests are running"),
        startup=FacetView("success", began),
        liveness=FacetView("success", began),
        attempt=1,
        started=began - sum(PHASES.values()),
        ready_since=began,
        start=StartupView("healthy", "serving", began, ready_seen=True, timeline=tuple(spans)),
        deadlines=deadlines(),
        port=30001,
        gpus=gpus,
        last_progress=NOW - 1,
        budget_remaining=5,
        capacity_tokens=812_000,
        capacity_expected=815_000,
        votes=(VoteView("log", "still", NOW - 90, ""), VoteView("engine", "moving", NOW - 1, "12 running, 0 queued")),
    )
    return msgspec.structs.replace(plain, **fields)


def fatal(name: str = "draft-7b", gpus: tuple[int, ...] = (9,)) -> ServerSnapshot:
    """Given up for a reason that no restart mends."""
    found = oom(4).diagnosis
    return snapshot(
        name,
        "fatal",
        at=NOW,
        engine="sglang",
        goal="up",
        lifecycle=FacetView("fatal", NOW - 900, f"gpu-oom-kv-pool: a restart cannot help: {REMEDY}"),
        verdict=FacetView("dead", NOW - 900, "exited with status 1"),
        attempt=4,
        started=NOW - 1000,
        deadlines=deadlines(),
        port=30002,
        gpus=gpus,
        exit=ExitView(4, NOW - 905, 1, "exited"),
        diagnosis=found,
        incidents=(oom(4),),
        would_have_killed={"canary": 2},
    )


def oom(attempt: int) -> IncidentView:
    bundle = "/var/lib/sglang-supervisor/evidence/draft-7b/000004"
    evidence = "[2025-11-29 01:59:12 TP0] Scheduler hit an exception: RuntimeError: Not enough memory."
    diagnosis = DiagnosisView("gpu-oom-kv-pool", "no", REMEDY, 812, evidence, 0.93)
    stop = StopView("kill", 0.1, 0.1, 0.4, 1.1, 9)
    return IncidentView(
        attempt, NOW - 1000, NOW - 905, "exited with status 1", "memory-pool", "memory-pool",
        "fatal: gpu-oom-kv-pool", "", diagnosis, 1, bundle, "/l", stop,
    )  # fmt: skip


def stall(attempt: int) -> IncidentView:
    remedy = "Look at the stacks in the evidence; check storage and NCCL."
    diagnosis = DiagnosisView("scheduler-hang", "yes", remedy, 0, "", 0.6)
    stop = StopView("kill", 3.1, 3.0, 3.2, 3.9, 9)
    return IncidentView(
        attempt, NOW - 800, NOW - 360, "stalled in verify-graph: no progress for 190 s", "verify-graph",
        "graph-capture",
        "backoff: restart 2", "TP3 still in verify-graph; 7 ranks wait for it", diagnosis, -9, "/e/2", "/l", stop,
    )  # fmt: skip


def gpus() -> tuple[GpuView, ...]:
    leased = [_leased(index) for index in range(8)]
    busy = GpuView(
        8, "GPU-0008", "NVIDIA H200", "leased", server="qwen3-32b", total=141 * GIB,
        used=125 * GIB,
        holders=(
            Holder(8, 118 * GIB, 6001, "sglang", "python", "server", "qwen3-32b"),
            Holder(8, 6 * GIB, 7001, "alice", "python train.py", "foreign"),
        ),
    )  # fmt: skip
    broken = GpuView(
        9, "GPU-0009", "NVIDIA H200", "quarantined", reason="Xid 79: the GPU has fallen off the bus",
        total=141 * GIB,
        used=3 * GIB, last_xid=79, last_xid_text="fallen off the bus", last_xid_at=NOW - 950,
        quarantined_since_wall_s=1764420000.0 - 950, quarantine="xid", holders=(Holder(9, 2 * GIB),),
    )  # fmt: skip
    return (*leased, busy, broken)


def _leased(index: int) -> GpuView:
    holder = Holder(index, 95 * GIB, 5000 + index, "sglang", "python", "server", "kimi-k2")
    return GpuView(
        index, f"GPU-{index:04d}", "NVIDIA H200", "leased", server="kimi-k2", total=141 * GIB, used=96 * GIB,
        baseline=GIB // 2, holders=(holder,),
    )  # fmt: skip


def pulse(*names: str) -> Pulse:
    account = Account(
        starts=4,
        restarts={"crash": 2, "stall_start": 1},
        exits={"code crash": 2, "signal stall_start": 1},
        lost_s={"startup": 376.0, "crash": 120.5, "stall_start": 600.0},
        gpu_lost_s={"startup": 3008.0, "crash": 964.0, "stall_start": 4800.0},
        startup_s={"ready": histogram((0.0,) * 10)},
        phase_s={"weights passed": Histogram([0] * 6 + [3] + [0] * 5, 630.5), "weights failed": histogram((0.0,) * 11)},
        killed_processes=27,
        traffic=Traffic(
            checks={"health ok": 720, "health refused": 410, "canary ok": 24},
            check_s={"health": Histogram([700, 20, *[0] * 8], 3.1)},
            log_bytes=10**8,
            log_lines=10**6,
            evidence={"complete": 2, "partial": 1},
            steps={"term": 3, "kill": 2},
        ),
    )
    account.stop_s.add(3.2, (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 90.0, 120.0, 300.0))
    return Pulse(
        overdue_s=0.0,
        lag_s=0.004,
        config_loaded_wall=1764416000.0,
        watchdog_wall=1764419998.0,
        disks=(Disk("log", 40 * GIB, 100 * GIB), Disk("state", 40 * GIB, 100 * GIB)),
        stored={name: Stored(10**8, 10**7, 2) for name in names},
        accounts=dict.fromkeys(names, account),
        xids={"GPU-0009": 1},
        host=HostTraffic(3, 1, {"adopted": 2}, {"showMetrics 200 read": 5}, dict.fromkeys(names, 4)),
        processes=dict.fromkeys(names, 11),
        log_lag_bytes=dict.fromkeys(names, 0),
    )


def control(*servers: ServerSnapshot) -> FakeControl:
    """A daemon with these servers, or with one of each kind."""
    routed = (RouterView("front", "joined"), RouterView("lb", "joining", "nobody listens"))
    shown = servers or (starting(), running(routers=routed), fatal(), snapshot("spare", "stopped"))
    made = FakeControl(*shown, monotonic=NOW)
    made.configuration = Config(servers={one.name: ServerConfig(one.name, COMMAND) for one in shown})
    made.put_gpus(*gpus())
    made.routers = (
        RouterFacts("front", "gateway", True, "", 1),
        RouterFacts("lb", "nginx", False, "no"),
        RouterFacts("new", "webhook", None),
    )
    made.beat = pulse(*(one.name for one in shown))
    return made


def many(count: int) -> FakeControl:
    """A fleet, each server of eight ranks."""
    return control(*(starting(f"server-{number:02d}") for number in range(count)))
