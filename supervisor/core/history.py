"""What earlier starts of a server teach: how long its phases take, how long they are silent, how many tokens fit.

Robust and shy: the median and its spread, never the mean; nothing below a floor, nothing above the configured limit;
few samples teach little. Old starts are forgotten slowly: only the newest `KEPT` of a command count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median

import msgspec

from supervisor.actions import PhaseRecord, StartRecord

KEPT = 20
FEW = 3  # fewer starts than this teach nothing that is enforced

# A deadline of twice the longest usual silence plus five spreads. A cold page cache and a busy host make a start up to
# eight times slower, its silences too (the repacking behind a full bar): it gets as many times more
# patience as it has been slower so far (`PhaseClock.pace`).
_TIMES = 2.0
_SPREADS = 5.0
_TELLING_S = 1.0  # a shorter phase tells nothing about the pace of a start
_UNTOLD_PACE = 3.0  # until a phase has ended nobody knows whether the host is busy, which makes a start so much slower


class Lesson(msgspec.Struct, frozen=True):
    """What was learned about one phase."""

    phase: str
    samples: int
    median_s: float
    longest_silence_s: float
    floor_s: float
    patience_s: float  # with silence, of a start that is as fast as the earlier ones

    def stall_s(self, pace: float = 1.0) -> float:
        """The patience with the silence of a start that takes `pace` times as long as usual."""
        return max(self.floor_s, self.patience_s * pace)

    @property
    def enough(self) -> bool:
        """Whether it may be enforced."""
        return self.samples >= FEW


class History:
    """The starts of one server, oldest first."""

    def __init__(self, records: Iterable[StartRecord] = ()) -> None:
        self._records = list(records)

    def add(self, record: StartRecord) -> None:
        """One more healthy start."""
        self._records.append(record)

    def of(self, key: str) -> list[StartRecord]:
        """The newest starts of the same kind."""
        return [record for record in self._records if record.key == key][-KEPT:]

    def lesson(self, key: str, phase: str, floor_s: float) -> Lesson | None:
        """What the phase teaches; None when no earlier start of this kind went through it."""
        seen = [part for record in self.of(key) for part in record.phases if part.phase == phase]
        if not seen:
            return None
        silences = [part.longest_silence_s for part in seen]
        usual = median(silences)
        spread = median(abs(silence - usual) for silence in silences) * 1.4826  # of a normal distribution
        patience_s = max(silences) * _TIMES if len(seen) < FEW else usual * _TIMES + spread * _SPREADS
        return Lesson(phase, len(seen), median(part.seconds for part in seen), max(silences), floor_s, patience_s)

    def usual_capacity(self, key: str) -> int | None:
        """How many tokens the last good start could hold."""
        known = [record.capacity_tokens for record in self.of(key) if record.capacity_tokens]
        return known[-1] if known else None


class PhaseClock:
    """Measures the phases of one start as they pass: feed it every advance, ask it at the end."""

    def __init__(self, phase: str, now: float) -> None:
        self._phase = phase
        self._began = now
        self._moved = now
        self._longest: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    def progress(self, phase: str, now: float) -> None:
        """Something moved; `phase` is the phase of the start as a whole from now on."""
        self._silence(now)
        if phase != self._phase:
            self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + now - self._began
            self._phase, self._began = phase, now

    def pace(self, usual_s: Callable[[str], float | None]) -> float:
        """How many times slower than usual this start has been up to its last progress; 1 at least.

        The present phase speaks for itself; of those before it the median counts, since what is slow in one phase
        alone (a cold cache) says nothing about the others, and what is slow everywhere (a busy host) does.
        """
        took = self._seconds | {self._phase: self._seconds.get(self._phase, 0.0) + self._moved - self._began}
        ratios = {phase: took_s / s for phase, took_s in took.items() if (s := usual_s(phase)) and s >= _TELLING_S}
        present = ratios.pop(self._phase, 1.0)
        untold = 1.0 if self._seconds else _UNTOLD_PACE
        return max(1.0, present, median(ratios.values()) if ratios else untold)

    def _silence(self, now: float) -> None:
        silent = now - self._moved
        self._longest[self._phase] = max(self._longest.get(self._phase, 0.0), silent)
        self._moved = now

    def records(self, now: float) -> tuple[PhaseRecord, ...]:
        """The phases so far. A phase that came twice (a draft model's) counts once, with both times added."""
        self._silence(now)
        seconds = self._seconds | {self._phase: self._seconds.get(self._phase, 0.0) + now - self._began}
        return tuple(
            PhaseRecord(phase, took, self._longest.get(phase, took)) for phase, took in seconds.items() if phase
        )
