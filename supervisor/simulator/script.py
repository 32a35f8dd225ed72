"""Computes what every process of a run writes and when, without any process: the script that a live run plays."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from supervisor.simulator import texts
from supervisor.simulator.beat import Beat
from supervisor.simulator.clock import is_quiet
from supervisor.simulator.dialect import DIALECTS, Dialect, Who
from supervisor.simulator.failures import CAUSES, Where, scheduler_traceback, warmup_error
from supervisor.simulator.failures import launcher_traceback as launcher_text
from supervisor.simulator.layout import Rank, local_ranks
from supervisor.simulator.options import Options
from supervisor.simulator.plan import LOCAL_PHASES, MAIN, Emission, Fate, FateKind, Plan, RankPlan, StepPlan
from supervisor.simulator.scenario import Kind, Scenario, ScenarioError, slowness
from supervisor.simulator.steps import Step, StepWriter

LAUNCHER_PHASES = ("launch", "tokenizer", "warmup")
_FLOOD_LINE = "Unexpected key in checkpoint: model.layers.60.mlp.experts.255.down_proj.input_scale; ignored" + "." * 60
_MAX_SKEW_S = 1.5
_MEETINGS = 8


def make_plan(options: Options) -> Plan:
    """Raise ScenarioError when a scenario names a phase, rank or cause that this run does not have."""
    dialect = DIALECTS[options.dialect]
    chosen = random.Random(f"{options.seed}/{options.dialect}/{options.model_path}")
    ranks = local_ranks(options, dialect)
    steps = _steps(options, dialect)
    _check(options.scenarios, ranks, steps)
    launch_s = options.seconds("launch") * slowness(options.scenarios, "launch")
    main, fate = _launcher_script(options, dialect, launch_s)
    plans = tuple(_group_plans(options, steps, ranks, launch_s + 0.4, chosen))
    ready_s = max(plan.steps[-1].end_s for plan in plans)
    return Plan(
        options, dialect, launch_s + 0.4, audible(options, main), fate, _warmup_fate(options), plans, ready_s,
        audible(options, _bring_up(options, dialect)),
        tuple(s for s in options.scenarios if s.phase == "serving" or s.kind in (Kind.HOSTILE, Kind.ZOMBIE_200)),
    )  # fmt: skip


def _steps(options: Options, dialect: Dialect) -> tuple[Step, ...]:
    with_jit = any(s.kind is Kind.JIT or s.phase == "jit" for s in options.scenarios)
    return StepWriter(options, dialect, with_jit).steps()


def _check(scenarios: Iterable[Scenario], ranks: tuple[Rank, ...], steps: tuple[Step, ...]) -> None:
    phases = {step.phase for step in steps} | {*LAUNCHER_PHASES, "serving", ""}
    for scenario in scenarios:
        if scenario.phase not in phases:
            known = " ".join(sorted(phases - {""}))
            raise ScenarioError(f"cannot play phase {scenario.phase!r}: this run has {known}")
        if scenario.rank == MAIN and scenario.phase in LAUNCHER_PHASES:
            continue
        if scenario.rank and not any(rank.matches(scenario.rank) for rank in ranks):
            names = " ".join(rank.name for rank in ranks)
            raise ScenarioError(f"cannot play rank {scenario.rank!r}: this run has {names}")
        if scenario.cause and scenario.cause not in CAUSES:
            raise ScenarioError(f"cannot play cause {scenario.cause!r}: known are {' '.join(CAUSES)}")


# --- the launcher


def _launcher_script(options: Options, dialect: Dialect, launch_s: float) -> tuple[list[Emission], Fate | None]:
    lines = [_main(launch_s, "launch", texts.server_args_line(options, dialect))]
    if dialect.serve_warning:
        lines.insert(0, _main(launch_s * 0.8, "launch", texts.serve_warning(), raw=True))
    for number, text in enumerate(_argument_warnings(options)):
        warning = text if dialect.stamped_arg_warnings else text + "\n"
        lines.append(_main(launch_s * 0.9 + 0.01 * number, "launch", warning, raw=not dialect.stamped_arg_warnings))
    lines.append(_main(launch_s * 0.99, "launch", "Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit"))
    lines.append(_main(launch_s + 0.3, "tokenizer", texts.CHAT_TEMPLATE))
    lines.sort(key=lambda emission: emission.at_s)
    fate = _launcher_fate(options, launch_s)
    if fate:
        lines = [line for line in lines if line.at_s < fate.at_s]
    return lines, fate


def _argument_warnings(options: Options) -> list[str]:
    warnings = [texts.RESET_48] if options.speculative else []
    return [*warnings, texts.CLAMP] if options.draft_tokens_clamped else warnings


def _launcher_fate(options: Options, launch_s: float) -> Fate | None:
    for scenario in options.scenarios:
        at_s = launch_s * (0.95 if scenario.after_fraction is None else scenario.after_fraction)
        if scenario.kind is Kind.EXIT_ON_CONFIG:
            return _exit_with(texts.usage_error(), at_s, 2)
        if scenario.kind is Kind.CRASH and _where(scenario) is Where.LAUNCHER:
            text = _fill(launcher_text(CAUSES[scenario.cause]), options)
            return _exit_with(text, at_s, 1)
        if scenario.kind is Kind.STALL and scenario.rank in ("", MAIN):
            if scenario.phase == "launch":
                return Fate(FateKind.STALL, at_s, busy=scenario.busy)
            if scenario.phase == "tokenizer":
                return Fate(FateKind.STALL, launch_s + 0.35, busy=scenario.busy)
    return None


def _exit_with(text: str, at_s: float, code: int) -> Fate:
    return Fate(FateKind.CRASH, at_s, emissions=(_main(at_s, "launch", text, raw=True),), exit_code=code)


def _warmup_fate(options: Options) -> Fate | None:
    for scenario in options.scenarios:
        if scenario.kind is Kind.STALL and scenario.phase == "warmup":
            return Fate(FateKind.STALL, 0.0, busy=scenario.busy)
        if scenario.kind is Kind.CRASH and _where(scenario) is Where.WARMUP:
            text = _fill(warmup_error(CAUSES[scenario.cause]), options)
            return Fate(FateKind.CRASH, 0.0, emissions=(_main(0.0, "warmup", text),))
    return None


def _where(scenario: Scenario) -> Where:
    return CAUSES[scenario.cause or "scheduler-software-bug"].where


def _fill(text: str, options: Options) -> str:
    return text.replace("{model}", options.model_path).replace("{port}", str(options.port))


def _bring_up(options: Options, dialect: Dialect) -> list[Emission]:
    """From the last rank's report to the moment before the port is bound; times count from that report."""
    lines = [_main(0.05, "warmup", texts.startup_timings(options))] if dialect.startup_timings else []
    started = ("Started server process [{pid}]", "Waiting for application startup.", "Application startup complete.")
    lines += [_main(0.1 + 0.05 * n, "warmup", texts.uvicorn("INFO", text)) for n, text in enumerate(started)]
    return lines


