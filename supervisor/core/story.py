"""Tells the story of a whole log: phases, clues, verdict. What the daemon does live, for a file somebody else wrote."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from supervisor.core.clues import Clue
from supervisor.core.diagnose import CauseFinder, Guess
from supervisor.core.log.figures import amount_of
from supervisor.core.log.grammar import LogReader
from supervisor.core.log.stamps import seconds
from supervisor.core.progress import Movement, PhaseTracker
from supervisor.events import LineMatched
from supervisor.lines import Line
from supervisor.profile import LogRule, Profile
from supervisor.snapshot import DiagnosisView, StartupView
from supervisor.units import format_duration

_TELLING = 30  # errors below this weight do not make a serving engine a damaged one
NO_FAILURE = "healthy"  # of the classes in `profiles/causes.toml`
_FULL = 0.99  # of the pool, as the engine rounds it
_PENDING = 2  # requests that were running when the log fell silent: one may have been a stream's last line


class Verdict(enum.StrEnum):
    """What the log says in one word."""

    READY = "ready"
    WARMING = "warming"
    STALLED = "stalled"
    CRASHED = "crashed"
    DEGRADED = "degraded"
    UNKNOWN = "unknown engine"


class Origin(enum.StrEnum):
    """Whose log it is, by its words alone."""

    ENGINE = "engine"
    NAMED = "named"  # an engine's name is in it, as in scripts and configurations: a log only if it breaks like one
    EXCERPT = "excerpt"  # none of its lines is one that only an engine writes: what people paste, or redirect
    FOREIGN = "foreign"  # another program's, by the form of all its lines


class Outcome(msgspec.Struct, frozen=True):
    """The log's story. Times are seconds of the log's own clock (`core.log.stamps.seconds`).

    `silent_s` None = nobody said when the question is asked, so silence is not judged. `allowed_s` is how long it may
    be silent where it stands; None = for ever, as an idle server.
    """

    verdict: Verdict
    stage: str
    phase: str
    view: StartupView
    diagnosis: DiagnosisView
    clues: tuple[Clue, ...]
    attempts: int
    first_stamp: str
    last_stamp: str
    last_line: str
    last_number: int
    silent_s: float | None
    ended: float
    allowed_s: float | None = None
    recognised: bool = True  # a line is one that only an engine writes


class LogStory:
    """Reads lines from first to last; several attempts in one file are told apart, the last one counts."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._rules = {rule.name: rule for rule in profile.rules}
        self._reader = LogReader(profile, 1)
        self._attempts = 1
        self._clock = 0.0
        self._first_stamp = ""
        self._begin()

    def _begin(self) -> None:
        self._tracker = PhaseTracker(self._profile)
        self._finder = CauseFinder(self._profile)
        self._moved = False
        self._slow = ""  # the cause of slowness, while the log stands where it is slow
        self._pending = 0
        self._saturated = 0  # the line by which the pool is full and requests wait
        self._ready_line = 0
        self._last_line = ""
        self._last_number = 0

    def read(self, lines: Iterable[Line]) -> None:
        """Takes the next lines in."""
        for match in self._reader.read(lines):
            self._take(match)

    def _take(self, match: LineMatched) -> None:
        rule = self._rules.get(match.rule)
        if rule is not None and rule.hint == "restart" and self._over():
            self._attempts += 1
            self._begin()
        now = self._time(match.stamp)
        if self._last_number == 0:
            self._tracker.begin(now)
        self._last_line, self._last_number = match.text, match.line
        advance = self._tracker.observe(match, now)
        if advance.movement is Movement.PROGRESS and rule is not None and rule.hint != "restart":
            self._moved = True
        if advance.ready:
            self._ready_line = match.line
        if rule is not None:
            self._note(rule, match)
        self._finder.observe(match, self._stage_at(match))

    def _over(self) -> bool:
        """Whether what was read so far was an attempt of its own, and not the lines before the first launch line."""
        return self._moved or self._finder.clues.said_fatal

    def _time(self, stamp: str) -> float:
        """The log's clock; it never goes backwards (lines of one second come in any order, clocks are set)."""
        if stamp:
            self._first_stamp = self._first_stamp or stamp
            self._clock = max(self._clock, seconds(stamp))
        return self._clock

    def _stage_at(self, match: LineMatched) -> str:
        return self._tracker.rank_stage(match.rank) if self._moved else ""

    def _note(self, rule: LogRule, match: LineMatched) -> None:
        """What is remembered of lines that tell about pace."""
        if rule.life:
            told = {name: _number(match.fields.get(name, "")) for name in ("running", "queued", "new", "usage")}
            # a batch that was begun is always followed by a word of its end, one that runs on is not
            self._pending = int(told["running"] + told["queued"]) + (_PENDING if told["new"] else 0)
            self._saturated = match.line if told["usage"] >= _FULL and told["queued"] else 0
        if rule.slow:
            self._slow = rule.slow if not rule.slow_below_per_s or _slower(match, rule.slow_below_per_s) else ""
        elif rule.enter or rule.leave:
            self._slow = ""

    # --- the end -----------------------------------------------------------------------------------------------------

    @property
    def stamp(self) -> str:
        """The newest time that the log tells."""
        return self._reader.stamp

    def conclude(
        self, now: float | None = None, exit_code: int | None = None, *, origin: Origin = Origin.ENGINE
    ) -> Outcome:
        """The story as far as it was read. `now` is the log's clock at the moment of the question.

        An excerpt in which no engine's words are is judged only when it breaks like an engine's log.
        """
        for match in self._reader.finish():
            self._take(match)
        self._time(self._reader.stamp)
        silent_s = max(0.0, now - self._clock) if now is not None and self._clock else None
        verdict = self._verdict(silent_s, exit_code)
        view = self._tracker.view()
        breaks = bool(self._finder.clues.all())
        by_words = origin is Origin.ENGINE or (origin is Origin.NAMED and breaks)
        recognised = by_words or self._moved or any(rank.rank for rank in view.ranks)
        if not recognised and (origin is Origin.FOREIGN or not breaks):
            verdict = Verdict.UNKNOWN
        alive = verdict in (Verdict.READY, Verdict.WARMING, Verdict.STALLED, Verdict.DEGRADED)
        best = self._best(verdict)
        stage = self._stage(verdict, best)
        diagnosis = self._diagnosis(verdict, best, exit_code, stage, alive)
        if verdict is Verdict.WARMING and diagnosis.cause == NO_FAILURE:
            diagnosis = msgspec.structs.replace(diagnosis, remedy=self._patience(silent_s))
        return Outcome(
            verdict=verdict,
            stage=stage,
            phase=self._phase(stage, view),
            view=view,
            diagnosis=diagnosis,
            clues=tuple(self._finder.clues.all()),
            attempts=self._attempts,
            first_stamp=self._first_stamp,
            last_stamp=self._reader.stamp,
            last_line=self._last_line,
            last_number=self._last_number,
            silent_s=silent_s,
            ended=self._clock,
            allowed_s=self._allowed_s(),
            recognised=recognised,
        )

    def _verdict(self, silent_s: float | None, exit_code: int | None) -> Verdict:
        clues = self._finder.clues
        severities = {clue.severity for clue in clues.all() if clue.severity != "error" or self._damages(clue)}
        if exit_code is not None and (exit_code != 0 or clues.draining or not self._serves()):
            return Verdict.CRASHED
        if clues.said_fatal or clues.draining or "fatal" in severities:
            return Verdict.CRASHED
        if "stall" in severities or self._silent(silent_s):
            return Verdict.STALLED
        if "error" in severities or self._saturated:
            return Verdict.DEGRADED
        if self._tracker.ready_seen or clues.served:
            return Verdict.READY if self._tracker.ready_seen or not self._in_warmup() else Verdict.WARMING
        return Verdict.WARMING

    def _in_warmup(self) -> bool:
        """The warm-up's own request is no service; without any start-up line the excerpt is one of serving."""
        return self._moved and not self._tracker.ready_seen

    def _damages(self, clue: Clue) -> bool:
        after_ready = clue.match.line >= self._ready_line
        return clue.weight >= _TELLING and after_ready and not (clue.disproved and not self._ready_line)

    def _silent(self, silent_s: float | None) -> bool:
        allowed_s = self._allowed_s()
        return silent_s is not None and allowed_s is not None and silent_s > allowed_s

    def _allowed_s(self) -> float | None:
        """How long it may be silent where it stands; an idle server for ever."""
        first = self._profile.phases[0]
        if self._serves():
            return first.stall_s if self._pending >= _PENDING else None
        return self._profile.phase(self._tracker.view().phase or first.name).stall_s

    def _patience(self, silent_s: float | None) -> str:
        """What to do about a start that nothing is known to be wrong with: its log may go on, or may stand still."""
        allowed_s, phase = self._allowed_s(), self._tracker.view().phase
        where = f" in {phase}" if phase else ""
        limit = f"{format_duration(allowed_s)} of silence{where} are a stall" if allowed_s is not None else ""
        if silent_s is not None:
            return f"Nothing yet: it has been silent for {format_duration(silent_s)}; {limit}."
        return f"Nothing while it moves. Silence is judged only with --now (now, or the time you ask about): {limit}."

    def _serves(self) -> bool:
        return self._tracker.ready_seen or (self._finder.clues.served and not self._in_warmup())

    def _best(self, verdict: Verdict) -> Clue | None:
        wanted = {
            Verdict.CRASHED: ("fatal", "stall", "error"),
            Verdict.STALLED: ("stall", "error", "notice"),
            Verdict.DEGRADED: ("error",),
        }.get(verdict, ())
        if verdict is Verdict.CRASHED:
            fatal = self._finder.best(("fatal",))
            wanted = wanted if fatal is None or fatal.weight < _TELLING else ("fatal",)
        return self._finder.best(wanted)

    def _stage(self, verdict: Verdict, best: Clue | None) -> str:
        """The stage of the slowest rank; where the log does not tell it, that of what went wrong."""
        stages = self._profile.stages
        reached = self._tracker.stage if self._moved else ""
        if self._serves() and reached != stages[-1]:
            reached = stages[-1]
        if best is None or verdict not in (Verdict.CRASHED, Verdict.STALLED, Verdict.DEGRADED):
            return reached or (stages[-1] if self._serves() else stages[0])
        if best.signature.certain_stage:
            return best.signature.stage
        told = best.told_stage or self._told_elsewhere()
        if told == stages[-1] and reached and not self._serves():
            return stages[-2]  # the event loop runs the warm-up's request, too
        return told or reached or best.stage or self._cause_stage(best) or stages[0]

    def _told_elsewhere(self) -> str:
        """An excerpt may have the exception in one place and the functions in another."""
        if self._moved:
            return ""
        told = (clue.told_stage for clue in self._finder.clues.all() if clue.severity == "fatal")
        return next((stage for stage in told if stage), "")

    def _cause_stage(self, clue: Clue) -> str:
        known = self._profile.cause(clue.cause)
        return known.stage if known else ""

    def _phase(self, stage: str, view: StartupView) -> str:
        if view.stage == stage and view.phase:
            return view.phase
        return next((phase.name for phase in self._profile.phases if phase.stage == stage), "")

    def _diagnosis(
        self, verdict: Verdict, best: Clue | None, exit_code: int | None, stage: str, alive: bool
    ) -> DiagnosisView:
        if verdict in (Verdict.READY, Verdict.WARMING):
            cause = self._slow if verdict is Verdict.WARMING and self._slow else NO_FAILURE
            return self._finder.view_of_guess(Guess(cause, 0.8, "no"), None)
        if verdict is Verdict.CRASHED and self._slow and (best is None or best.weight < _TELLING):
            return self._finder.view_of_guess(Guess(self._slow, 0.4, "maybe"), best)  # somebody lost patience
        if verdict is Verdict.DEGRADED and best is None:
            return self._finder.view_of_guess(Guess(self._profile.saturated, 0.5), None)
        return self._finder.conclude(exit_code, frozenset(), alive, stage, best)


def _number(text: str) -> float:
    return amount_of(text) or 0.0


def _slower(match: LineMatched, limit_per_s: float) -> bool:
    value = amount_of(match.fields.get("rate", ""))
    if value is None:
        return False
    rate = 1.0 / value if match.fields.get("per", "").startswith("s/") and value else value
    return rate < limit_per_s
