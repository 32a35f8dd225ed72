"""Counts what a server has cost over its life: starts, ends by reason, seconds and GPU-seconds lost by cause.

Fed with a snapshot whenever a facet has changed, it compares with what it has counted before, so that counting on after
a restart of the daemon, or seeing the same snapshot twice, changes nothing. Counters only ever grow.

Time without service is put down to its cause when the cause is known: hours of a start that stalls are not hours of
starting. Until then it is pending.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from supervisor.actions import AnyAction
from supervisor.core.gpus.views import GpusView
from supervisor.core.histogram import Histogram, histogram, observe
from supervisor.core.lifecycle import ALIVE
from supervisor.core.phasetimes import phase_seconds
from supervisor.core.reasons import Reason, reason_of
from supervisor.core.traffic import HostTraffic, Meter, Traffic, together
from supervisor.events import AnyEvent
from supervisor.snapshot import IncidentView, ServerSnapshot, StartupView, StopView

STARTUP = "startup"  # a start that no failure made necessary
DEVICES = "devices"  # its GPUs or ports were not free
UNREADY = "unready"  # it runs and cannot be used
LOSSES = (*(str(reason) for reason in Reason), STARTUP, DEVICES, UNREADY)
EXIT_KINDS = ("code", "signal", "unknown")
READY, FAILED = RESULTS = ("ready", "failed")
PASSED, FAILED_IN = PHASE_RESULTS = ("passed", "failed")

STARTUP_BUCKETS_S = (5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 2400.0, 3600.0)
STOP_BUCKETS_S = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 90.0, 120.0, 300.0)
RELEASE_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
PHASE_BUCKETS_S = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 2400.0, 3600.0)

_UNDER_WAY = ("starting", "draining", "stopping")
_UNUSABLE = ("stalled", "dead")


class Account(msgspec.Struct):
    """Everything counted about one server. What is kept between two daemons is exactly this."""

    attempt: int = 0  # the newest one whose start is counted
    ended: int = 0  # the newest one whose end is counted
    ready: int = 0  # the newest one whose readiness is counted
    after: str = ""  # the reason of the last end, until it serves again or nobody wants it up
    starts: int = 0
    restarts: dict[str, int] = {}
    exits: dict[str, int] = {}  # "kind reason"
    lost_s: dict[str, float] = {}
    gpu_lost_s: dict[str, float] = {}
    pending_s: float = 0.0
    pending_gpu_s: float = 0.0
    killed_processes: int = 0
    startup_s: dict[str, Histogram] = {}
    stop_s: Histogram = msgspec.field(default_factory=lambda: histogram(STOP_BUCKETS_S))
    release_s: Histogram = msgspec.field(default_factory=lambda: histogram(RELEASE_BUCKETS_S))
    unreleased_s: Histogram = msgspec.field(default_factory=lambda: histogram(RELEASE_BUCKETS_S))  # given up
    released: int = 0  # the newest attempt whose memory came back, or did not
    phase_s: dict[str, Histogram] = {}  # "phase result"
    traffic: Traffic = msgspec.field(default_factory=Traffic)


class SavedTally(msgspec.Struct, frozen=True):
    """All accounts, for the next daemon; Xids by the device's UUID."""

    servers: dict[str, Account] = {}
    xids: dict[str, int] = {}
    host: HostTraffic = HostTraffic()


class _Spell(msgspec.Struct, frozen=True):
    """Time without service that goes on: since when, with how many idle GPUs, and for which cause ("" = pending)."""

    since: float
    cause: str
    gpus: int


