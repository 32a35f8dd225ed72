"""Every metric that is exported: name, type, labels and meaning. docs/metrics.md is printed from here."""

from __future__ import annotations

import enum

import msgspec

from supervisor.core.tally import PHASE_BUCKETS_S, RELEASE_BUCKETS_S, STARTUP_BUCKETS_S, STOP_BUCKETS_S
from supervisor.core.traffic import CHECK_BUCKETS_S

PREFIX = "sglsup_"


class Kind(enum.StrEnum):
    """Types of the exposition formats."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INFO = "info"
    HISTOGRAM = "histogram"


class Family(msgspec.Struct, frozen=True):
    """One metric. `name` is without the suffix that its type gives to the samples (`_total`, `_info`, `_bucket`)."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def sample(self) -> str:
        """How it is queried."""
        suffix = {Kind.COUNTER: "_total", Kind.INFO: "_info"}.get(self.kind, "")
        return f"{self.name}{suffix}"


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(PREFIX + name, Kind.GAUGE, text, labels)


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(PREFIX + name, Kind.COUNTER, text, labels)


def _info(name: str, text: str, *labels: str) -> Family:
    return Family(PREFIX + name, Kind.INFO, text, labels)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Family:
    return Family(PREFIX + name, Kind.HISTOGRAM, text, labels, buckets)


def _of_server(make: Family) -> Family:
    """A server's own: its first label is its name."""
    return msgspec.structs.replace(make, labels=("server", *make.labels))


# --- the daemon ----------------------------------------------------------------------------------------------------

BUILD = _info("build", "Version of the daemon and of Python.", "version", "python")
START_TIME = _gauge("start_time_seconds", "When the daemon started.")
SNAPSHOT_TIME = _gauge("snapshot_timestamp_seconds", "The moment that all values are about.")
LOOP_LAG = _gauge("loop_lag_seconds", "How late the event loop woke a sleeper lately, at worst.")
LOOP_OVERDUE = _gauge(
    "decision_overdue_seconds", "For how long a decision that is due has not been taken; 0 is healthy."
)
WATCHDOG_TIME = _gauge("watchdog_ping_timestamp_seconds", "When systemd's watchdog was last fed; absent without one.")
CONFIG_OK = _gauge("config_last_reload_successful", "Whether the configuration was last read without errors.")
CONFIG_TIME = _gauge("config_last_reload_success_timestamp_seconds", "When it was last read without errors.")
STATE_WRITTEN = _gauge(
    "state_written", "Whether all that the next daemon must know is on disk; 0 while the disk refuses or hangs."
)
HANGING = _gauge(
    "calls_hanging",
    "Calls to a disk, a user database or a process that were given up and have not come back, a thread each.",
)
JOURNAL_LOST = _counter("journal_rows_lost", "Rows of the journal that no disk has taken: what they said is lost.")
JOURNAL_WRITTEN = _gauge("journal_written", "Whether the journal can be written; 0 while its disk refuses or hangs.")
DISK_FREE = _gauge("disk_free_bytes", "Space left for our files, looked at once a minute.", "use")
DISK_SIZE = _gauge("disk_size_bytes", "Size of the file system of our files.", "use")
ADOPTIONS = _counter("adoptions", "Servers of an earlier daemon: adopted alive, or gone meanwhile.", "result")
ORPHANS = _counter("orphans_reaped", "Dead processes that servers had left behind and that were reaped.")
REQUESTS = _counter("rpc_requests", "Answered requests by operation, HTTP status and role.", "verb", "code", "role")

# --- servers -------------------------------------------------------------------------------------------------------

