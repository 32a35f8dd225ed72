"""Prints the log that a run would print, at once and without any process."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from supervisor.simulator import texts
from supervisor.simulator.dialect import DeathWatch
from supervisor.simulator.failures import PEER_RESET, scheduler_traceback
from supervisor.simulator.layout import Rank
from supervisor.simulator.options import Options
from supervisor.simulator.plan import LOCAL_PHASES, MAIN, PEER_LOST_S, Emission, Fate, FateKind, Plan, RankPlan
from supervisor.simulator.scenario import Kind
from supervisor.simulator.script import audible, make_plan, rank_fate

EPOCH_S = 1_764_403_200.0  # 2025-11-29 08:00:00 UTC
_PID = 4242
_FOLLOW_UP_S = 0.1
_POLL_S = 5.0


class Write(NamedTuple):
    """One write of the run: unscaled second, `main` or a rank's name, phase, bytes."""

    at_s: float
    source: str
    phase: str
    data: bytes


def render(options: Options, epoch_s: float = EPOCH_S) -> Iterator[Write]:
    """Yield every write of the run in order of time, up to the moment from which nothing more comes."""
    for emission in _timeline(make_plan(options)):
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(epoch_s + emission.at_s))
        data = emission.line(stamp)
        for _ in range(emission.repeat):
            yield Write(emission.at_s, emission.source, emission.phase, data)


def _timeline(plan: Plan) -> list[Emission]:
    emissions, end_s = _start_up(plan)
    if end_s is None:
        emissions += _served(plan)
    else:
        emissions = [emission for emission in emissions if emission.at_s <= end_s]
    return sorted(emissions, key=lambda emission: emission.at_s)


def _start_up(plan: Plan) -> tuple[list[Emission], float | None]:
    """The writes up to readiness, and when the run ends or falls silent (None: it becomes ready)."""
    main = list(plan.main)
    if plan.main_fate:
        fate = plan.main_fate
        if fate.kind is FateKind.CRASH or fate.at_s < plan.spawn_s - 0.1:
            return main + list(fate.emissions), fate.at_s
        main += [e for rank in plan.ranks for step in rank.steps for e in step.emissions]
        return main, math.inf
    struck = [rank for rank in plan.ranks if rank.fate]
    if not struck:
        return main + [e for rank in plan.ranks for step in rank.steps for e in step.emissions], None
    return _struck(plan, main, struck)


def _struck(plan: Plan, main: list[Emission], struck: Sequence[RankPlan]) -> tuple[list[Emission], float]:
    stops = {rank.rank.group: _stop_step(rank) for rank in reversed(struck)}
    for rank in plan.ranks:
        last = stops.get(rank.rank.group, len(rank.steps) - 1)
        main += [emission for step in rank.steps[: last + 1] for emission in step.emissions]
    fates = [(rank, rank.fate) for rank in struck if rank.fate]
    for _, fate in fates:
        main += fate.emissions
    first, fate = min(fates, key=lambda pair: pair[1].at_s)
    main += (aftermath := _aftermath(plan, first, fate))
    return main, aftermath[-1].at_s if aftermath else math.inf


def _stop_step(rank: RankPlan) -> int:
    return next(number for number, step in enumerate(rank.steps) if step.fate)


