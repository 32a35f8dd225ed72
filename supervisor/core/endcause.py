"""What ended an attempt: class, evidence and remedy, from its log's clues, its exit code and what we saw ourselves."""

from __future__ import annotations

import enum
from typing import NamedTuple

from msgspec.structs import replace

from supervisor.core.clues import EXTERNAL, HOST_OOM, NO_EVIDENCE, PEER_DEATH
from supervisor.core.diagnose import CauseFinder
from supervisor.events import HostOomKilled
from supervisor.profile import Profile
from supervisor.snapshot import DiagnosisView

_GUESS = 0.4  # an exit by signal 9 alone: the kernel, an operator and the engine itself end a process alike
_SURE = 0.7
_SEEN = 0.8
_ENDED_FROM_OUTSIDE = (-9, -15)
CANNOT_EXECUTE = "cannot-execute"  # no class of a log: the command never ran
_OF_A_SIGNAL = (EXTERNAL, PEER_DEATH, HOST_OOM, NO_EVIDENCE)  # what an end looks like that a signal brought about
_VANISHED_REMEDY = (
    "A process of the server vanished without a word: look at the kernel's log for a kill or a crash "
    "(dmesg -T | grep -iE 'oom|killed|segfault')."
)


class EndKind(enum.StrEnum):
    """Who or what ended the attempt."""

    OPERATOR = "operator"
    STALL = "stall"
    DEAD = "dead"
    EXIT = "exit"
    SPAWN = "spawn"


class End(NamedTuple):
    """What is known about the end of an attempt beside its log."""

    kind: EndKind | None
    reason: str
    code: int | None  # of the leader; None while it runs, or when nobody can tell
    exited: bool
    signals: frozenset[int]  # ours
    stage: str  # the coarse one of its start
    was_ready: bool
    permanent: bool  # of a spawn that failed: no retry can help
    oom: HostOomKilled | None  # lately
    kernel_heard: bool  # the kernel's word on an OOM kill would have reached us
    death_code: int | None = None  # of the process with a role that ended first
    first_death: str = ""  # who that was; "" when the leader was the first
    together: bool = False  # and was seen to end in the same moment as the leader
    asked: str = ""  # the signal that somebody had us send, and who
    alone: bool = True  # every rank is of this tree: whom one of them misses is another of them


def end_cause(finder: CauseFinder, profile: Profile, end: End) -> DiagnosisView:
    """The diagnosis of an ended attempt, or of one that we are about to end."""
    stalled, dead = end.kind is EndKind.STALL, end.kind is EndKind.DEAD
    # Whom we judged stalled or dead was alive until our own kill: his exit status and our signals tell of us, not of
    # him. What tells of a dead one is how the process ended whose end he did not survive.
    code = end.death_code if dead else None if stalled else end.code
    signals = frozenset[int]() if dead else end.signals
    told = finder.conclude(code, signals, alive=stalled or not (dead or end.exited), stage=end.stage)
    if _anothers_line(told, end):
        told = replace(told, evidence_rank="")
    if end.oom is not None:
        return _by_the_kernel(profile, end.oom)
    if end.kind is EndKind.SPAWN:
        return _never_ran(end)
    if end.asked and end.kind is EndKind.EXIT and told.cause in _OF_A_SIGNAL:
        return _asked_for(profile, end.asked)
    if told.cause == PEER_DEATH:
        told = _killed_first(profile, finder, end) or told
    if told.cause == HOST_OOM:
        told = _unproven_oom(told, kernel_heard=end.kernel_heard)
    if stalled and not _explains(profile, told):
        return _seen_stalled(profile, end)
    return _seen_dead(told, end) if dead and not told.evidence else told


def _anothers_line(told: DiagnosisView, end: End) -> bool:
    """Whether a rank other than the one whose line proves the cause was seen to crash first.

    What a crash prints bears no rank's prefix, and is taken for that of whoever wrote before it.
    """
    crashed = end.death_code is not None and end.death_code < 0 and end.death_code not in _ENDED_FROM_OUTSIDE
    return crashed and not end.together and told.evidence_rank not in end.first_death.partition(" (")[0]


def proven(told: DiagnosisView | None) -> bool:
    """Whether a line of the log explains the end for sure, so that who ended first is but the order of the clearing up.

    An engine that gives up kills its own processes one after another.
    """
    return told is not None and told.evidence_line > 0 and told.confidence >= _SURE and told.cause not in _OF_A_SIGNAL


