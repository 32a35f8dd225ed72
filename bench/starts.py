"""Makes starts of engines to be played in virtual time: recorded logs and the fake engine's, stretched and jittered."""

import functools
import gzip
import itertools
import math
import random
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from supervisor.core.log.grammar import LogReader
from supervisor.core.log.stamps import seconds
from supervisor.core.progress import PhaseTracker
from supervisor.events import LineMatched
from supervisor.lines import LineCutter
from supervisor.profile import load_profile
from supervisor.simulator.options import PHASE_SECONDS, Options, parse_options
from supervisor.simulator.plan import LOCAL_PHASES, MAIN, Plan, RankPlan
from supervisor.simulator.render import render
from supervisor.simulator.scenario import Kind, Scenario
from supervisor.simulator.script import make_plan

PROFILE = load_profile("sglang")
DATA = Path(__file__).resolve().parents[1] / "tests/data/sglang"
WEIGHTS = ("weights", "draft-weights")
LAUNCHER = "launcher's launch"  # the launcher's own imports; "launch" are those of its ranks
COMMAND = ("python", "-m", PROFILE.command.modules[0], "--model-path", "/models/m", "--port", "30000")
READY = "ready"  # the rule of the line that says so
COLD_FACTOR = 8.0
BUSY_FACTOR = 3.0
JITTER = 0.15  # one sigma of a phase's length from start to start
_BEFORE_FIRST_LINE_S = 12.0
_PORT_BEFORE_READY_S = 2.0


class Condition(Enum):
    """What the host is like while a start is judged. Earlier starts are always normal ones."""

    NORMAL = "normal"
    COLD = "cold cache"
    BUSY = "busy box"
    BOTH = "cold and busy"

    @property
    def cold(self) -> bool:
        return self in (Condition.COLD, Condition.BOTH)

    def factor(self, phase: str) -> float:
        """How many times longer the phase takes."""
        cold = COLD_FACTOR if self.cold and phase in WEIGHTS else 1.0
        return cold * (BUSY_FACTOR if self in (Condition.BUSY, Condition.BOTH) else 1.0)


class Span(NamedTuple):
    """One phase of the start as it really was, whatever the log tells of it."""

    phase: str
    begin: float
    end: float


class Struck(NamedTuple):
    """Where the stall was put."""

    at: float
    phase: str
    rank: str


class Start(NamedTuple):
    """One start: matches of the log at their moments. `listening` and `ready` are inf when a stall came first."""

    name: str
    command: tuple[str, ...]
    ranks: tuple[str, ...]
    lines: tuple[tuple[float, LineMatched], ...]
    spans: tuple[Span, ...]
    listening: float
    ready: float
    struck: Struck | None = None

    def phase_at(self, at: float) -> str:
        return next((span.phase for span in self.spans if at < span.end), self.spans[-1].phase)


# --- the fake engine ---------------------------------------------------------------------------------------------

EAGLE = ("--speculative-algorithm", "EAGLE3")
VARIANTS = (
    ("--dialect", "0.5.3", "--tp", "8"),
    ("--dialect", "0.5.3", *EAGLE),
    ("--dialect", "0.5.9"),
    ("--dialect", "0.5.9", "--tp", "8", *EAGLE),
    ("--dialect", "0.5.9", "--tp", "2", "--dp", "2"),
    ("--dialect", "0.5.23", "--tp", "8"),
    ("--dialect", "0.5.23", "--tp", "8", *EAGLE, "--speculative-num-steps", "15"),
    ("--dialect", "0.5.23", "--shards", "4"),
)