class Tally:
    """The book of all servers. `observe` and `settle` are told the time in order."""

    def __init__(self, saved: SavedTally | None = None) -> None:
        self._accounts = dict(saved.servers) if saved else {}
        self._xids = dict(saved.xids) if saved else {}
        self._spells: dict[str, _Spell] = {}
        self._stalled: dict[str, int] = {}  # the attempt that was called stalled
        self._xid_at: dict[str, float] = {}
        self._reclaiming: dict[str, float] = {}  # since when memory is waited for
        self._meters: dict[str, Meter] = {}
        self._host = saved.host if saved else HostTraffic()
        self.stirred = False  # something was counted since the last `save`

    # --- what is observed ---

    def observe(self, snapshot: ServerSnapshot, now: float) -> None:
        """Take in a server's facets. The first look at an unknown server counts nothing that was before."""
        account = self._accounts.get(snapshot.name)
        if account is None:
            account = self._accounts[snapshot.name] = Account(
                attempt=snapshot.attempt, ended=snapshot.attempt, ready=snapshot.attempt, released=snapshot.attempt
            )
        self._settle(snapshot.name, account, now)
        if snapshot.verdict.value == "stalled":
            self._stalled[snapshot.name] = snapshot.attempt
        if snapshot.attempt > account.attempt:
            _count_start(account, snapshot)
        if account.ended < snapshot.attempt and snapshot.lifecycle.value not in ALIVE:
            _count_end(account, snapshot, stalled=self._stalled.get(snapshot.name) == snapshot.attempt)
        self._count_release(account, snapshot, now)
        _count_ready(account, snapshot)
        if snapshot.goal != "up":
            _forgive(account)
        self._begin_spell(account, snapshot, now)

    def hear(self, name: str, what: AnyEvent | AnyAction) -> None:
        """Count an event or an action of a server that has been observed before."""
        if name not in self._meters:
            if name not in self._accounts:
                return
            self._meters[name] = Meter(self._accounts[name].traffic)
        self.stirred |= self._meters[name].take(what)

    def observe_gpus(self, view: GpusView) -> None:
        """Count Xids. Several between two looks count once: the driver's log has each of them."""
        for gpu in view.gpus:
            self._xids.setdefault(gpu.uuid, 0)
            if gpu.last_xid_at is not None and gpu.last_xid_at > self._xid_at.get(gpu.uuid, -1.0):
                self._xids[gpu.uuid] += 1
                self._xid_at[gpu.uuid] = gpu.last_xid_at

    def settle(self, now: float) -> None:
        """Bring the seconds up to `now`."""
        for name, account in self._accounts.items():
            self._settle(name, account, now)

    def keep_only(self, names: Iterable[str]) -> None:
        """Servers that are configured no more are forgotten, and their series with them."""
        for name in set(self._accounts) - set(names):
            del self._accounts[name]
            for book in (self._spells, self._stalled, self._reclaiming, self._meters):
                book.pop(name, None)

    # --- what is told ---

    @property
    def losing(self) -> bool:
        """Whether anybody's time is being lost."""
        return bool(self._spells)

    def account(self, name: str) -> Account:
        """What was counted about a server; nothing about one that was never observed."""
        return self._accounts.get(name) or Account()

    def xids(self) -> dict[str, int]:
        """Xids by the device's UUID."""
        return self._xids

    def processes(self) -> dict[str, int]:
        """How many each server has, as far as they were looked at."""
        return {name: meter.processes for name, meter in self._meters.items() if meter.processes is not None}

    def save(self, host: HostTraffic = HostTraffic()) -> SavedTally:  # noqa: B008 - frozen
        """For the next daemon; `host` is what this one has counted for the whole host."""
        self.stirred = False
        return SavedTally(self._accounts, self._xids, together(self._host, host))

    # --- memory ---

    def _count_release(self, account: Account, snapshot: ServerSnapshot, now: float) -> None:
        """From no process to all memory being back, or to the end of patience with it."""
        state, stop = snapshot.lifecycle.value, snapshot.stop
        since = self._reclaiming.setdefault(snapshot.name, now)
        if state != "reclaiming":
            del self._reclaiming[snapshot.name]
        if not snapshot.gpus or account.released >= snapshot.attempt or stop is None or stop.empty_s is None:
            return
        if stop.free_s is not None:
            account.released = snapshot.attempt
            account.release_s.add(max(0.0, stop.free_s - stop.empty_s), RELEASE_BUCKETS_S)
        elif state == "quarantined":
            account.released = snapshot.attempt
            account.unreleased_s.add(now - since, RELEASE_BUCKETS_S)

    # --- time ---

    def _settle(self, name: str, account: Account, now: float) -> None:
        spell = self._spells.get(name)
        if spell is None or now <= spell.since:
            return
        seconds = now - spell.since
        if spell.cause:
            _lose(account, spell.cause, seconds, seconds * spell.gpus)
        else:
            account.pending_s += seconds
            account.pending_gpu_s += seconds * spell.gpus
        self._spells[name] = msgspec.structs.replace(spell, since=now)

    def _begin_spell(self, account: Account, snapshot: ServerSnapshot, now: float) -> None:
        cause = _cause(account, snapshot)
        if cause is None:
            self._spells.pop(snapshot.name, None)
        else:
            self._spells[snapshot.name] = _Spell(now, cause, len(snapshot.gpus))