def _aftermath(plan: Plan, rank: RankPlan, fate: Fate) -> list[Emission]:
    """What the launcher writes about a dead scheduler before it ends."""
    if fate.kind is FateKind.CRASH:
        return _killed_tree(plan, fate.at_s + _FOLLOW_UP_S, texts.SIGQUIT_AT_LAUNCH)
    if fate.kind is FateKind.STALL or plan.options.dp > 1:
        return []
    if peers := _peers_that_raise(plan, rank):
        lost_s = fate.at_s + PEER_LOST_S
        trace = scheduler_traceback(PEER_RESET)
        raised = [Emission(lost_s, peer.name, "launch", trace, peer.prefix) for peer in peers]
        return raised + _killed_tree(plan, lost_s + _FOLLOW_UP_S, texts.SIGQUIT_AT_LAUNCH)
    if plan.dialect.death_watch is DeathWatch.POLL_EVERY_5_S:
        seen_s = plan.spawn_s + math.ceil((fate.at_s - plan.spawn_s) / _POLL_S) * _POLL_S
        text = texts.died_during_initialization(rank.rank.number, -fate.signal_number)
        return [Emission(seen_s, MAIN, "launch", text, raw=True)]
    if rank.rank.number > 0:
        return []
    dead_s = fate.at_s + _FOLLOW_UP_S
    lines = (texts.dead_scheduler(0), f"Exit code: {-fate.signal_number}")
    records = [Emission(dead_s, MAIN, "launch", text) for text in lines]
    return [*records, Emission(dead_s, MAIN, "launch", texts.eof_traceback(), raw=True)]


def _peers_that_raise(plan: Plan, struck: RankPlan) -> list[Rank]:
    """Ranks in a collective with a dead one; up to 0.5.9 they are taken to wait for ever."""
    phase = struck.steps[_stop_step(struck)].phase
    if phase in LOCAL_PHASES or not plan.dialect.watches_serving:
        return []
    return [one.rank for one in plan.ranks if one.rank.group == struck.rank.group and one is not struck]


def _killed_tree(plan: Plan, at_s: float, text: str) -> list[Emission]:
    lines = [text]
    if plan.dialect.announces_kill:
        lines.append(texts.kill_process_tree(_PID, include_parent=True))
    return [Emission(at_s, MAIN, "launch", line) for line in lines]


def _served(plan: Plan) -> list[Emission]:
    """From the last rank's report to `fired up`, and what the serving scenarios add."""
    lines = [e._replace(at_s=plan.ready_s + e.at_s, text=e.text.replace("{pid}", str(_PID))) for e in plan.bring_up]
    at_s = plan.ready_s + 0.3
    options, dialect = plan.options, plan.dialect
    lines.append(_record(at_s, texts.uvicorn_running(options.host, options.port)))
    if plan.warmup_fate:
        return lines + [e._replace(at_s=at_s + 1.0) for e in plan.warmup_fate.emissions]
    done_s = at_s + options.seconds("warmup")
    if not options.skip_server_warmup:
        leader = plan.ranks[0].rank
        batch = Emission(done_s - 0.6, leader.name, "warmup", texts.prefill_batch(dialect, 7, 0), leader.prefix)
        found = texts.access(f"{options.host}:50310", "GET", dialect.model_info_path, 200, "OK")
        answered = texts.access(f"{options.host}:50312", "POST", "/generate", 200, "OK")
        lines += [_record(at_s + 0.5, found, True), batch, _record(done_s - 0.1, answered, True)]
    lines.append(_record(done_s, texts.FIRED_UP, phase="serving"))
    return list(audible(options, lines)) + list(_serving_scenarios(plan, done_s))


def _serving_scenarios(plan: Plan, ready_s: float) -> Iterator[Emission]:
    for scenario in plan.serving:
        at_s = ready_s + (scenario.after_s or 1.0)
        match scenario.kind:
            case Kind.HOSTILE:
                for text in texts.hostile_texts():
                    decoded = text.decode("utf-8", "surrogateescape")
                    yield Emission(at_s, MAIN, "serving", decoded, raw=True, stdout=True)
            case Kind.CRASH:
                rank = next(p.rank for p in plan.ranks if p.rank.matches(scenario.rank or "0"))
                fate = rank_fate(plan.options, scenario, rank, at_s)
                yield from fate.emissions
                if fate.kind is FateKind.CRASH:
                    yield from _killed_tree(plan, at_s + _FOLLOW_UP_S, texts.SIGQUIT_WHILE_SERVING)
            case _:
                continue


def _record(at_s: float, text: str, stdout: bool = False, phase: str = "warmup") -> Emission:
    return Emission(at_s, MAIN, phase, text, stdout=stdout)
