"""How long a stalled start goes unnoticed and how many healthy ones are killed, beside fixed timers.

Each start is played in virtual time through the core that the daemon runs: recorded logs of the real engine and the
fake engine's dialects, stretched and jittered, with a stall put at a random point of a random phase and rank, and as
many without one.

    python -m bench.stalls [--seed N] [--repeats N] [--json FILE]     the whole table, with the slowest verdicts
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from bench.harness import Measurement, bench
from bench.played import Stall, Verdict, play
from bench.starts import Condition, Model, Start, models
from supervisor.actions import StartRecord

SEED = 5
REPEATS = 3  # of each model in each condition with each depth of history: 576 stalled starts, 576 healthy ones
EARLIER_STARTS = (0, 3, 10)
LEARNT = 3  # with so many earlier starts, deadlines are learned ones
STARTUP_PROBE_S = 600.0  # Kubernetes: periodSeconds 15, failureThreshold 40
POLLING_S = 1200.0  # a script that asks /health every 15 s for 20 min
PERIOD_S = 15.0
SHOWN = 5


class Played(NamedTuple):
    """One start and what became of it."""

    model: Model
    condition: Condition
    earlier: int
    start: Start
    stall: Stall | None
    verdict: Verdict

    @property
    def killed_healthy(self) -> bool:
        """Condemned without a stall, or before it."""
        return self.verdict.at < (self.start.struck.at if self.start.struck else math.inf)

    @property
    def detection_s(self) -> float:
        """From the stall to the verdict; inf when there was none."""
        return self.verdict.at - self.start.struck.at if self.start.struck else math.nan

    @property
    def stillness_s(self) -> float:
        """From the last line to the verdict: ranks that wait for nobody go on when one of them is stuck."""
        last = self.start.lines[-1][0] if self.start.lines else 0.0
        return min(self.detection_s, self.verdict.at - last)

    def timer_s(self, timer_s: float) -> float | None:
        """From the stall to the end of a fixed timer; None when the timer had ended the start before it stalled."""
        left_s = timer_s - self.start.struck.at if self.start.struck else math.nan
        return left_s if left_s >= 0 else None


# --- playing -----------------------------------------------------------------------------------------------------


def play_all(seed: int = SEED, repeats: int = REPEATS, chosen: Sequence[Model] | None = None) -> list[Played]:
    """Every model in every condition with every depth of history, healthy and stalled."""
    played: list[Played] = []
    for model in models(seed) if chosen is None else chosen:
        history = earlier_starts(model, seed)
        for condition in Condition:
            for earlier in EARLIER_STARTS:
                for number in range(repeats):
                    chance = random.Random(f"{seed}/{model.name}/{condition.value}/{earlier}/{number}")
                    played += pair(model, condition, history[:earlier], chance)
    return played


def earlier_starts(model: Model, seed: int) -> tuple[StartRecord, ...]:
    """What the daemon remembers of healthy starts on a host that is neither cold nor busy."""
    chance = random.Random(f"{seed}/{model.name}/earlier")
    records = []
    for _ in range(max(EARLIER_STARTS)):
        start = model.start(Condition.NORMAL, chance, stall=False)
        verdict = play(start, Condition.NORMAL, (), None, chance)
        if verdict.record is None:
            raise RuntimeError(f"cannot learn from {model.name}: its start did not become healthy: {verdict.reason}")
        records.append(verdict.record)
    return tuple(records)


def pair(
    model: Model, condition: Condition, history: tuple[StartRecord, ...], chance: random.Random
) -> Iterator[Played]:
    """A healthy start, and one that stalls."""
    start = model.start(condition, chance, stall=False)
    yield Played(model, condition, len(history), start, None, play(start, condition, history, None, chance))
    stall = chance.choice(list(Stall))
    start = model.start(condition, chance, stall=True)
    yield Played(model, condition, len(history), start, stall, play(start, condition, history, stall, chance))


# --- counting ----------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One line of the table. Detection in seconds; `timer_*` are the startup probe's."""

    what: str
    starts: int
    false_kills: int
    missed: int
    mean: float
    p50: float
    p95: float
    still_p95: float  # counted from the moment at which no rank moved any more
    timer_p95: float
    timer_false_kills: int
    polling_p95: float
    polling_false_kills: int

    @property
    def ratio(self) -> float:
        """How many times sooner than the startup probe, at the 95th percentile."""
        return self.timer_p95 / self.p95


def summary(what: str, played: Iterable[Played]) -> Row:
    """The figures of these starts."""
    members = list(played)
    stalled = [one for one in members if one.stall and not one.killed_healthy]
    healthy = [one for one in members if one.stall is None]
    detection = [one.detection_s for one in stalled]
    return Row(
        what,
        len(members),
        sum(one.killed_healthy for one in members),
        sum(math.isinf(seconds) for seconds in detection),
        fmean(detection),
        percentile(detection, 50),
        percentile(detection, 95),
        percentile([one.stillness_s for one in stalled], 95),
        timer_p95(stalled, STARTUP_PROBE_S),
        sum(one.start.ready > STARTUP_PROBE_S for one in healthy),
        timer_p95(stalled, POLLING_S),
        sum(one.start.ready > POLLING_S for one in healthy),
    )