def _main(at_s: float, phase: str, text: str, raw: bool = False, stdout: bool = False) -> Emission:
    return Emission(at_s, MAIN, phase, text, "", raw, stdout)


def audible(options: Options, emissions: Iterable[Emission]) -> tuple[Emission, ...]:
    """With --log-level warning every phase marker disappears: all of them are INFO; bars and prints stay."""
    quiet = is_quiet(options)
    return tuple(emission for emission in emissions if emission.raw or not quiet)


# --- the schedulers


class _Slice(NamedTuple):
    """The part of a step between two collectives; `first` marks the first step of its phase."""

    step: Step
    start: float
    end: float
    first: bool

    @property
    def share(self) -> float:
        return self.end - self.start

    def holds(self, fraction: float) -> bool:
        return self.start <= fraction < self.end or fraction == self.end == 1.0


def _slices(steps: tuple[Step, ...]) -> Iterator[_Slice]:
    """In distributed init and capture the ranks meet again and again: one that hangs stops the others at once."""
    for number, step in enumerate(steps):
        first = step.phase not in {earlier.phase for earlier in steps[:number]}
        cuts = 1 if step.phase in LOCAL_PHASES else _MEETINGS
        for cut in range(cuts):
            yield _Slice(step, cut / cuts, (cut + 1) / cuts, first)


def _group_plans(
    options: Options, steps: tuple[Step, ...], ranks: tuple[Rank, ...], spawn_s: float, chosen: random.Random
) -> Iterator[RankPlan]:
    for group in sorted({rank.group for rank in ranks}):
        members = [rank for rank in ranks if rank.group == group]
        plans: dict[Rank, list[StepPlan]] = {rank: [] for rank in members}
        begin_s = spawn_s
        for piece in _slices(steps):
            for rank in members:
                plans[rank].append(_step_plan(options, piece, rank, begin_s, chosen))
            begin_s = max(plans[rank][-1].end_s for rank in members)
        for rank in members:
            yield RankPlan(rank, tuple(plans[rank]))


