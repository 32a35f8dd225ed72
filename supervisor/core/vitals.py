"""What moves in a server besides its log: CPU, storage, device memory, compilers, the engine's own counters.

Progress is an advance that somebody wants (a bar, tokens, bytes loaded); activity is anything that costs energy. A
spinning rank is active and makes no progress; one that reads weights at 2 GB/s without a word makes progress.
"""

from __future__ import annotations

import msgspec

from supervisor.events import DeviceMemorySampled, EngineSampled, ProcessSample, TreeSampled
from supervisor.snapshot import VoteView
from supervisor.units import format_bytes

ACTIVE_CORES = 0.2  # of a core, over the whole tree: idle servers were seen at 0.03 (SGLang 0.5.23, --sleep-on-idle)
ACTIVE_BYTES_S = 1e6
LOADING_BYTES_S = 5e6  # a cold, busy disk still gives a loader more than this; a hung server reads nothing
DEVICE_STEP_BYTES = 64 * 2**20
RECENT_S = 15.0


class Standstill(msgspec.Struct, frozen=True):
    """A process with a role that cannot run: stopped, or stuck in the kernel. `seen`: by the last look at it."""

    process: ProcessSample
    since: float
    seen: float

    @property
    def lasted_s(self) -> float:
        """For how long looks have found it so. What it does since the last one nobody knows."""
        return self.seen - self.since

    @property
    def words(self) -> str:
        """For people."""
        name = f"{self.process.role} {self.process.rank}".strip()
        how = "is stopped (T)" if self.process.state in "Tt" else "is stuck in the kernel (D)"
        return f"{name} (pid {self.process.pid}) {how}"


class Vitals:
    """Clocks of one attempt: when each kind of thing last moved. None = never seen, so nobody can tell."""

    def __init__(self) -> None:
        self.cpu_at: float | None = None
        self.io_at: float | None = None
        self.loading_at: float | None = None
        self.device_at: float | None = None
        self.tokens_at: float | None = None
        self.compiling_at: float | None = None
        self.running: float | None = None
        self.queued: float | None = None
        self.busy_since: float | None = None  # since when the engine has had requests without a break
        self._tree: tuple[float, TreeSampled] | None = None
        self._engine: EngineSampled | None = None
        self._device_bytes: int | None = None
        self._standing: dict[int, Standstill] = {}
        self.cores: float | None = None
        self.read_bytes_s: float | None = None

    # --- what is seen --------------------------------------------------------------------------------------------

    def tree(self, sample: TreeSampled, now: float) -> None:
        """The processes were looked at."""
        if self._tree is not None:
            before, last = self._tree
            self._compare(last, sample, max(1e-3, now - before), now)
        self._tree = now, sample
        if sample.compilers:
            self.compiling_at = now
        stuck = {p.pid: p for p in sample.processes if p.role and p.state in "TtD"}
        self._standing = {
            pid: Standstill(process, self._standing[pid].since if pid in self._standing else now, now)
            for pid, process in stuck.items()
        }

    @property
    def processes(self) -> tuple[ProcessSample, ...]:
        """The leader and those with a role, at the last look."""
        return self._tree[1].processes if self._tree is not None else ()

    def _compare(self, last: TreeSampled, sample: TreeSampled, span_s: float, now: float) -> None:
        self.cores = max(0.0, sample.cpu_s - last.cpu_s) / span_s
        self.read_bytes_s = max(0, sample.read_bytes - last.read_bytes) / span_s
        written = max(0, sample.write_bytes - last.write_bytes) / span_s
        if self.cores >= ACTIVE_CORES:
            self.cpu_at = now
        if self.read_bytes_s + written >= ACTIVE_BYTES_S:
            self.io_at = now
        if self.read_bytes_s >= LOADING_BYTES_S:
            self.loading_at = now

    def engine(self, sample: EngineSampled, now: float) -> None:
        """The engine's counters were read."""
        last = self._engine
        moved = last is not None and (_grew(last.tokens, sample.tokens) or _grew(last.requests, sample.requests))
        if moved:
            self.tokens_at = now
        self.running, self.queued = sample.running, sample.queued
        if not ((sample.running or 0) + (sample.queued or 0)):
            self.busy_since = None
        elif self.busy_since is None:
            self.busy_since = now
        self._engine = sample

    def device_memory(self, sample: DeviceMemorySampled, now: float) -> None:
        """The devices were looked at."""
        if self._device_bytes is None or abs(sample.bytes - self._device_bytes) >= DEVICE_STEP_BYTES:
            if self._device_bytes is not None:
                self.device_at = now
            self._device_bytes = sample.bytes

    # --- what it means -------------------------------------------------------------------------------------------

    @property
    def known(self) -> bool:
        """Whether the processes have been compared at least once."""
        return self.cores is not None

    def side_progress_at(self) -> float | None:
        """The last advance that no log line told: bytes loaded, device memory filled, tokens, a compiler at work."""
        return _latest(self.loading_at, self.device_at, self.tokens_at, self.compiling_at)

    def active_at(self) -> float | None:
        """The last moment at which anything cost energy."""
        return _latest(self.cpu_at, self.io_at, self.side_progress_at())

    def standstills(self) -> tuple[Standstill, ...]:
        """Processes with a role that cannot run, the longest first."""
        return tuple(sorted(self._standing.values(), key=lambda one: one.since))

    def votes(self, now: float) -> tuple[VoteView, ...]:
        """Each signal's word."""
        cores = f"{self.cores:.1f} cores" if self.cores is not None else "no two looks yet"
        rate = f"{(self.read_bytes_s or 0) / 1e6:.0f} MB/s read" if self.known else "no two looks yet"
        held = f"{format_bytes(self._device_bytes)} held" if self._device_bytes is not None else "not seen"
        return (
            _vote("cpu", self.cpu_at, now, cores, known=self.known),
            _vote("io", self.io_at, now, rate, known=self.known),
            _vote("gpu", self.device_at, now, held, known=self._device_bytes is not None),
            _vote("engine", self.tokens_at, now, self._engine_words(), known=self._engine is not None),
        )

    def requests(self) -> int | None:
        """What the engine has, running and queued; None while nobody knows."""
        return None if self.running is None else int(self.running + (self.queued or 0))

    def _engine_words(self) -> str:
        if self._engine is None:
            return "no counters (its /metrics is off)"
        return f"{self.running or 0:.0f} running, {self.queued or 0:.0f} queued"


def _vote(source: str, at: float | None, now: float, text: str, *, known: bool) -> VoteView:
    if not known:
        return VoteView(source, "unknown", None, text)
    moving = at is not None and now - at <= RECENT_S
    return VoteView(source, "moving" if moving else "still", at, text)


def _grew(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after > before


def _latest(*moments: float | None) -> float | None:
    return max((moment for moment in moments if moment is not None), default=None)
