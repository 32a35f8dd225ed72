"""Plays one start through the real core in virtual time, with the vitals that its processes would have had."""

import functools
import math
import random
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from msgspec.structs import replace

from bench.starts import PROFILE, WEIGHTS, Condition, Start, spam
from supervisor.actions import Announce, KeepEvidence, Remember, StartRecord
from supervisor.config import ServerConfig
from supervisor.core.replay.rehearsal import Obliging, Rehearsal
from supervisor.core.resolve import resolve
from supervisor.core.server import Server
from supervisor.core.settings import Settings
from supervisor.events import ProbeOutcome, ProcessSample, StartRequested, TreeSampled
from supervisor.profile import CommandFacts, facts

SAMPLE_S = 2.0  # the daemon's period while a server starts
PROBE_S = 5.0  # a refused port is asked four times a second in truth, which changes no verdict and costs minutes here
SPAM_S = 5.0
GIVE_UP_S = 7200.0
AFTER_READY_S = 20.0
IDLE_CORES = 0.03
SPELL_LIKELY = 0.25  # a phase has a spell in which nothing runs on the host: devices, peers, locks
SPELL_S = (3.0, 12.0)
RANK_CORES = {"dist-init": 0.3, "warmup": 0.4}  # of one rank; 1 in all other phases
RANK_BYTES = 24e9  # what a rank reads of its weights; nothing when they lie in the page cache


class Stall(Enum):
    """How the stuck server looks from outside."""

    STOPPED = "a rank stopped (SIGSTOP)"
    DEADLOCK = "idle and silent"
    SPINNING = "busy and silent"
    SPAM = "busy, log spam"

    @property
    def busy(self) -> bool:
        return self in (Stall.SPINNING, Stall.SPAM)


class Verdict(NamedTuple):
    """How it went. `at` is when the core decided to end it; inf when it never did."""

    at: float
    reason: str
    ready: float
    record: StartRecord | None
    would_have: int  # learned deadlines that only observe, and spoke


def settings_of(command: tuple[str, ...]) -> tuple[Settings, CommandFacts]:
    """As the daemon resolves them, except for the pace of probes."""
    known = facts(PROFILE, command)
    resolved = resolve(ServerConfig("bench", command), PROFILE, known)
    readiness = replace(
        resolved.readiness, refused_interval_s=PROBE_S, warming_interval_s=PROBE_S, warming_interval_max_s=PROBE_S
    )
    return replace(resolved, readiness=readiness), known


def play(
    start: Start,
    condition: Condition,
    history: tuple[StartRecord, ...],
    stall: Stall | None,
    chance: random.Random,
) -> Verdict:
    """One start to its end: ready, condemned, or given up."""
    settings, known = settings_of(start.command)
    server = Server(settings, PROFILE, known, 0.0, 0, history)
    world = Obliging()
    rehearsal = Rehearsal(server, 0.0, world)
    rehearsal.tell(StartRequested("bench"))
    for at, match in start.lines:
        rehearsal.at(at, match)
    vitals = _Vitals(start, condition, stall, chance)
    end = start.ready + AFTER_READY_S if math.isfinite(start.ready) else GIVE_UP_S
    for at in vitals.moments(end):
        rehearsal.at(at, vitals.sample(at))
        if stall is Stall.SPAM and vitals.struck(at) and at % SPAM_S < SAMPLE_S:
            for match in spam():
                rehearsal.at(at, match)
        for moment in sorted({min(at, start.listening), min(at, start.ready), at}):
            if moment < rehearsal.now:
                continue
            if reason := _condemned(rehearsal, moment):
                return _verdict(rehearsal, rehearsal.now, reason)
            world.health = _health(start, moment)
    return _verdict(rehearsal, math.inf, "")


def _condemned(rehearsal: Rehearsal, until: float) -> str:
    """Let time pass; why the start was condemned on the way, "" when it was not."""
    for decided in rehearsal.until(until):
        for action in decided:
            if isinstance(action, KeepEvidence):
                return action.reason
    return ""


