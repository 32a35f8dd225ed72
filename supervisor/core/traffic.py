"""Counts what passes through one server's mailbox: probes, canaries, log bytes, evidence, steps of its ends."""

from __future__ import annotations

import msgspec

from supervisor.actions import AnyAction, SignalTree
from supervisor.core.histogram import Histogram, observe
from supervisor.events import (
    AnyEvent,
    CanaryAnswered,
    EvidenceKept,
    LogGrew,
    Probed,
    ProbeOutcome,
    TreeEmptied,
    TreeSampled,
    TreeStuck,
)

HEALTH, CANARY = "health", "canary"
CHECKS = (*((HEALTH, str(outcome)) for outcome in ProbeOutcome), (CANARY, "ok"), (CANARY, "error"), (CANARY, "timeout"))
CHECK_BUCKETS_S = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)
COMPLETE, PARTIAL, FAILED, CUT = BUNDLES = ("complete", "partial", "failed", "cut")
TERM, KILL, UNKILLABLE = STEPS = ("term", "kill", "unkillable")

_UNANSWERED = (ProbeOutcome.REFUSED, ProbeOutcome.UNKNOWN)  # these took no time worth telling
_TERMINATING = (15, 2, 3)  # TERM, INT and QUIT, whose numbers are the same on every Linux


class Traffic(msgspec.Struct):
    """The counts of one server, kept between two daemons."""

    checks: dict[str, int] = {}  # "check outcome"
    check_s: dict[str, Histogram] = {}
    log_bytes: int = 0
    log_lines: int = 0
    evidence: dict[str, int] = {}
    steps: dict[str, int] = {}


class Meter:
    """Feeds the counts of one server with its events and actions."""

    def __init__(self, traffic: Traffic) -> None:
        self.processes: int | None = None  # of the present attempt, once they were looked at
        self._traffic = traffic
        self._grown = LogGrew(0, 0, 0)  # what was said of the log last
        self._stuck = 0  # the attempt whose kill has failed: it is tried again and again

    def take(self, what: AnyEvent | AnyAction) -> bool:
        """Whether it was something that counts."""
        traffic = self._traffic
        match what:
            case Probed():
                self._check(HEALTH, str(what.outcome), None if what.outcome in _UNANSWERED else what.latency_s)
            case CanaryAnswered():
                outcome = "timeout" if what.sane is None else "ok" if what.sane else "error"
                self._check(CANARY, outcome, what.latency_s)
            case LogGrew():
                self._log(what)
            case EvidenceKept():
                _count(traffic.evidence, _result(what))
            case SignalTree() if what.signal in _TERMINATING:
                _count(traffic.steps, TERM)
            case TreeEmptied():
                self.processes = None
                if what.killed:
                    _count(traffic.steps, KILL)
            case TreeStuck() if what.attempt != self._stuck:
                self._stuck = what.attempt
                _count(traffic.steps, UNKILLABLE)
            case TreeSampled():
                self.processes = what.members
                return False  # shown as it is, and not kept
            case _:
                return False
        return True

    def _check(self, check: str, outcome: str, seconds: float | None) -> None:
        _count(self._traffic.checks, f"{check} {outcome}")
        if seconds is not None:
            observe(self._traffic.check_s, check, seconds, CHECK_BUCKETS_S)

    def _log(self, grown: LogGrew) -> None:
        """Sums of one reader: a new attempt has a new one, and so has a configuration that replaced another."""
        last = self._grown
        anew = grown.attempt != last.attempt or grown.bytes < last.bytes
        self._traffic.log_bytes += grown.bytes - (0 if anew else last.bytes)
        self._traffic.log_lines += grown.lines - (0 if anew else last.lines)
        self._grown = grown


class HostTraffic(msgspec.Struct, frozen=True):
    """What is counted for the whole host; "operation code role" of requests, segments of logs by server."""

    orphans_reaped: int = 0
    reader_restarts: int = 0
    adoptions: dict[str, int] = {}
    requests: dict[str, int] = {}
    segments: dict[str, int] = {}


def together(before: HostTraffic, now: HostTraffic) -> HostTraffic:
    """What earlier daemons have counted and what this one has."""
    return HostTraffic(
        before.orphans_reaped + now.orphans_reaped,
        before.reader_restarts + now.reader_restarts,
        _sums(before.adoptions, now.adoptions),
        _sums(before.requests, now.requests),
        _sums(before.segments, now.segments),
    )


def _sums(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in (*one, *(key for key in other if key not in one))}


def _count(book: dict[str, int], key: str) -> None:
    book[key] = book.get(key, 0) + 1


def _result(kept: EvidenceKept) -> str:
    if kept.cut:
        return CUT
    return FAILED if not kept.path else PARTIAL if kept.missing else COMPLETE