def _cause(account: Account, snapshot: ServerSnapshot) -> str | None:
    """What the server's time is lost to from now on; None while it serves or nobody wants it."""
    state = snapshot.lifecycle.value
    if snapshot.goal != "up":
        return None
    if state == "running":
        usable = snapshot.readiness.value != "failure" and snapshot.verdict.value not in _UNUSABLE
        return None if usable else UNREADY
    if state in _UNDER_WAY:
        return ""
    return account.after or (DEVICES if state == "reclaiming" else STARTUP)


def _count_start(account: Account, snapshot: ServerSnapshot) -> None:
    account.starts += snapshot.attempt - account.attempt
    account.attempt = snapshot.attempt
    if account.after:
        account.restarts[account.after] = account.restarts.get(account.after, 0) + 1


def _count_end(account: Account, snapshot: ServerSnapshot, *, stalled: bool) -> None:
    incident = _incident(snapshot)
    reason = Reason.OPERATOR if incident is None else reason_of(incident, stalled=stalled)
    key = f"{_exit_kind(snapshot)} {reason}"
    account.exits[key] = account.exits.get(key, 0) + 1
    if account.ready < snapshot.attempt and incident is not None:
        observe(account.startup_s, FAILED, incident.ended - incident.begun, STARTUP_BUCKETS_S)
        _count_phases(account, snapshot.start, incident.ended, FAILED_IN)
    _count_stop(account, snapshot.stop)
    _attribute(account, str(reason))
    account.ended, account.after = snapshot.attempt, str(reason)


def _incident(snapshot: ServerSnapshot) -> IncidentView | None:
    return next((one for one in reversed(snapshot.incidents) if one.attempt == snapshot.attempt), None)


def _exit_kind(snapshot: ServerSnapshot) -> str:
    if snapshot.exit is None or snapshot.exit.code is None:
        return "unknown"
    return "signal" if snapshot.exit.code < 0 else "code"


def _count_stop(account: Account, stop: StopView | None) -> None:
    if stop is not None and stop.empty_s is not None:
        account.stop_s.add(stop.empty_s, STOP_BUCKETS_S)
        account.killed_processes += stop.killed


def _count_ready(account: Account, snapshot: ServerSnapshot) -> None:
    """Serving: the time until here belongs to the failure before it, else to the start itself."""
    if snapshot.lifecycle.value != "running":
        return
    _attribute(account, account.after or STARTUP)
    account.after = ""
    if account.ready < snapshot.attempt and snapshot.ready_since is not None and snapshot.started is not None:
        account.ready = snapshot.attempt
        observe(account.startup_s, READY, snapshot.ready_since - snapshot.started, STARTUP_BUCKETS_S)
        _count_phases(account, snapshot.start, snapshot.ready_since, PASSED)


def _count_phases(account: Account, start: StartupView | None, end: float, last_result: str) -> None:
    """The last phase may be the one in which the start failed."""
    lengths = phase_seconds(start, end)
    last = next(reversed(lengths), "")
    for phase, seconds in lengths.items():
        result = last_result if phase == last else PASSED
        observe(account.phase_s, f"{phase} {result}", seconds, PHASE_BUCKETS_S)


def _forgive(account: Account) -> None:
    """Nobody wants it up any more: an open account is closed, the next start begins a new one."""
    _attribute(account, account.after or STARTUP)
    account.after = ""


def _attribute(account: Account, cause: str) -> None:
    if account.pending_s:
        _lose(account, cause, account.pending_s, account.pending_gpu_s)
        account.pending_s = account.pending_gpu_s = 0.0


def _lose(account: Account, cause: str, seconds: float, gpu_seconds: float) -> None:
    account.lost_s[cause] = account.lost_s.get(cause, 0.0) + seconds
    account.gpu_lost_s[cause] = account.gpu_lost_s.get(cause, 0.0) + gpu_seconds
