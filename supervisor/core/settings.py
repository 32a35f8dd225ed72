"""What one server's decisions are made with: its configuration laid over its engine's profile, all in seconds."""

from __future__ import annotations

import math

import msgspec

from supervisor.config import CauseAction, DetectorMode


class PhaseLimit(msgspec.Struct, frozen=True):
    """How long a phase may go without progress, and how long it may last at all. `inf` switches one off.

    `idle_s` is the shorter patience with a silent server none of whose processes does anything; a deadline learned from
    earlier starts never goes below `floor_s`.
    """

    stall_s: float
    limit_s: float
    idle_s: float = math.inf
    floor_s: float = 20.0
    source: str = "profile"


class ReadinessSettings(msgspec.Struct, frozen=True):
    """How the server is probed. A full answer may take an engine 20 s, so the time-out is longer than that."""

    timeout_s: float = 28.0
    refused_interval_s: float = 0.25
    warming_interval_s: float = 0.1
    warming_interval_max_s: float = 1.0
    interval_s: float = 10.0
    failure_threshold: int = 3
    liveness_stall_s: float = 120.0
    reidentify_every: int = 6


class StopSettings(msgspec.Struct, frozen=True):
    """Patience of a stop: while serving, while starting, and with a server that is already judged dead.

    `evidence`: what outlives the grace of a stop is not killed before its evidence was kept. `leave_limit_s`: how long
    those who hand requests out may take to let go of a serving server before it is asked to end; 0 = there are none.
    """

    grace_s: float = 90.0
    startup_grace_s: float = 5.0
    stall_grace_s: float = 3.0
    signal: int = 15
    evidence: bool = False
    leave_limit_s: float = 0.0


class CauseRule(msgspec.Struct, frozen=True):
    """What a class of failures leads to: `retry` (within the budget), `fatal` or `quarantine` at once.

    `told`: the operator's own word, which needs no confidence and holds after a time of service, too.
    """

    action: CauseAction = CauseAction.RETRY
    backoff_factor: float = 1.0
    told: bool = False


class RestartSettings(msgspec.Struct, frozen=True):
    """Backoff and budget of restarts after failures."""

    backoff_s: float = 5.0
    backoff_max_s: float = 300.0
    factor: float = 2.0
    jitter: float = 0.2
    budget: int = 5
    window_s: float = 3600.0
    same_cause_limit: int = 3
    reset_after_s: float = 600.0
    rules: dict[str, CauseRule] = msgspec.field(default_factory=dict)


class ReclaimSettings(msgspec.Struct, frozen=True):
    """How memory and ports are waited for."""

    recheck_s: float = 0.25
    recheck_max_s: float = 5.0
    own_limit_s: float = 75.0  # a little above the time after which the device itself is put out of use


class ServingSettings(msgspec.Struct, frozen=True):
    """How a serving server is judged besides its probes."""

    stall_s: float = 300.0  # requests in, nothing out; above any legal iteration: long prefills take minutes
    stopped_s: float = 60.0  # a process with a role stands still; somebody may be debugging it
    stuck_s: float = 180.0  # the same inside the kernel: a slow disk or driver call ends by itself
    canary_interval_s: float = 300.0
    canary_timeout_s: float = 60.0
    canary_threshold: int = 3
    capacity_drop: float = 0.2


class DetectorSettings(msgspec.Struct, frozen=True):
    """The mode of each detector. The profile's hard limits always act."""

    learned: DetectorMode = DetectorMode.AUTO
    standstill: DetectorMode = DetectorMode.ENFORCE
    serving: DetectorMode = DetectorMode.ENFORCE
    canary: DetectorMode = DetectorMode.OBSERVE
    capacity: DetectorMode = DetectorMode.OBSERVE

    def of(self, detector: str) -> DetectorMode:
        """The mode of a detector by the name that its charges carry."""
        modes = {
            "standstill": self.standstill,
            "serving": self.serving,
            "canary": self.canary,
            "capacity": self.capacity,
        }
        return modes[detector]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `Server` consults; made once per configuration by `core.resolve`."""

    name: str
    engine: str = ""
    port: int = 0
    gpus: tuple[int, ...] = ()
    model: str = ""  # the name under which it serves
    model_path: str = ""
    deadlines: dict[str, PhaseLimit] = msgspec.field(default_factory=dict)
    default_limit: PhaseLimit = PhaseLimit(600.0, 3600.0)
    readiness: ReadinessSettings = ReadinessSettings()
    stop: StopSettings = StopSettings()
    restart: RestartSettings = RestartSettings()
    reclaim: ReclaimSettings = ReclaimSettings()
    serving: ServingSettings = ServingSettings()
    detectors: DetectorSettings = DetectorSettings()
    history_key: str = ""
    evidence_limit_s: float = 10.0
    fatal_grace_s: float = 10.0
    blind_idle_s: float = 900.0  # patience with idle processes whose log tells nothing
    spawn_limit_s: float = 30.0
    kill_limit_s: float = 20.0

    def limit(self, phase: str) -> PhaseLimit:
        """The deadlines of a phase; unknown phases get the generous default."""
        return self.deadlines.get(phase, self.default_limit)
