"""Writes the story of a log down: one object for machines, a page for a person at 3 a.m."""

from __future__ import annotations

import textwrap

import msgspec

from supervisor.core.chart import chart
from supervisor.core.clues import Clue
from supervisor.core.log.stamps import text
from supervisor.core.story import NO_FAILURE, Outcome, Verdict
from supervisor.snapshot import RankView
from supervisor.units import format_duration

_ALSO_SEEN = 4
_TELLING = 30
_PLAIN = {"bold": "", "red": "", "yellow": "", "green": "", "dim": "", "off": ""}
_COLOURS = {
    "bold": "\x1b[1m",
    "red": "\x1b[1;31m",
    "yellow": "\x1b[1;33m",
    "green": "\x1b[1;32m",
    "dim": "\x1b[2m",
    "off": "\x1b[0m",
}
_VERDICT_COLOUR = {Verdict.READY: "green", Verdict.WARMING: "green", Verdict.CRASHED: "red"}
_RESTART = {
    "yes": "a restart is likely to help",
    "no": "a restart does not help",
    "maybe": "a restart may help",
}


class RankReport(msgspec.Struct, frozen=True):
    """Where one rank is."""

    stage: str
    phase: str
    since: str
    last_line: str
    progress: str = ""
    memory_used_gb: float | None = None
    memory_left_gb: float | None = None


class EvidenceReport(msgspec.Struct, frozen=True):
    """The line that tells the cause."""

    line: int
    text: str


class SpanReport(msgspec.Struct, frozen=True):
    """One phase of one rank."""

    rank: str
    phase: str
    begin: str
    end: str | None
    seconds: float | None
    mem_gb: float | None


class Report(msgspec.Struct, frozen=True):
    """The contract of `sglsup diagnose --json`; fields may be added."""

    verdict: str
    stage: str
    phase: str
    ranks: dict[str, RankReport]
    cause: str
    evidence: EvidenceReport | None
    restart: str
    remedy: str
    confidence: float
    engine: str
    timeline: tuple[SpanReport, ...]
    laggard: str
    silent_s: float | None
    attempts: int
    lines: int
    first: str
    last: str
    recognised: bool


def report(outcome: Outcome, engine: str, lines: int) -> Report:
    """The outcome as plain values."""
    like = outcome.last_stamp or outcome.first_stamp
    found = outcome.diagnosis
    return Report(
        verdict=str(outcome.verdict),
        stage=outcome.stage,
        phase=outcome.phase,
        ranks={rank.rank or "launcher": _rank(outcome, rank, like) for rank in outcome.view.ranks},
        cause=found.cause,
        evidence=EvidenceReport(found.evidence_line, found.evidence) if found.evidence_line else None,
        restart=found.restart,
        remedy=found.remedy,
        confidence=round(found.confidence, 2),
        engine=engine,
        timeline=tuple(
            SpanReport(
                span.rank or "launcher",
                span.phase,
                text(span.begin, like),
                text(span.end, like) if span.end is not None else None,
                round(span.end - span.begin, 3) if span.end is not None else None,
                span.memory_gb,
            )
            for span in outcome.view.timeline
        ),
        laggard=outcome.view.laggard,
        silent_s=outcome.silent_s,
        attempts=outcome.attempts,
        lines=lines,
        first=outcome.first_stamp,
        last=outcome.last_stamp,
        recognised=outcome.recognised,
    )


def _rank(outcome: Outcome, rank: RankView, like: str) -> RankReport:
    return RankReport(
        stage=rank.stage,
        phase=rank.phase,
        since=text(rank.since, like),
        last_line=rank.last_line,
        progress=_progress(rank, _moment(outcome), over=_over(outcome)),
        memory_used_gb=rank.memory_used_gb,
        memory_left_gb=rank.memory_left_gb,
    )


