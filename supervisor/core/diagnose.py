"""Finds the cause behind the matches of one attempt's log: the culprit's message, not its victims'."""

from __future__ import annotations

import msgspec

from supervisor.core.clues import EXTERNAL, HOST_OOM, NO_EVIDENCE, Clue, ClueBook
from supervisor.core.remedy import Figures, remedy, with_outcome
from supervisor.events import LineMatched
from supervisor.profile import Profile
from supervisor.snapshot import DiagnosisView

_SURE = 30  # a clue below this is only a sign that something ended
_EQUAL = 5  # clues so close to the most telling one are its equals: the first of them counts
_SEVERITIES_ENDED = ("fatal", "stall", "error")
_SEVERITIES_ALIVE = ("stall", "error", "notice")
_NATIVE_CODES = frozenset({-11, -7, -6, 139, 135, 134})
_KILLED_CODES = frozenset({-9, 137})
_TERMINATED_CODES = frozenset({-15, 143, -2, 130})


class Guess(msgspec.Struct, frozen=True):
    """A cause that no line names: concluded from how it ended or where it stands."""

    cause: str
    confidence: float
    restart: str = ""


class CauseFinder:
    """Collects what points to a cause; `conclude` weighs it."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._clues = ClueBook(profile)
        self._figures = Figures(profile)

    @property
    def clues(self) -> ClueBook:
        """Everything that was seen."""
        return self._clues

    def observe(self, match: LineMatched, stage: str = "") -> None:
        """Takes one match in; `stage` is where its rank was ("" when the log does not tell)."""
        self._figures.observe(match)
        self._clues.observe(match, stage)

    def conclude(
        self,
        exit_code: int | None,
        signals_sent: frozenset[int],
        alive: bool,
        stage: str,
        best: Clue | None = None,
    ) -> DiagnosisView:
        """The cause of the end, or (`alive`) of the stall or the trouble; what to change; whether a restart helps."""
        view = self._weigh(exit_code, signals_sent, alive, stage, best)
        if view.cause == HOST_OOM and _own_status(exit_code) and not self._clues.said_fatal:
            return self.view_of_guess(Guess(NO_EVIDENCE, 0.1), None)  # whom the kernel kills ends with no status
        return view

    def _weigh(
        self,
        exit_code: int | None,
        signals_sent: frozenset[int],
        alive: bool,
        stage: str,
        best: Clue | None,
    ) -> DiagnosisView:
        best = best or self.best(_SEVERITIES_ALIVE if alive else _SEVERITIES_ENDED)
        if best is not None and best.weight >= _SURE:
            return self.view_of(self.behind(best), stage)
        guess = self._guess_alive(stage) if alive else self._guess_ended(exit_code, signals_sent, stage)
        if guess is not None:
            return self.view_of_guess(guess, best)
        return self.view_of(best, stage) if best is not None else self.view_of_guess(Guess(NO_EVIDENCE, 0.1), None)

    def best(self, severities: tuple[str, ...]) -> Clue | None:
        """The most telling clue of these kinds; of equals the first."""
        clues = [clue for clue in self._clues.all() if clue.severity in severities]
        if not clues:
            return None
        top = max(clue.weight for clue in clues)
        return next(clue for clue in clues if clue.weight >= top - _EQUAL)

    def behind(self, clue: Clue) -> Clue:
        """What a hang hangs in, when the last words of the log tell it."""
        if clue.cause not in self._profile.hangs.values():
            return clue
        return next((other for other in self._clues.all() if other.signature.explains_hang), clue)

    def view_of(self, clue: Clue, stage: str) -> DiagnosisView:
        """The answer that a clue gives. The event loop also runs before anything is served: `stage` knows better."""
        last = self._profile.stages[-1]
        where = stage if clue.stage == last and stage and not self._clues.served else clue.stage
        cause = self._figures.resolve(clue)
        known = self._profile.cause(cause)
        restart = clue.restart(where, self._clues.served) if cause == clue.cause else ""
        restart = restart or (known.restart if known else "maybe")
        return DiagnosisView(
            cause=cause,
            restart=restart,
            remedy=with_outcome(remedy(self._profile, cause, clue, self._figures), known, restart),
            evidence_line=clue.match.line,
            evidence=clue.match.text,
            confidence=min(0.99, clue.weight / 100),
            evidence_rank=clue.match.rank,
        )

    def view_of_guess(self, guess: Guess, clue: Clue | None) -> DiagnosisView:
        """The answer without a line that names the cause."""
        known = self._profile.cause(guess.cause)
        return DiagnosisView(
            cause=guess.cause,
            restart=guess.restart or (known.restart if known else "maybe"),
            remedy=known.remedy if known else "",
            evidence_line=clue.match.line if clue else 0,
            evidence=clue.match.text if clue else "",
            confidence=guess.confidence,
        )

    def _guess_ended(self, code: int | None, signals: frozenset[int], stage: str) -> Guess | None:
        if signals:
            return Guess(EXTERNAL, 0.7)
        if code in _NATIVE_CODES:
            return Guess("native-crash", 0.6)
        if code in _KILLED_CODES and not self._clues.said_fatal:
            return Guess(HOST_OOM, 0.5)  # -9 without a word; the engine kills itself so, too, but says it first
        if code in _TERMINATED_CODES:
            return Guess(EXTERNAL, 0.6)
        if code == 2 and stage == self._profile.stages[0]:
            return Guess("server-args-invalid", 0.4)
        return None

    def _guess_alive(self, stage: str) -> Guess | None:
        hang = self._profile.hangs.get(stage)
        restart = "yes" if stage == self._profile.stages[-1] else "maybe"  # nothing says that it must stall again
        return Guess(hang, 0.35, restart) if hang else None


def _own_status(code: int | None) -> bool:
    """Whether it ended by itself, with a status of its choice; a shell tells a child's kill as 137."""
    return code is not None and code >= 0 and code not in _KILLED_CODES
