"""Tells one failed attempt: how it ended, the first cause, what was done about it, what to change, what followed."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import msgspec

from supervisor.api.control import Clock
from supervisor.api.words import since
from supervisor.snapshot import DiagnosisView, ExitView, IncidentView, StopView
from supervisor.units import format_duration, format_tenths

_RESTART_WORDS = {
    "yes": "a restart can help",
    "no": "no restart can help",
    "maybe": "a restart may help",
}
_FOLLOWED = {
    "backoff": "started again after a pause",
    "relaunch": "started again",
    "fatal": "given up",
    "quarantine": "quarantined",
    "rest": "left stopped",
}
_SURE = 0.7  # below it "no restart can help" is a guess, on which nobody gives up
_OUR_SIGNALS = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGKILL)  # what a stop sends, as an exit code
_AGAIN = ("backoff", "relaunch")
_IN_VAIN = re.compile(r"times without getting further|^fatal: \d+ restarts within \d+ s spent")  # of a decision
_EMPTY_CLAUSES = ("", "last", "a restart cannot help")  # what is left of a reason whose contents were told before


class Failure(msgspec.Struct, frozen=True):
    """An incident with what only its bundle knows: `odd_rank` is a sentence about the ranks' stacks.

    `last_words`: the end of its log, told where no line of it names the cause for sure.
    `on_gpus`: whether it had devices whose memory could come back. `followed`: what was decided has been done.
    `brief`: it is another story than the present one, and told as such.
    """

    incident: IncidentView
    odd_rank: str = ""
    last_words: tuple[str, ...] = ()
    on_gpus: bool = True
    followed: bool = True
    brief: bool = False


def retell(failure: Failure, clock: Clock, *, cause_first: bool) -> Iterator[str]:
    """One fact a sentence. `cause_first`: the failure is why the server is as it is, not what was before."""
    headline = _headline(failure.incident, clock)
    yield from () if cause_first else (headline,)
    yield from _cause(failure.incident)
    yield from _last_words(failure)
    yield from (headline,) if cause_first else ()
    yield from _circumstances(failure)


def mention(incident: IncidentView, clock: Clock) -> str:
    """An earlier failure in a line: what is to be done about it is not what is to be done now."""
    cause = f"; its first cause: {incident.diagnosis.cause}" if incident.diagnosis and incident.diagnosis.cause else ""
    return f"earlier: {_headline(incident, clock)[:-1]}{cause}. sglctl why NAME --attempt {incident.attempt} tells it."


def _cause(incident: IncidentView) -> Iterator[str]:
    if incident.diagnosis is not None:
        in_vain = _IN_VAIN.search(incident.decision) is not None
        told = cause_of(incident.diagnosis, tried=_kind(incident) in _AGAIN, in_vain=in_vain)
        yield from (line for line in told if not line.endswith(f": {incident.reason}"))


def _last_words(failure: Failure) -> Iterator[str]:
    """What a person would look at first. The cause's own line is told already."""
    diagnosis = failure.incident.diagnosis
    if not failure.last_words or (diagnosis is not None and diagnosis.confidence >= _SURE):
        return
    yield "the last lines of its log, none of which names the cause for sure:"
    yield from (f"  {line}" for line in failure.last_words)


def _circumstances(failure: Failure) -> Iterator[str]:
    incident = failure.incident
    if incident.laggard and incident.laggard not in incident.reason:
        yield f"{incident.laggard}."
    if failure.odd_rank:
        yield f"by the stacks {failure.odd_rank}."
    if done := _done(incident, failure.on_gpus):
        yield f"what was done: {done}."
    if (followed := _followed(incident)) and (failure.followed or _kind(incident) not in _AGAIN):
        yield f"then: {followed}."


def _headline(incident: IncidentView, clock: Clock) -> str:
    ran = format_duration(max(0.0, incident.ended - incident.begun))
    where = "while serving" if incident.phase == "healthy" else f"in {incident.phase}"
    where = "" if not incident.phase or incident.phase in incident.reason else f" {where}"
    ago = since(incident.ended, clock)
    return f"attempt {incident.attempt} failed {ago} ago{where}, {ran} after its launch: {incident.reason}."