def _step_plan(options: Options, piece: _Slice, rank: Rank, begin_s: float, chosen: random.Random) -> StepPlan:
    step = piece.step
    concerned = (one for one in options.scenarios if rank.matches(one.rank))
    seconds = step.seconds * piece.share * slowness(concerned, step.phase)
    skew_s = chosen.uniform(0.0, min(_MAX_SKEW_S, step.seconds * 0.06, seconds * 0.4))
    start_s, length_s = begin_s + skew_s, seconds - skew_s
    beats = [beat for beat in step.beats if piece.holds(beat.at) and (beat.who is Who.ALL or rank.leads_group)]
    moments = [start_s + (beat.at - piece.start) / piece.share * length_s for beat in beats]
    emissions = [_emission(beat, step.phase, rank, at_s) for beat, at_s in zip(beats, moments, strict=True)]
    if piece.first and piece.start == 0.0:
        emissions = _flood(options, step.phase, rank, start_s) + emissions
    fate = _rank_fate(options, piece, rank, begin_s, seconds) if piece.first else None
    if fate:
        emissions = [emission for emission in emissions if emission.at_s < fate.at_s]
    return StepPlan(step.phase, begin_s, begin_s + seconds, step.held_gb, audible(options, emissions), fate)


def _emission(beat: Beat, phase: str, rank: Rank, at_s: float) -> Emission:
    text = beat.text.replace("{rank}", str(rank.tp))
    return Emission(at_s, rank.name, phase, text, rank.prefix, beat.raw, beat.stdout)


def _flood(options: Options, phase: str, rank: Rank, at_s: float) -> list[Emission]:
    return [flood_emission(s, rank, at_s) for s in options.scenarios if _floods(s, phase) and rank.number == 0]


def _floods(scenario: Scenario, phase: str) -> bool:
    return scenario.kind is Kind.FLOOD and scenario.phase == phase


def flood_emission(scenario: Scenario, rank: Rank, at_s: float) -> Emission:
    line_bytes = len(f"[0000-00-00 00:00:00{rank.prefix}] {_FLOOD_LINE}\n")
    repeat = math.ceil(scenario.megabytes * 1e6 / line_bytes)
    return Emission(at_s, rank.name, scenario.phase, _FLOOD_LINE, rank.prefix, repeat=max(1, repeat))


def _rank_fate(options: Options, piece: _Slice, rank: Rank, begin_s: float, seconds: float) -> Fate | None:
    for scenario in options.scenarios:
        if scenario.phase == piece.step.phase and _strikes(scenario, rank):
            fraction = _fraction(scenario, seconds / piece.share)
            if piece.holds(fraction):
                at_s = begin_s + (fraction - piece.start) / piece.share * seconds
                return rank_fate(options, scenario, rank, at_s)
    return None


def _strikes(scenario: Scenario, rank: Rank) -> bool:
    """A stall without a rank stops all of them, a crash or a kill only the first one."""
    match scenario.kind:
        case Kind.STALL if scenario.phase in LAUNCHER_PHASES:
            return scenario.rank not in ("", MAIN) and rank.matches(scenario.rank)
        case Kind.STALL:
            return rank.matches(scenario.rank)
        case Kind.CRASH if _where(scenario) in (Where.LAUNCHER, Where.WARMUP):
            return False
        case Kind.CRASH | Kind.OOM_KILL:
            return rank.matches(scenario.rank or "0")
        case _:
            return False


def _fraction(scenario: Scenario, seconds: float) -> float:
    if scenario.after_s is not None:
        return min(1.0, scenario.after_s / seconds)
    return 0.5 if scenario.after_fraction is None else scenario.after_fraction


def rank_fate(options: Options, scenario: Scenario, rank: Rank, at_s: float) -> Fate:
    """What a scheduler does and writes when the scenario strikes it."""
    if scenario.kind is Kind.STALL:
        return Fate(FateKind.STALL, at_s, busy=scenario.busy)
    if scenario.kind is Kind.OOM_KILL:
        return Fate(FateKind.KILLED, at_s, signal_number=9)
    cause = CAUSES[scenario.cause or "scheduler-software-bug"]

    def record(text: str, raw: bool = False) -> Emission:
        filled = _fill(text, options).replace("{device}", str(rank.device)).replace("{rank}", str(rank.number))
        filled = filled.replace("{watchdog}", str(options.watchdog_timeout_s))
        return Emission(at_s, rank.name, scenario.phase, filled, rank.prefix, raw)

    before = tuple(record(text) for text in cause.before)
    match cause.where:
        case Where.NATIVE:
            last = (record(cause.error + "\n", raw=True),) if cause.error else ()
            return Fate(FateKind.KILLED, at_s, signal_number=cause.signal_number, emissions=before + last)
        case Where.LOUD_ALIVE:
            return Fate(FateKind.STALL, at_s, busy=scenario.busy, emissions=before)
        case _:
            trace = (record(scheduler_traceback(cause)),) if cause.error else ()
            return Fate(FateKind.CRASH, at_s, emissions=before + trace)