def played(variant: tuple[str, ...], stretch: float, condition: Condition, chance: random.Random, stall: bool) -> Start:
    """A start of the fake engine. Each phase's length is stretched, slowed by the condition, and jittered."""
    lengths = {
        phase: length * stretch * condition.factor(phase) * chance.lognormvariate(0.0, JITTER)
        for phase, length in PHASE_SECONDS.items()
    }
    base = parse_options(["--model-path", "/models/m", *variant], {})
    options = base._replace(phase_seconds=tuple(lengths.items()), seed=chance.randrange(1 << 30))
    struck = None
    if stall:
        options, struck = _strike(options, chance)
    plan = make_plan(options)
    lines = tuple(_matches((write.at_s, write.data) for write in render(options)))
    ready = next((at for at, match in lines if match.rule == READY), math.inf)
    serves = struck is None or struck.phase == "warmup"
    listening = plan.ready_s + 0.3 if serves else math.inf
    ranks = tuple(rank.rank.name for rank in plan.ranks)
    return Start(" ".join(variant), (*COMMAND, *variant), ranks, lines, tuple(_spans(plan)), listening, ready, struck)


def _spans(plan: Plan) -> Iterator[Span]:
    steps = plan.ranks[0].steps
    yield Span("launch", 0.0, steps[0].begin_s)
    for step in steps:
        yield Span(step.phase, step.begin_s, step.end_s)
    yield Span("warmup", steps[-1].end_s, math.inf)


def _strike(options: Options, chance: random.Random) -> tuple[Options, Struck]:
    """Put a stall at a random point of a random phase and rank, by the fake engine's own scenario."""
    ranks = make_plan(options).ranks
    names = [plan.rank.name for plan in ranks]
    phase = chance.choice(_phases(ranks[0]))
    rank = MAIN if phase in (LAUNCHER, "warmup") else chance.choice(names)
    scenario = Scenario(Kind.STALL, phase.removeprefix("launcher's "), rank, chance.uniform(0.05, 0.95))
    options = options._replace(scenarios=(scenario,))
    plan = make_plan(options)
    fate = plan.main_fate or next((one.fate for one in plan.ranks if one.fate), None)
    at = fate.at_s if fate is not None else plan.ready_s + 1.3
    return options, Struck(at, phase, names[0] if rank == MAIN else rank)


def _phases(rank: RankPlan) -> list[str]:
    steps = dict.fromkeys(step.phase for step in rank.steps if step.phase != "ready")
    return [LAUNCHER, *steps, "warmup"]


# --- recorded logs -----------------------------------------------------------------------------------------------

RECORDED = (
    "logs/gpu-b_eagle3_then_e_sigkill_parent.log.gz",
    "logs/gpu-b2_eagle3_steps1_tokens16_killall.log.gz",
    "logs/gpu-a2_sigterm_with_request_in_flight.log.gz",
    "logs/gpu-h_tp2_sigstop_tp1_serving.log.gz",
    "logs/cpu-tp2.log.gz",
    "logs/cpu-stop-SIGTERM-inflight.log.gz",
    "real-0.5.23-cpu/healthy-start-tp1.log",
    "real-0.5.23-cpu/healthy-start-tp2.log",
)


def recorded(name: str, stretch: float, condition: Condition, chance: random.Random, stall: bool) -> Start:
    """A recorded start of the real engine, each of whose phases is stretched, slowed and jittered."""
    lines, spans = _recording(name)
    factors = [stretch * condition.factor(span.phase) * chance.lognormvariate(0.0, JITTER) for span in spans]
    moved, at = [], 0.0
    for span, factor in zip(spans, factors, strict=True):
        moved.append(Span(span.phase, at, at := at + (span.end - span.begin) * factor))

    def move(when: float) -> float:
        index = next((i for i, span in enumerate(spans) if when <= span.end), len(spans) - 1)
        return moved[index].begin + (when - spans[index].begin) * factors[index]

    timed = tuple((move(when), match) for when, match in lines)
    ranks = tuple(sorted({match.rank for _, match in lines if match.rank})) or (PROFILE.grammar.lone_rank,)
    ready = timed[-1][0]
    command = (*COMMAND, "--tp", str(len(ranks)), *(EAGLE if "eagle" in name else ()))
    start = Start(name, command, ranks, timed, tuple(moved), ready - _PORT_BEFORE_READY_S, ready)
    return _cut(start, chance) if stall else start