def timer_p95(stalled: Iterable[Played], timer_s: float) -> float:
    return percentile([left for one in stalled if (left := one.timer_s(timer_s)) is not None], 95)


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that so many of a hundred do not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * percent / 100) - 1] if ordered else math.nan


def safe_timer_s(played: Iterable[Played]) -> float:
    """The shortest fixed timer that kills none of the healthy starts."""
    return math.ceil(max(one.start.ready for one in played if one.stall is None) / PERIOD_S) * PERIOD_S


def rows(played: list[Played]) -> Iterator[Row]:
    """Per condition with and without earlier starts, then per kind of stall."""

    learned = [one for one in played if one.earlier >= LEARNT]
    first = [one for one in played if one.earlier == 0]
    for chosen, when in ((learned, "learned"), (first, "first start")):
        yield summary(f"all, {when}", chosen)
        for condition in Condition:
            yield summary(f"{condition.value}, {when}", [one for one in chosen if one.condition is condition])
    for stall in Stall:
        yield summary(f"{stall.value}, learned", [one for one in learned if one.stall is stall])


# --- showing -----------------------------------------------------------------------------------------------------


@bench("stalls")
def stalls() -> Iterator[Measurement]:
    """Seconds from the stall to the verdict, and healthy starts killed."""
    played = play_all()
    probe, polling = "10 min startup probe", "20 min of 15 s polling"
    for row in rows(played):
        yield Measurement(f"stall to verdict p95, {row.what}", "s", row.p95, probe, row.timer_p95)
    everything = summary("all", played)
    yield Measurement("stall to verdict mean, all", "s", everything.mean, polling, everything.polling_p95)
    healthy = sum(one.stall is None for one in played)
    what = f"healthy starts killed, of {healthy}"
    yield Measurement(what, "starts", everything.false_kills, probe, everything.timer_false_kills)
    yield Measurement(what, "starts", everything.false_kills, polling, everything.polling_false_kills)
    yield from against_safe_timer(played)


def against_safe_timer(played: list[Played]) -> Iterator[Measurement]:
    timer_s = safe_timer_s(played)
    stalled = [one for one in played if one.stall]
    detection = percentile([one.detection_s for one in stalled], 95)
    name = f"{timer_s / 60:.0f} min, the shortest timer that kills none of them"
    yield Measurement("stall to verdict p95, all", "s", detection, name, timer_p95(stalled, timer_s))


def table(played: list[Played]) -> str:
    """All rows, ratio first."""
    head = (
        "ratio",
        "starts",
        "false",
        "missed",
        "mean",
        "p50",
        "p95",
        "p95 of stillness",
        "probe p95",
        "its false",
        "what",
    )
    lines = [head, *(_cells(row) for row in rows(played))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _cells(row: Row) -> tuple[str, ...]:
    seconds = (row.mean, row.p50, row.p95, row.still_p95, row.timer_p95)
    counts = (row.starts, row.false_kills, row.missed)
    return (
        f"{row.ratio:.2f}",
        *(str(count) for count in counts),
        *(f"{one:.0f}" for one in seconds),
        str(row.timer_false_kills),
        row.what,
    )


def slowest(played: list[Played], condition: Condition) -> Iterator[str]:
    """What was noticed last, and why so late."""
    learned = [one for one in played if one.stall and one.condition is condition and one.earlier >= LEARNT]
    for one in sorted(learned, key=lambda one: -one.detection_s)[:SHOWN]:
        assert one.start.struck
        assert one.stall
        place = f"{one.start.struck.rank} in {one.start.struck.phase}"
        yield f"{one.detection_s:5.0f} s  {one.stall.value}, {place}; {one.model.name}: {one.verdict.reason}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.stalls", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE as well")
    given = parser.parse_args()
    played = play_all(given.seed, given.repeats)
    sys.stdout.write(f"{table(played)}\n\n")
    for condition in Condition:
        sys.stdout.write(
            f"noticed last, {condition.value}:\n" + "".join(f"  {x}\n" for x in slowest(played, condition))
        )
    for one in played:
        if one.killed_healthy:
            sys.stdout.write(f"FALSE  {one.condition.value}, {one.earlier} earlier, {one.model.name}: {one.verdict}\n")
    sys.stdout.write(f"the shortest timer that kills none of the healthy ones: {safe_timer_s(played):.0f} s\n")
    if given.json:
        given.json.write_text(json.dumps([row._asdict() | {"ratio": row.ratio} for row in rows(played)], indent=1))


if __name__ == "__main__":
    main()