SERVER = _of_server(
    _info("server", "What the server is.", "engine", "engine_version", "model", "port", "gpus", "config_hash")
)
STATE = _of_server(_gauge("server_state", "1 for the lifecycle state that it is in.", "state"))
PHASE = _of_server(_gauge("server_phase", "1 for the phase of the start that it is in; all 0 otherwise.", "phase"))
VERDICT = _of_server(_gauge("server_verdict", "1 for the verdict from its progress.", "verdict"))
PROBE = _of_server(
    _gauge("server_probe", "1 for the result of the startup, readiness or liveness probe.", "probe", "result")
)
WAITS = _of_server(
    _gauge("server_waits_for_turn", "1 while its start waits for a start slot or for a server that it depends on.")
)
GOAL_UP = _of_server(_gauge("server_goal_up", "Whether it is wanted up."))
READY = _of_server(_gauge("server_ready", "Whether requests may be sent to it."))
PHASE_START = _of_server(_gauge("server_phase_start_timestamp_seconds", "When the phase of the start began."))
PHASE_DEADLINE = _of_server(
    _gauge("server_phase_deadline_timestamp_seconds", "When the start is called stalled unless something moves.")
)
PHASE_PROGRESS = _of_server(_gauge("server_phase_progress_ratio", "Progress bar of the phase, of its slowest rank."))
PHASE_USUAL = _of_server(_gauge("server_phase_usual_seconds", "Median length of the phase in earlier starts.", "phase"))
PHASE_PATIENCE = _of_server(
    _gauge("server_phase_patience_seconds", "Silence after which the phase is called stalled.", "phase")
)
ETA = _of_server(_gauge("server_eta_timestamp_seconds", "When the start will be ready by what earlier ones took."))
LAGGING_RANKS = _of_server(_gauge("server_lagging_ranks", "Ranks of the current start that hold the others up."))
SIGNAL_MOVING = _of_server(
    _gauge("server_signal_moving", "Whether a signal shows progress; absent while nobody can tell.", "source")
)
LAST_PROGRESS = _of_server(
    _gauge("server_last_progress_timestamp_seconds", "The last sign of progress from any source.")
)
SIGNAL_TIME = _of_server(
    _gauge("server_signal_progress_timestamp_seconds", "When a source last showed progress.", "source")
)
START = _of_server(_gauge("server_start_time_seconds", "When the current attempt was launched."))
READY_SINCE = _of_server(_gauge("server_ready_timestamp_seconds", "Since when it serves; absent while it does not."))
STARTS = _of_server(_counter("server_starts", "Attempts that were launched."))
RESTARTS = _of_server(_counter("server_restarts", "Launches by the reason of the end before.", "reason"))
EXITS = _of_server(_counter("server_exits", "Ends of attempts by exit status and reason.", "kind", "reason"))
LAST_EXIT_TIME = _of_server(_gauge("server_last_exit_timestamp_seconds", "When an attempt last ended."))
LAST_EXIT_STATUS = _of_server(_gauge("server_last_exit_status", "Its status, or the negated signal."))
BACKOFF_UNTIL = _of_server(_gauge("server_backoff_until_timestamp_seconds", "When the next start is due."))
BUDGET = _of_server(_gauge("server_restart_budget_remaining", "Restarts that the budget still allows."))
DOWNTIME = _of_server(_counter("server_downtime_seconds", "Time wanted up and not serving, by cause.", "cause"))
GPU_LOST = _of_server(_counter("server_gpu_lost_seconds", "The same times the GPUs that were held meanwhile.", "cause"))
GPUS_IDLE = _of_server(_gauge("server_gpus_idle", "GPUs that it holds now without serving."))
PENDING = _of_server(
    _gauge("server_downtime_pending_seconds", "Downtime whose cause is not known until the start ends.")
)
STARTUP = _of_server(
    _histogram("server_startup_duration_seconds", "From launch to ready or to failure.", STARTUP_BUCKETS_S, "result")
)
PHASE_DURATION = _of_server(
    _histogram(
        "server_phase_duration_seconds",
        "Phases of starts: passed, or the one that failed.",
        PHASE_BUCKETS_S,
        "phase",
        "result",
    )
)
STOP = _of_server(
    _histogram("server_stop_duration_seconds", "From the first step of an end to no process.", STOP_BUCKETS_S)
)
RELEASE = _of_server(
    _histogram(
        "server_gpu_release_seconds",
        "From no process to all GPU memory being back, or to giving up.",
        RELEASE_BUCKETS_S,
        "result",
    )
)
KILL_STEPS = _of_server(
    _counter("server_kill_escalations", "How far ends of attempts had to go: term, kill, unkillable.", "stage")
)
KILLED = _of_server(_counter("server_killed_processes", "Processes that did not end by themselves and were killed."))
WOULD_HAVE = _of_server(
    _counter("server_would_have_killed", "Kills that a detector in observe mode asked for.", "detector")
)
HEALTH_CHECKS = _of_server(
    _counter("server_health_checks", "Probes and canary requests by what was seen.", "check", "outcome")
)
HEALTH_CHECK_TIME = _of_server(
    _histogram("server_health_check_duration_seconds", "How long they took to be answered.", CHECK_BUCKETS_S, "check")
)
PROCESSES = _of_server(_gauge("server_processes", "Processes of the attempt; absent while there is none."))
CAPACITY = _of_server(_gauge("server_capacity_tokens", "Room of the token pool of the current attempt."))
CAPACITY_EXPECTED = _of_server(_gauge("server_capacity_expected_tokens", "Room of the last good start."))
LOG_BYTES = _of_server(_gauge("server_log_bytes", "Its logs on disk, looked at once a minute."))
LOG_READ = _of_server(_counter("server_log_read_bytes", "What was read of its logs."))
LOG_LINES = _of_server(_counter("server_log_lines", "Lines that were read of its logs."))
LOG_LAG = _of_server(_gauge("server_log_lag_bytes", "What is written of the present log and not read yet."))
LOG_SEGMENTS = _of_server(_counter("server_log_rotations", "Pieces of growing logs that were archived."))
EVIDENCE_KEPT = _of_server(_counter("server_evidence_kept", "Evidence bundles by completeness.", "result"))
ROUTED = _of_server(_gauge("server_routed", "Whether a router hands requests to it.", "router"))
EVIDENCE_BYTES = _of_server(_gauge("server_evidence_bytes", "Its evidence bundles on disk."))
EVIDENCE_BUNDLES = _of_server(_gauge("server_evidence_bundles", "How many bundles there are."))