def _cut(start: Start, chance: random.Random) -> Start:
    """Silence from a random point of a random phase on; ranks that meet nobody in it go on to its end."""
    span = chance.choice([span for span in start.spans if span.end - span.begin > 0])
    at = chance.uniform(span.begin, span.end)
    rank = chance.choice(start.ranks)
    alone = span.phase in LOCAL_PHASES and rank != start.ranks[0]
    last = span.end if alone else at
    lines = tuple(
        (when, match) for when, match in start.lines if when <= at or (when <= last and match.rank not in (rank, ""))
    )
    listening = start.listening if at > start.listening else math.inf
    return start._replace(lines=lines, listening=listening, ready=math.inf, struck=Struck(at, span.phase, rank))


@functools.cache
def _recording(name: str) -> tuple[list[tuple[float, LineMatched]], list[Span]]:
    """The log's matches up to readiness with seconds since the launch, and the phases that they tell."""
    path = DATA / name
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    matches = [match for _, match in _matches([(0.0, data)])]
    end = next(index for index, match in enumerate(matches) if match.rule == READY)
    lines = list(_timed(matches[: end + 1]))
    return lines, list(_told(lines))


def _timed(matches: list[LineMatched]) -> Iterator[tuple[float, LineMatched]]:
    """Stamps count whole seconds: what carries the same one is spread over it."""
    first = next(seconds(match.stamp) for match in matches if match.stamp)
    last = first
    for stamp, group in itertools.groupby(matches, lambda match: match.stamp):
        members = list(group)
        last = max(last, seconds(stamp)) if stamp else last
        for index, match in enumerate(members):
            yield _BEFORE_FIRST_LINE_S + last - first + index / len(members), match


def _told(lines: list[tuple[float, LineMatched]]) -> Iterator[Span]:
    tracker = PhaseTracker(PROFILE)
    tracker.begin(0.0)
    phase, begin, at = tracker.view().phase, 0.0, 0.0
    for at, match in lines:
        tracker.observe(match, at)
        now = tracker.view().phase
        if now != phase:
            yield Span(phase, begin, at)
            phase, begin = now, at
    yield Span(phase, begin, at)


# --- lines -------------------------------------------------------------------------------------------------------


def _matches(writes: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, LineMatched]]:
    """What the daemon's reader makes of the writes; a bar without its line end is seen, too."""
    cutter, reader = LineCutter(), LogReader(PROFILE, 1)
    for at, data in writes:
        lines = cutter.feed(data)
        if pending := cutter.pending():
            lines.append(pending)
        for match in reader.read(lines):
            yield at, match


@functools.cache
def spam() -> tuple[LineMatched, ...]:
    """What a hung server may go on writing: warnings, and a line for every probe that it is asked."""
    texts = (
        "[2026-11-29 10:00:00 TP0] Unexpected key in checkpoint: model.layers.60.mlp.input_scale; ignored",
        '[2026-11-29 10:00:00] INFO:     127.0.0.1:40112 - "GET /health HTTP/1.1" 503 Service Unavailable',
        "[2026-11-29 10:00:00 TP0] Ignore import error when loading sglang.srt.models.mimo_v2: No module named 'x'",
        "[rank0]:[W1129 08:00:23.512338812 ProcessGroupNCCL.cpp:1250] Warning: still waiting for the collective",
    )
    return tuple(match for text in texts for _, match in _matches([(0.0, f"{text}\n".encode())]))


class Model(NamedTuple):
    """One server that is started again and again: what it prints, and how fast its machine is."""

    name: str
    variant: tuple[str, ...]  # () = a recorded log
    stretch: float

    def start(self, condition: Condition, chance: random.Random, *, stall: bool) -> Start:
        """One of its starts."""
        if self.variant:
            return played(self.variant, self.stretch, condition, chance, stall)
        return recorded(self.name, self.stretch, condition, chance, stall)


def models(seed: int) -> Iterator[Model]:
    """All of them: the fake engine's four minutes shortened, the recorded half minutes of tiny models lengthened."""
    for variant in VARIANTS:
        name = " ".join(variant)
        yield Model(name, variant, random.Random(f"{seed}/{name}").uniform(0.35, 0.65))
    for name in RECORDED:
        most = 2.0 if "gpu" in name else 1.2  # those of the CPU come from a loaded machine
        yield Model(name, (), random.Random(f"{seed}/{name}").uniform(1.0, most))
