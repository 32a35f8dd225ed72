"""The configuration as frozen values: what an operator may write, with its defaults and units.

Attributes carry units (`grace_s`); the key in the file does not (`grace = "90s"`).
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias

import msgspec

DEFAULT_ENGINE = "sglang"  # the one place that names it: a profile of this name must exist
DEFAULT_SOCKET = "/run/sglang-supervisor/control.sock"
PORT_OPTION = "--port"  # of every engine we have a profile for; `port` in the file overrides it

# How a value is written in the file; `supervisor.config.reader` acts on it.
_DURATION = {"written": "duration"}
_SIZE = {"written": "size"}
_LIMIT = {"written": "limit"}
_OCTAL = {"written": "octal"}

Duration: TypeAlias = Annotated[float, msgspec.Meta(extra=_DURATION)]
Size: TypeAlias = Annotated[int, msgspec.Meta(extra=_SIZE)]
ResourceLimit: TypeAlias = Annotated[int, msgspec.Meta(extra=_LIMIT)]
Mode: TypeAlias = Annotated[int, msgspec.Meta(extra=_OCTAL)]
Port: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Ratio: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]

UNLIMITED = -1  # RLIM_INFINITY as Python's resource module has it


class OnForeign(enum.StrEnum):
    """What to do before a start when somebody else's process holds memory of our devices."""

    WAIT = "wait"
    FAIL = "fail"
    KILL_SAME_USER = "kill-same-user"


class CgroupUse(enum.StrEnum):
    """Whether servers get a cgroup each; `off` sweeps processes instead, as where there is no cgroup v2."""

    AUTO = "auto"
    OFF = "off"


class GpuPlan(msgspec.Struct, frozen=True):
    """Devices by index, or any healthy `count` of them; neither means no lease."""

    indices: tuple[int, ...] = ()
    count: Count = 0

    @property
    def size(self) -> int:
        """How many devices the server gets."""
        return len(self.indices) or self.count


class StopConfig(msgspec.Struct, frozen=True):
    """How a server is ended: signal, grace, then the whole tree is killed; None = the profile's.

    `evidence`: of what outlives its grace the evidence is kept first.
    """

    signal: str | None = None
    grace_s: Duration | None = msgspec.field(default=None, name="grace")
    startup_grace_s: Duration | None = msgspec.field(default=None, name="startup_grace")
    freeze: bool = False
    evidence: bool = False


class PhaseDeadline(msgspec.Struct, frozen=True):
    """Limits of one phase: without any progress for `stall_s`, or `limit_s` in all; None = the profile's."""

    stall_s: Duration | None = msgspec.field(default=None, name="stall")
    limit_s: Duration | None = msgspec.field(default=None, name="limit")


class CauseAction(enum.StrEnum):
    """What follows a failure of a class."""

    RETRY = "retry"  # within the budget, after the backoff
    FATAL = "fatal"
    QUARANTINE = "quarantine"


class RestartConfig(msgspec.Struct, frozen=True):
    """Exponential backoff with jitter, and a budget of restarts per window."""

    backoff_s: Duration = msgspec.field(default=5.0, name="backoff")
    backoff_max_s: Duration = msgspec.field(default=300.0, name="backoff_max")
    budget: Count = 5
    window_s: Duration = msgspec.field(default=3600.0, name="window")
    factor: Annotated[float, msgspec.Meta(ge=1)] = 2.0
    jitter: Ratio = 0.2
    same_cause: Annotated[int, msgspec.Meta(ge=1)] = 3
    causes: dict[str, CauseAction] = msgspec.field(default_factory=dict)


class ReadinessConfig(msgspec.Struct, frozen=True):
    """Where and how readiness is asked; None = the profile's."""

    path: str | None = None
    timeout_s: Duration | None = msgspec.field(default=None, name="timeout")
    interval_s: Duration | None = msgspec.field(default=None, name="interval")


class DetectorMode(enum.StrEnum):
    """Whether a detector acts, or only counts what it would have killed."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    AUTO = "auto"  # observe until there are enough samples


class DetectorsConfig(msgspec.Struct, frozen=True):
    """The mode of each detector; the phases' configured limits always act."""

    learned: DetectorMode = DetectorMode.AUTO
    standstill: DetectorMode = DetectorMode.ENFORCE
    serving: DetectorMode = DetectorMode.ENFORCE
    canary: DetectorMode = DetectorMode.OBSERVE
    capacity: DetectorMode = DetectorMode.OBSERVE