# --- GPUs ----------------------------------------------------------------------------------------------------------

GPU = _info("gpu", "A GPU, and the server that has it.", "uuid", "gpu", "model", "server")
GPU_STATE = _gauge("gpu_state", "1 for the state that the GPU is in.", "uuid", "state")
GPU_TOTAL = _gauge("gpu_memory_size_bytes", "Memory of the GPU.", "uuid")
GPU_USED = _gauge(
    "gpu_memory_used_bytes",
    "Memory in use by owner: server, foreign, unattributed or driver.",
    "uuid",
    "owner",
    "server",
)
GPU_FOREIGN = _gauge("gpu_foreign_processes", "Processes on the GPU that belong to no server.", "uuid")
GPU_QUARANTINED = _gauge("gpu_quarantined", "Whether the GPU is out of use, and why.", "uuid", "reason")
GPU_XIDS = _counter("gpu_xid_events", "Xids that were seen.", "uuid")
GPU_LAST_XID = _gauge("gpu_last_xid_timestamp_seconds", "When the newest Xid came, and which.", "uuid", "xid")
GPU_FEED = _gauge("gpu_feed", "1 for how GPUs can be seen: seeing, blind or absent.", "sight")
GPU_FEED_SINCE = _gauge("gpu_feed_since_timestamp_seconds", "Since when they are seen like this.")
GPU_FEED_TIME = _gauge("gpu_feed_last_success_timestamp_seconds", "When the driver last answered.")
GPU_READER_RESTARTS = _counter("gpu_reader_restarts", "GPU readers that were given up: hung, killed or broken.")

# --- routers -------------------------------------------------------------------------------------------------------

ROUTER_UP = _gauge("router_up", "Whether a router can be asked; absent until it has been.", "router", "kind")
ROUTER_SERVERS = _gauge("router_servers", "Servers that the router hands requests to.", "router")

FAMILIES: tuple[Family, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Family))
