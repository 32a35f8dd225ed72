"""Everything that can happen to one server, as frozen values that survive JSON.

An event is past tense: it has happened, and nothing in it can be refused. Edge feeds and the results of actions
arrive as events; `core.server.Server.handle` is the only reader that decides anything. Shapes are part of the
journal's format: fields may be added with a default, never renamed or removed.
"""

from __future__ import annotations

import enum
from typing import Any, TypeAlias

import msgspec


class ProbeOutcome(enum.StrEnum):
    """What one HTTP probe saw; what that means depends on the lifecycle (`core.health`)."""

    OK = "ok"
    UNAVAILABLE = "unavailable"  # 503: warming, draining or sick, told apart by what we know otherwise
    REFUSED = "refused"  # nobody listens: normal for most of a start
    TIMEOUT = "timeout"  # accepted, no answer in time
    ERROR = "error"  # any other status, or a broken answer
    UNKNOWN = "unknown"  # the probe itself could not be made (our own fault: no descriptors, ...)


class Listener(enum.StrEnum):
    """Whose socket listens on the server's port, by inode and tree."""

    OURS = "ours"
    FOREIGN = "foreign"
    NONE = "none"
    UNKNOWN = "unknown"


class Event(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """Base of all events."""


# --- control -----------------------------------------------------------------------------------------------------


class StartRequested(Event, frozen=True):
    """Somebody wants the server up; `by` names the user or the rule."""

    by: str
    force: bool = False


class StopRequested(Event, frozen=True):
    """Somebody wants the server down.

    `grace_s` replaces the configured grace of a running server, which then drains: when somebody hands requests out to
    it, the running ones are waited for before it is asked to end. `hold`: it is not ended yet, because others that need
    it have to end first; the same is asked again then.
    """

    by: str
    grace_s: float | None = None
    hold: bool = False


class RestartRequested(Event, frozen=True):
    """Somebody wants this attempt ended and a fresh one started. `grace_s` as in StopRequested."""

    by: str
    reason: str = ""
    grace_s: float | None = None


class SignalRequested(Event, frozen=True):
    """Somebody wants a signal sent to the server's leader."""

    by: str
    signal: int


class PauseRequested(Event, frozen=True):
    """Somebody is about to work on the server: nothing is to be killed or started by itself."""

    by: str


class ResumeRequested(Event, frozen=True):
    """The work is done."""

    by: str


class MateFailed(Event, frozen=True):
    """Another server of a group that restarts together has failed: all start again after `delay_s`, None: never."""

    mate: str
    reason: str
    delay_s: float | None = None


# --- process -----------------------------------------------------------------------------------------------------


class Spawned(Event, frozen=True):
    """The attempt's leader runs. `start_ticks` is field 22 of /proc/PID/stat: pid + start_ticks is an identity."""

    attempt: int
    pid: int
    start_ticks: int = 0
    cgroup: str = ""
    log_path: str = ""


class SpawnFailed(Event, frozen=True):
    """The attempt never ran. `permanent` = a retry of the same command must fail too (no such file, not executable)."""

    attempt: int
    reason: str
    permanent: bool


class Exited(Event, frozen=True):
    """The leader ended: `code` >= 0 is its status, < 0 the negated signal, None when nobody could tell."""

    attempt: int
    code: int | None


class TreeEmptied(Event, frozen=True):
    """No process of the attempt is left, proven by `populated 0` or by a sweep that found nobody twice."""

    attempt: int
    killed: int = 0
    took_s: float = 0.0
    kernel_heard: bool = False  # an OOM kill of the kernel's would have been told


class StuckProcess(msgspec.Struct, frozen=True):
    """A process that survives SIGKILL: it sleeps inside the kernel."""

    pid: int
    state: str
    wait_channel: str = ""
    command: str = ""


class TreeStuck(Event, frozen=True):
    """Processes of the attempt survive SIGKILL."""

    attempt: int
    processes: tuple[StuckProcess, ...]


class RoleDied(Event, frozen=True):
    """A process with a role (a scheduler rank, the detokenizer) ended while its leader lives on.

    `code` is its exit status, negative for a signal; None when it was reaped, or hidden, before anybody could look.
    """

    attempt: int
    pid: int
    role: str
    rank: str = ""
    with_leader: bool = False  # the leader ended in the same moment, or since: told afterwards, for the cause
    code: int | None = None


class ProcessSample(msgspec.Struct, frozen=True):
    """One process of the tree at one moment. `role` is "" for processes that the profile gives none.

    `state` is the kernel's letter: R runs, S sleeps, D sleeps in the kernel and cannot be interrupted, T is stopped.
    `cpu_s` counts user and system time, `read_bytes` what storage was really asked for (/proc/PID/io, not the cache).
    """

    pid: int
    state: str
    role: str = ""
    rank: str = ""
    cpu_s: float = 0.0
    read_bytes: int = 0
    write_bytes: int = 0


class TreeSampled(Event, frozen=True):
    """The processes of the attempt were looked at. Sums include processes that have ended since the last look.

    `compilers`: processes that compile kernels (a JIT build is work, however silent). `unreadable` counts processes
    whose IO we may not see: their bytes are missing from the sums. `members` counts everybody, not only `processes`.
    """

    attempt: int
    cpu_s: float
    read_bytes: int
    write_bytes: int
    processes: tuple[ProcessSample, ...] = ()
    compilers: int = 0
    unreadable: int = 0
    members: int = 0


class EngineSampled(Event, frozen=True):
    """The engine's own counters. None = the engine does not have this one."""

    attempt: int
    tokens: float | None = None
    requests: float | None = None
    running: float | None = None
    queued: float | None = None


class DeviceMemorySampled(Event, frozen=True):
    """How much memory the attempt's processes hold on its devices, all together."""

    attempt: int
    bytes: int


class RoutersLeft(Event, frozen=True):
    """Whoever hands requests out has let go of the server; `problem` is why that could not be had in time, "" else."""

    attempt: int
    problem: str = ""


class RequestsCounted(Event, frozen=True):
    """How many requests the engine has, running and queued; None when it does not tell, and why."""

    attempt: int
    requests: int | None
    reason: str = ""


class CanaryAnswered(Event, frozen=True):
    """A small real request was sent to an idle server: `sane` False = it answered nonsense, None = no answer."""

    attempt: int
    sane: bool | None
    latency_s: float = 0.0
    detail: str = ""


class HostOomKilled(Event, frozen=True):
    """The kernel's OOM killer ended a process of the attempt; `source` says how we know. pid 0: nobody knows which."""

    attempt: int
    pid: int = 0
    process: str = ""
    source: str = ""


# --- log ---------------------------------------------------------------------------------------------------------


class LineMatched(Event, frozen=True):
    """One record of the log (or an assembled traceback) matched a rule of the engine's profile.

    `line` counts from 1 within the attempt's log; `rank` is the canonical prefix ("TP3", "DP1 TP0", "" = launcher);
    `stamp` the record's own time text or ""; `text` is stripped of control characters and capped.
    """

    attempt: int
    line: int
    rule: str
    rank: str = ""
    stamp: str = ""
    fields: dict[str, str] = msgspec.field(default_factory=dict)
    text: str = ""


class LogGrew(Event, frozen=True):
    """Bytes arrived: a sign of activity, never of progress. Sent at most about once a second."""

    attempt: int
    bytes: int
    lines: int


class LogUnreadable(Event, frozen=True):
    """The log cannot be read: we are blind there, which is no failure of the server."""

    attempt: int
    reason: str


# --- probes, devices, evidence -----------------------------------------------------------------------------------


class Probed(Event, frozen=True):
    """One HTTP probe ended. `model` is the identity the answer carried, "" when it carried none."""

    attempt: int
    outcome: ProbeOutcome
    status: int = 0
    latency_s: float = 0.0
    listener: Listener = Listener.UNKNOWN
    model: str = ""
    detail: str = ""


class Holder(msgspec.Struct, frozen=True):
    """Somebody who holds memory of a device."""

    device: int
    bytes: int
    pid: int = 0
    user: str = ""
    command: str = ""
    kind: str = "unattributed"  # own · server · foreign · unattributed
    server: str = ""


class DevicesChecked(Event, frozen=True):
    """The server's devices were looked at: `clean` True, False, or None when the feed is blind."""

    attempt: int
    clean: bool | None
    reason: str = ""
    holders: tuple[Holder, ...] = ()
    devices: tuple[int, ...] = ()
    quarantined: tuple[int, ...] = ()
    ports: tuple[str, ...] = ()  # who holds a port of the server, in words
    waiting: bool = False  # not clean, but nothing of this server's: no look yet, or another server has the devices
    refuse: bool = False  # not clean, and no start is to wait for it
    again_s: float | None = None  # when to look again, where the look itself has waited for a change


class EvidenceKept(Event, frozen=True):
    """The evidence bundle is on disk at `path` ("" when nothing could be kept); `missing` says what is not in it.

    `cut`: an earlier daemon has died over it, and what there is of it has been found.
    """

    attempt: int
    path: str
    missing: tuple[str, ...] = ()
    took_s: float = 0.0
    cut: bool = False


# --- time --------------------------------------------------------------------------------------------------------


class Ticked(Event, frozen=True):
    """The moment named by `Server.deadline()` has come."""


AnyEvent: TypeAlias = (
    StartRequested
    | StopRequested
    | RestartRequested
    | SignalRequested
    | PauseRequested
    | ResumeRequested
    | MateFailed
    | Spawned
    | SpawnFailed
    | Exited
    | TreeEmptied
    | TreeStuck
    | RoleDied
    | HostOomKilled
    | TreeSampled
    | EngineSampled
    | DeviceMemorySampled
    | CanaryAnswered
    | RoutersLeft
    | RequestsCounted
    | LineMatched
    | LogGrew
    | LogUnreadable
    | Probed
    | DevicesChecked
    | EvidenceKept
    | Ticked
)

_decoder = msgspec.json.Decoder(AnyEvent)
_encoder = msgspec.json.Encoder()


def encode(event: AnyEvent) -> bytes:
    """The event as one JSON object, tagged by its type name."""
    return _encoder.encode(event)


def decode(data: bytes | str) -> AnyEvent:
    """The event that `encode` wrote. Raises msgspec.ValidationError naming the path of what is wrong."""
    event: Any = _decoder.decode(data)
    return event  # type: ignore[no-any-return]