def page(outcome: Outcome, engine: str, name: str, lines: int, width: int, colour: bool) -> str:
    """The outcome for a person."""
    paint = _COLOURS if colour else _PLAIN
    head = _headline(outcome, engine, name, lines, width, paint)
    if outcome.verdict is Verdict.UNKNOWN:
        return f"{head}\n\nNo engine that we know wrote this: is it the right file, and complete?\n"
    parts = [
        head,
        _doubt(outcome),
        _cause(outcome, width, paint),
        _remedy(outcome, width, paint),
        _timeline(outcome, width, paint),
        _ranks(outcome, width),
        _last_sign(outcome, width),
        _also(outcome, width, paint),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _headline(outcome: Outcome, engine: str, name: str, lines: int, width: int, paint: dict[str, str]) -> str:
    colour = paint[_VERDICT_COLOUR.get(outcome.verdict, "yellow")]
    where = _where(outcome)
    ranks = len([rank for rank in outcome.view.ranks if rank.rank])
    facts = [
        engine if outcome.recognised else "",
        f"{ranks} rank{'s' if ranks != 1 else ''}" if ranks else "",
        f"{lines:,} line{'s' if lines != 1 else ''}",
    ]
    if outcome.attempts > 1:
        facts.append(f"the last of {outcome.attempts} starts in this file")
    began = outcome.view.timeline[0].begin if outcome.view.timeline else outcome.ended
    span = format_duration(outcome.ended - began)
    times = f"{text(began, outcome.last_stamp)} … {outcome.last_stamp} ({span})" if outcome.last_stamp else "no times"
    verdict = "NO ENGINE'S LOG" if outcome.verdict is Verdict.UNKNOWN else str(outcome.verdict).upper()
    head = f"{colour}{verdict}{where}{paint['off']}   {' · '.join(fact for fact in facts if fact)}"
    gap = "   " if len(name) + len(times) + 3 <= width else "\n"
    return f"{head}\n{paint['dim']}{name}{gap}{times}{paint['off']}"


def _doubt(outcome: Outcome) -> str:
    """An excerpt may be anybody's; a line in the engine's own form is hardly."""
    if outcome.recognised or outcome.last_stamp:
        return ""
    return "Read as an excerpt: no line here is one that only an engine writes."


def _where(outcome: Outcome) -> str:
    match outcome.verdict:
        case Verdict.UNKNOWN | Verdict.READY:
            return ""
        case _ if outcome.stage == "serving":
            return " while serving"
        case _:
            return f" in {outcome.phase or outcome.stage}"


def _cause(outcome: Outcome, width: int, paint: dict[str, str]) -> str:
    found = outcome.diagnosis
    if _unblamed(outcome):
        return f"{paint['bold']}Cause{paint['off']}      nothing wrong in the log"
    sure = f"{found.confidence:.0%} sure"
    lines = [f"{paint['bold']}Cause{paint['off']}      {found.cause}   ({sure}; {_RESTART[found.restart]})"]
    if found.evidence_line:
        lines += _evidence(found.evidence_line, found.evidence, width, "Evidence   ")
    return "\n".join(lines)


def _unblamed(outcome: Outcome) -> bool:
    """Nothing is known to be wrong; whether it is well, nobody can tell before it is ready."""
    return outcome.verdict is Verdict.WARMING and outcome.diagnosis.cause == NO_FAILURE


def _evidence(number: int, line: str, width: int, label: str) -> list[str]:
    first = f"{label}line {number}: "
    shown = textwrap.shorten(line.replace("\n", " "), 3 * width, placeholder=" …")
    return textwrap.wrap(
        shown, width, initial_indent=first, subsequent_indent=" " * max(6, len(label)), break_on_hyphens=False
    )


def _remedy(outcome: Outcome, width: int, paint: dict[str, str]) -> str:
    remedy = outcome.diagnosis.remedy
    if not remedy or outcome.verdict is Verdict.READY:
        return ""
    wrapped = textwrap.wrap(remedy, width - 11, break_on_hyphens=False, break_long_words=False)
    runbook = [] if _unblamed(outcome) else [f"({outcome.diagnosis.runbook})"]
    first, *others = [*wrapped, *runbook]
    return "\n".join([f"{paint['bold']}To do{paint['off']}      {first}", *(" " * 11 + line for line in others)])


def _timeline(outcome: Outcome, width: int, paint: dict[str, str]) -> str:
    drawn = chart(outcome.view, outcome.ended, outcome.last_stamp, width)
    return f"{paint['bold']}Timeline{paint['off']}\n{drawn}" if drawn else ""


def _ranks(outcome: Outcome, width: int) -> str:
    if outcome.verdict is Verdict.READY:
        return ""
    lines = [outcome.view.laggard] if outcome.view.laggard else []
    for rank in outcome.view.ranks:
        progress = _progress(rank, _moment(outcome), over=_over(outcome))
        if progress and rank.progress is not None and rank.progress.ratio < 1:
            lines.append(f"{rank.rank or 'launcher'}: {rank.phase}, {progress}")
    return "\n".join(f"  {line[: width - 2]}" for line in lines[:10])


def _over(outcome: Outcome) -> bool:
    """Nothing is left to be waited for."""
    return outcome.verdict is Verdict.CRASHED


def _moment(outcome: Outcome) -> float:
    """That of the last line, or the one that silence is judged by."""
    return outcome.ended + (outcome.silent_s or 0.0)


def _progress(rank: RankView, now: float, *, over: bool) -> str:
    bar, left_s = rank.progress, None if over else rank.left_s(now)
    if bar is None:
        return ""
    left = f", {format_duration(left_s)} left at this rate" if left_s else ""
    return f"{bar.done} of {bar.total} {bar.unit} ({bar.ratio:.0%}){left}"


def _last_sign(outcome: Outcome, width: int) -> str:
    if not outcome.last_number:
        return ""
    lines = _evidence(outcome.last_number, outcome.last_line, width, "Last sign  ")[:2]
    return "\n".join(lines) + _silence(outcome)


def _silence(outcome: Outcome) -> str:
    """How long it lasts, or that nobody has judged it."""
    if outcome.silent_s:
        return f"; silent for {format_duration(outcome.silent_s)} since"
    hopeful = outcome.verdict in (Verdict.READY, Verdict.WARMING)
    unjudged = outcome.silent_s is None and outcome.allowed_s is not None and hopeful
    return "; the silence since then is not judged without --now" if unjudged else ""


def _also(outcome: Outcome, width: int, paint: dict[str, str]) -> str:
    others = [clue for clue in outcome.clues if _speaks(clue, outcome)]
    lines = [
        line for clue in others[:_ALSO_SEEN] for line in _evidence(clue.match.line, clue.match.text, width, "  ")[:2]
    ]
    return "\n".join([f"{paint['bold']}Also seen{paint['off']}", *lines]) if lines else ""


def _speaks(clue: Clue, outcome: Outcome) -> bool:
    return (
        clue.match.line != outcome.diagnosis.evidence_line
        and clue.severity != "notice"
        and (clue.weight >= _TELLING or clue.authoritative)
        and outcome.verdict is not Verdict.READY
    )


def as_json(found: Report) -> bytes:
    """One object on one line."""
    return msgspec.json.encode(found) + b"\n"