class ServingConfig(msgspec.Struct, frozen=True):
    """How a serving server is judged besides its probes. A canary every 0 s is none."""

    stall_s: Duration = msgspec.field(default=300.0, name="stall")
    stopped_s: Duration = msgspec.field(default=60.0, name="stopped")
    stuck_s: Duration = msgspec.field(default=180.0, name="stuck")
    canary_s: Duration = msgspec.field(default=300.0, name="canary")
    capacity_drop: Ratio = 0.2


class LimitsConfig(msgspec.Struct, frozen=True):
    """Resource limits of the server's processes; None = inherited from the daemon."""

    nofile: ResourceLimit | None = None
    memlock: ResourceLimit | None = None


class LogConfig(msgspec.Struct, frozen=True):
    """How many attempts' logs of a server are kept, how large they may be together, and when a part is archived."""

    keep: Annotated[int, msgspec.Meta(ge=1)] = 10
    size_bytes: Size = msgspec.field(default=10**10, name="size")
    rotate_size_bytes: Annotated[int, msgspec.Meta(ge=2**20, extra=_SIZE)] = msgspec.field(
        default=64 * 2**20, name="rotate_size"
    )
    rotate_age_s: Duration = msgspec.field(default=86400.0, name="rotate_age")


class HookEvent(enum.StrEnum):
    """What a hook may be told of: lifecycle states and verdicts that a server enters."""

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"
    RECLAIMING = "reclaiming"
    BACKOFF = "backoff"
    FATAL = "fatal"
    QUARANTINED = "quarantined"
    STALLED = "stalled"
    DEGRADED = "degraded"
    DEAD = "dead"


_WORTH_TELLING = (
    HookEvent.RUNNING, HookEvent.STOPPED, HookEvent.BACKOFF, HookEvent.FATAL, HookEvent.QUARANTINED,
    HookEvent.STALLED, HookEvent.DEGRADED,
)  # fmt: skip


class HooksConfig(msgspec.Struct, frozen=True):
    """Commands and a URL that are told what happens; `before_start` may refuse a start."""

    before_start: tuple[str, ...] = ()
    on_change: tuple[str, ...] = ()
    webhook: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    events: tuple[HookEvent, ...] = _WORTH_TELLING
    timeout_s: Duration = msgspec.field(default=30.0, name="timeout")


class ServerConfig(msgspec.Struct, frozen=True):
    """One server as configured. `name` is its table's key."""

    name: str
    command: tuple[str, ...] = ()
    engine: str = DEFAULT_ENGINE
    host: str = ""  # where it is probed; "": read from the command
    port: Port = 0  # 0: read from the command, see `effective_port`
    gpus: GpuPlan = GpuPlan()
    autostart: bool = True
    user: str | None = None
    group: str | None = None
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    env_file: str | None = None
    directory: str | None = None
    umask: Mode = 0o022
    nice: Annotated[int, msgspec.Meta(ge=-20, le=19)] = 0
    oom_score_adj: Annotated[int, msgspec.Meta(ge=-1000, le=1000)] = 0
    limits: LimitsConfig = LimitsConfig()
    stop: StopConfig = StopConfig()
    deadlines: dict[str, PhaseDeadline] = msgspec.field(default_factory=dict)
    restart: RestartConfig = RestartConfig()
    readiness: ReadinessConfig = ReadinessConfig()
    serving: ServingConfig = ServingConfig()
    detectors: DetectorsConfig = DetectorsConfig()
    on_foreign: OnForeign = OnForeign.WAIT
    # An idle device holds 0 bytes beyond the driver's own; what cannot be demanded back of one that is free are some
    # megabytes: 3 for each process that only enumerates devices, 8 to 10 for each one's context (measured on H200s).
    memory_tolerance_bytes: Size = msgspec.field(default=64 * 2**20, name="memory_tolerance")
    reclaim_limit_s: Duration = msgspec.field(default=60.0, name="reclaim_limit")
    operators: tuple[str, ...] = ()  # may start, stop, restart and signal this server, beside those of the daemon
    log: LogConfig = LogConfig()
    hooks: HooksConfig = HooksConfig()
    priority: int = 0  # who waits for a start slot: the higher goes first
    after: tuple[str, ...] = ()  # servers, or groups as "g:NAME", that are healthy or given up before this one starts
    requires: tuple[str, ...] = ()  # the same, and this one cannot do without them

    @property
    def effective_port(self) -> int:
        """The configured port, else the command's, else 0: then only the profile's default is left."""
        return self.port or port_of(self.command)