def _health(start: Start, at: float) -> ProbeOutcome:
    if at >= start.ready:
        return ProbeOutcome.OK
    return ProbeOutcome.UNAVAILABLE if at >= start.listening else ProbeOutcome.REFUSED


def _verdict(rehearsal: Rehearsal, at: float, reason: str) -> Verdict:
    remembered = [one for one in rehearsal.decisions if isinstance(one.action, Remember)]
    observed = sum(isinstance(one.action, Announce) and one.action.facet == "detector" for one in rehearsal.decisions)
    record = next((one.action.record for one in remembered if isinstance(one.action, Remember)), None)
    return Verdict(at, reason, remembered[0].at if remembered else math.inf, record, observed)


class _Vitals:
    """Counters of the tree, sample by sample."""

    def __init__(self, start: Start, condition: Condition, stall: Stall | None, chance: random.Random) -> None:
        self._start = start
        self._stall = stall
        self._cold = condition.cold
        self._cpu_s = 0.0
        self._read = 0.0
        self._spells = _spells(start, condition, chance)
        self._peers_spin = chance.random() < 0.5  # what ranks do that wait for a stopped one
        self._reads_until = start.lines[-1][0] if start.lines else 0.0

    def moments(self, end: float) -> Iterator[float]:
        """When the processes are looked at."""
        return (SAMPLE_S * count for count in range(1, math.ceil(end / SAMPLE_S)))

    def sample(self, at: float) -> TreeSampled:
        """What a look at the processes tells."""
        self._cpu_s += self._cores(at) * SAMPLE_S
        self._read += self._bytes_s(at) * SAMPLE_S
        return TreeSampled(1, self._cpu_s, int(self._read), 0, self._processes(at))

    def struck(self, at: float) -> bool:
        return self._start.struck is not None and at >= self._start.struck.at

    def _cores(self, at: float) -> float:
        if self.struck(at):
            spins = self._stall is not Stall.DEADLOCK and (self._stall is not Stall.STOPPED or self._peers_spin)
            return len(self._start.ranks) * 1.0 if spins else IDLE_CORES
        if any(begin <= at < end for begin, end in self._spells):
            return IDLE_CORES
        phase = self._start.phase_at(at)
        return (1 if phase in ("launch", "tokenizer") else len(self._start.ranks)) * RANK_CORES.get(phase, 1.0)

    def _bytes_s(self, at: float) -> float:
        """A cold cache is read from storage for the first four fifths of the phase; a warm one costs no storage."""
        phase = next((span for span in self._start.spans if at < span.end), None)
        if not self._cold or phase is None or phase.phase not in WEIGHTS:
            return 0.0
        length = (phase.end - phase.begin) * 0.8
        if at > phase.begin + length or (self.struck(at) and at > self._reads_until):
            return 0.0
        return RANK_BYTES * len(self._start.ranks) / length

    def _processes(self, at: float) -> tuple[ProcessSample, ...]:
        if self._stall is not Stall.STOPPED or not self.struck(at) or self._start.struck is None:
            return _running(self._start.ranks)
        return tuple(
            ProcessSample(one.pid, "T", one.role, one.rank) if one.rank == self._start.struck.rank else one
            for one in _running(self._start.ranks)
        )


@functools.cache
def _running(ranks: tuple[str, ...]) -> tuple[ProcessSample, ...]:
    return tuple(ProcessSample(100 + number, "S", "scheduler", rank) for number, rank in enumerate(ranks))


def _spells(start: Start, condition: Condition, chance: random.Random) -> list[tuple[float, float]]:
    """Moments of a healthy start in which nothing runs on the host."""
    found = []
    for span in start.spans:
        if math.isfinite(span.end) and chance.random() < SPELL_LIKELY:
            length = chance.uniform(*SPELL_S) * (condition.factor("") if condition is not Condition.NORMAL else 1.0)
            begin = chance.uniform(span.begin, span.end)
            found.append((begin, min(span.end, begin + length)))
    return found
