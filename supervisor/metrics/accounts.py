"""Samples of what has been counted about one server over its life."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.core.reasons import Reason
from supervisor.core.tally import EXIT_KINDS, LOSSES, RESULTS, Account
from supervisor.core.traffic import BUNDLES, CANARY, CHECKS, HEALTH, STEPS, Traffic
from supervisor.metrics import families as f
from supervisor.metrics.sheet import Sheet, Values

REASONS = tuple(str(reason) for reason in Reason)
_ENDS = tuple((kind, reason) for kind in EXIT_KINDS for reason in REASONS)
RELEASED, GIVEN_UP = "released", "given-up"


def write(sheet: Sheet, name: str, account: Account) -> None:
    """Everything."""
    _counters(sheet, name, account)
    _durations(sheet, name, account)
    _traffic(sheet, name, account.traffic)


def _counters(sheet: Sheet, name: str, account: Account) -> None:
    sheet.add(f.STARTS, account.starts, name)
    sheet.each(f.RESTARTS, REASONS, account.restarts, name)
    sheet.group(f.EXITS, _by_words(_ENDS, account.exits), name)
    sheet.each(f.DOWNTIME, LOSSES, account.lost_s, name)
    sheet.each(f.GPU_LOST, LOSSES, account.gpu_lost_s, name)
    sheet.add(f.PENDING, account.pending_s, name)
    sheet.add(f.KILLED, account.killed_processes, name)


def _durations(sheet: Sheet, name: str, account: Account) -> None:
    for result in RESULTS:
        sheet.histogram(f.STARTUP, account.startup_s.get(result), name, result)
    for key, observed in account.phase_s.items():
        phase, _, result = key.rpartition(" ")
        sheet.histogram(f.PHASE_DURATION, observed, name, phase, result)
    sheet.histogram(f.STOP, account.stop_s, name)
    sheet.histogram(f.RELEASE, account.release_s, name, RELEASED)
    sheet.histogram(f.RELEASE, account.unreleased_s, name, GIVEN_UP)


def _traffic(sheet: Sheet, name: str, traffic: Traffic) -> None:
    sheet.group(f.HEALTH_CHECKS, _by_words(CHECKS, traffic.checks), name)
    for check in (HEALTH, CANARY):
        sheet.histogram(f.HEALTH_CHECK_TIME, traffic.check_s.get(check), name, check)
    sheet.each(f.KILL_STEPS, STEPS, traffic.steps, name)
    sheet.add(f.LOG_READ, traffic.log_bytes, name)
    sheet.add(f.LOG_LINES, traffic.log_lines, name)
    sheet.each(f.EVIDENCE_KEPT, BUNDLES, traffic.evidence, name)


def _by_words(pairs: tuple[tuple[str, str], ...], counted: Mapping[str, int]) -> Values:
    """Counts that are kept by two words with a blank between them."""
    return {pair: counted.get(f"{pair[0]} {pair[1]}", 0) for pair in pairs}