def in_words(kind: EndKind | None, reason: str, code: int | None, first_death: str) -> str:
    """The end of an attempt in a few words. `first_death`: who with a role ended before its leader, "" for nobody."""
    after = f" after {first_death} had ended" if first_death else ""  # the leader's end is often another's echo
    match kind:
        case EndKind.STALL | EndKind.DEAD | EndKind.SPAWN:
            return reason
        case EndKind.OPERATOR:  # the engine kills its own tree on the way out: no more than a detail then
            return "ended as asked" if not code else f"ended as asked, {_how(code)}"
        case _ if code is None:
            return f"ended, exit status unknown{after}"
        case _ if code < 0:
            return f"ended {_how(code)}{after}"
        case _:
            return f"exited {_how(code)}{after}"


def _how(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"with status {code}"


def _asked_for(profile: Profile, asked: str) -> DiagnosisView:
    """Nobody needs to be looked for: it was we who sent the signal, and we know for whom."""
    known = profile.cause(EXTERNAL)
    return DiagnosisView(
        EXTERNAL,
        restart=known.restart if known else "yes",
        remedy="Nothing: the signal was asked for here (sglctl events NAME). To have it stay down: sglctl stop NAME.",
        evidence=asked,
        confidence=_SEEN,
    )


def _killed_first(profile: Profile, finder: CauseFinder, end: End) -> DiagnosisView | None:
    """The survivors complain, and we saw who ended by a signal before them; None when nobody did."""
    who, code = f"{end.first_death} ended first,", end.death_code if end.alone else None
    if code is None and (end.together or not end.first_death) and _killed_leader(finder, end):
        beside = f"and {end.first_death} ended in one moment, the leader" if end.together else "ended first,"
        who, code = f"the leader {beside}", end.code
    if code is None or code >= 0:
        return None
    told = CauseFinder(profile).conclude(code, frozenset(), alive=False, stage=end.stage)  # the log put aside
    return replace(told, evidence=f"{who} by signal {-code}; what the log says came after it")


def _killed_leader(finder: CauseFinder, end: End) -> bool:
    """Whether its end may have been the first: who says that it ends, or is told to by us, echoes another's."""
    return end.exited and not end.signals and not finder.clues.leader_ends


def _seen_dead(told: DiagnosisView, end: End) -> DiagnosisView:
    """The log names no cause: what we saw is the evidence, and says where to look on."""
    if told.cause == NO_EVIDENCE:
        told = replace(told, remedy=_VANISHED_REMEDY)
    return replace(told, evidence=end.reason)


def _explains(profile: Profile, told: DiagnosisView) -> bool:
    """Whether the log's cause can be that of a stall: what is no failure cannot, nor can a lack of evidence."""
    known = profile.cause(told.cause)
    return known is not None and known.failure and told.confidence >= _GUESS


def _never_ran(end: End) -> DiagnosisView:
    """No log tells why a command cannot be executed; the kernel did."""
    return DiagnosisView(
        CANNOT_EXECUTE,
        restart="no" if end.permanent else "maybe",
        remedy="Correct the server's command, directory or user."
        if end.permanent
        else "The host refused a new process: look at its memory, process and open-file limits.",
        evidence=end.reason,
        confidence=1.0,
    )


def _unproven_oom(guess: DiagnosisView, *, kernel_heard: bool) -> DiagnosisView:
    """The log alone makes it look like the kernel's OOM killer, which would have told of itself."""
    if not kernel_heard:
        return replace(guess, restart="maybe", confidence=min(guess.confidence, _GUESS))
    return DiagnosisView(
        EXTERNAL,
        restart="maybe",
        remedy="Somebody's SIGKILL ended it: neither the kernel nor its cgroup tells of an OOM kill. Find out who.",
        evidence_line=guess.evidence_line,
        evidence=guess.evidence,
        confidence=_GUESS,
    )


def _seen_stalled(profile: Profile, end: End) -> DiagnosisView:
    """What we saw ourselves when the log explains nothing: a hang of the stage it happened in."""
    serving = profile.stages[-1]
    known = profile.cause(profile.hangs.get(serving if end.was_ready else end.stage, ""))
    if known is None or not known.failure:  # slow it would be by its log alone; we know that it stands still
        known = profile.cause(profile.hangs.get(serving, ""))
    return DiagnosisView(
        cause=known.name if known else "",
        restart=known.restart if known and known.restart != "no" else "maybe",
        remedy=known.remedy if known else "",
        evidence=end.reason,
        confidence=_SEEN,
    )


def _by_the_kernel(profile: Profile, oom: HostOomKilled) -> DiagnosisView:
    """The kernel's own word outweighs everything that the log makes of a vanished process."""
    known = profile.cause(HOST_OOM)
    who = f"pid {oom.pid} ({oom.process})" if oom.pid else "a process of the server"
    return DiagnosisView(
        cause=HOST_OOM,
        restart=known.restart if known else "maybe",
        remedy=known.remedy if known else "",
        evidence=f"the kernel's OOM killer ended {who}: {oom.source}",
        confidence=0.97,
    )