def end_of(exit_view: ExitView, clock: Clock) -> str:
    """The end of an attempt that somebody asked for."""
    reason = f": {exit_view.reason}" if exit_view.reason else ""
    return f"attempt {exit_view.attempt} ended {since(exit_view.at, clock)} ago with {_code(exit_view.code)}{reason}."


def _code(code: int | None) -> str:
    if code is None:
        return "an unknown status"
    return f"signal {-code}" if code < 0 else f"status {code}"


def cause_of(diagnosis: DiagnosisView, *, tried: bool = False, in_vain: bool = False) -> Iterator[str]:
    """Class, evidence and remedy. `tried`: it was or will be started again all the same, `in_vain`: no more."""
    if diagnosis.cause:
        yield f"first cause: {_class(diagnosis, tried, in_vain)}."
    if diagnosis.evidence:
        whose = f" ({diagnosis.evidence_rank})" if diagnosis.evidence_rank else ""
        where = f"evidence, line {diagnosis.evidence_line}{whose}" if diagnosis.evidence_line else "told by"
        yield f"{where}: {' '.join(diagnosis.evidence.split())}"
    if diagnosis.remedy:
        yield f"what to change: {diagnosis.remedy}"
    if diagnosis.runbook:
        yield f"runbook: {diagnosis.runbook}"


def _class(diagnosis: DiagnosisView, tried: bool, in_vain: bool) -> str:
    vain = "; restarts have not helped" if in_vain else ""
    if diagnosis.restart == "no" and 0 < diagnosis.confidence < _SURE:
        again = vain or ("; tried again because not sure" if tried else "; a restart may not help")
        return f"probably {diagnosis.cause} ({diagnosis.confidence * 100:.0f} % sure){again}"
    return f"{diagnosis.cause}{vain}" if vain else f"{diagnosis.cause}; {_restart_words(diagnosis)}"


def _restart_words(diagnosis: DiagnosisView) -> str:
    return _RESTART_WORDS.get(diagnosis.restart, diagnosis.restart)


def _done(incident: IncidentView, on_gpus: bool) -> str:
    """The steps of the end with their seconds, in order of time."""
    stop = incident.stop or StopView()
    kept = "evidence kept in part (the daemon was killed over it)" if incident.evidence_cut else "evidence kept"
    steps = [(0.0, kept)] if incident.evidence_path else []
    if stop.exit_s:  # 0: its exit was the beginning of the end, and is told as the reason
        our = "our " if incident.exit_code in _OUR_SIGNALS else ""
        steps.append(
            (stop.exit_s, f"it ended with {our}{_code(incident.exit_code)} after {format_tenths(stop.exit_s)}")
        )
    if stop.kill_s is not None and stop.killed:
        count = f"{stop.killed} process{'' if stop.killed == 1 else 'es'}"
        steps.append((stop.kill_s, f"{count} killed after {format_tenths(stop.kill_s)}"))
    if stop.empty_s is not None:
        steps.append((stop.empty_s, f"nothing left of it after {format_tenths(stop.empty_s)}"))
    if stop.free_s is not None and on_gpus:
        steps.append((stop.free_s, f"GPU memory back after {format_tenths(stop.free_s)}"))
    return ", ".join(text for _, text in sorted(steps, key=lambda step: step[0]))


def _kind(incident: IncidentView) -> str:
    return incident.decision.partition(":")[0]


def _followed(incident: IncidentView) -> str:
    kind, _, why = incident.decision.partition(": ")
    more = _unsaid(why, incident)
    word = _FOLLOWED.get(kind, kind)
    return f"{word} ({more})" if more else word


def _unsaid(why: str, incident: IncidentView) -> str:
    """What the decision's reason adds to what has been told."""
    said = [incident.reason]
    if incident.diagnosis is not None:
        cause = incident.diagnosis.cause
        said += [incident.diagnosis.remedy, f" ({cause})", cause]
    for phrase in filter(None, said):
        why = why.replace(phrase, "")
    clauses = (clause.strip(" :,.") for clause in why.split(";"))
    return "; ".join(clause for clause in clauses if clause not in _EMPTY_CLAUSES)