class GroupOrder(enum.StrEnum):
    """Whether members of a group start one after another."""

    ANY = "any"
    LISTED = "listed"  # as they are listed, each after the one before; stopped in reverse


class GroupConfig(msgspec.Struct, frozen=True):
    """Servers under one name. `together`: when one dies, all are ended and started again. `name` is its table's key."""

    name: str
    members: tuple[str, ...] = ()
    order: GroupOrder = GroupOrder.ANY
    together: bool = False


class RouterKind(enum.StrEnum):
    """How a router is told of servers."""

    GATEWAY = "gateway"  # a model gateway, over its HTTP interface
    WEBHOOK = "webhook"  # a POST for each who joins or leaves
    NGINX = "nginx"  # a file with an upstream, and a command that has it read again


class RouterConfig(msgspec.Struct, frozen=True):
    """Somebody who hands requests out to servers. `name` is its table's key.

    `servers` are names or groups as "g:NAME"; none: all. `host` is this host as the router sees it, by default as the
    server is probed. A router that does not answer holds a stop up for `leave_limit_s` at most.
    """

    name: str
    kind: RouterKind = RouterKind.GATEWAY
    url: str = ""
    servers: tuple[str, ...] = ()
    host: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    period_s: Duration = msgspec.field(default=10.0, name="period")
    timeout_s: Duration = msgspec.field(default=5.0, name="timeout")
    leave_limit_s: Duration = msgspec.field(default=15.0, name="leave_limit")
    file: str = ""
    upstream: str = ""
    reload: tuple[str, ...] = ("nginx", "-s", "reload")

    @property
    def upstream_name(self) -> str:
        """What the upstream is called in nginx: by default as the router is here."""
        return self.upstream or self.name


class DaemonConfig(msgspec.Struct, frozen=True):
    """The daemon itself. `listen` is "HOST:PORT" of the read-only TCP endpoints, "" for none."""

    socket: str = DEFAULT_SOCKET
    socket_mode: Mode = 0o660
    socket_group: str | None = None
    admins: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    state_dir: str = "/var/lib/sglang-supervisor"
    log_dir: str = "/var/log/sglang-supervisor"
    listen: str = "127.0.0.1:9877"
    cgroups: CgroupUse = CgroupUse.AUTO
    log_file: str | None = None
    hooks: HooksConfig = HooksConfig()
    start_slots: Count = 0  # servers that may be between launch and healthy at once; 0: all of them

    @property
    def listen_address(self) -> tuple[str, int] | None:
        """Host and port of `listen`, which the loader has checked; None when TCP is off."""
        host, _, port = self.listen.rpartition(":")
        return (host.strip("[]"), int(port)) if self.listen else None


class Config(msgspec.Struct, frozen=True):
    """Everything read from the main file and its conf.d."""

    daemon: DaemonConfig = DaemonConfig()
    servers: dict[str, ServerConfig] = msgspec.field(default_factory=dict, name="server")
    groups: dict[str, GroupConfig] = msgspec.field(default_factory=dict, name="group")
    routers: dict[str, RouterConfig] = msgspec.field(default_factory=dict, name="router")


def port_of(command: tuple[str, ...]) -> int:
    """The last `--port N` or `--port=N` of a command (argument parsers let the last one win); 0 without one."""
    value = ""
    for index, word in enumerate(command):
        if word == PORT_OPTION and index + 1 < len(command):
            value = command[index + 1]
        elif word.startswith(f"{PORT_OPTION}="):
            value = word.partition("=")[2]
    return int(value) if value.isascii() and value.isdigit() and len(value) <= 5 and int(value) <= 65535 else 0
