"""The bench of stalls, small: no healthy start is killed, every stall is found, and the same seed gives the same table."""

from __future__ import annotations

import math
import random

import pytest

from bench.played import Stall, play
from bench.stalls import Played, against_safe_timer, percentile, play_all, rows, safe_timer_s, summary, table
from bench.starts import Condition, Model, models
from supervisor.events import LineMatched

CHOSEN = ("--dialect 0.5.9 --tp 8 --speculative-algorithm EAGLE3", "logs/gpu-b2_eagle3_steps1_tokens16_killall.log.gz")


def chosen() -> list[Model]:
    return [model for model in models(seed=3) if model.name in CHOSEN]


@pytest.fixture(scope="module")
def played() -> list[Played]:
    return play_all(seed=3, repeats=1, chosen=chosen())


def test_no_healthy_start_is_killed_in_any_condition(played: list[Played]) -> None:
    healthy = [one for one in played if one.stall is None]
    assert len(healthy) >= 20
    assert [one.verdict for one in played if one.killed_healthy] == []
    assert all(math.isfinite(one.verdict.ready) for one in healthy)


def test_every_stall_is_found(played: list[Played]) -> None:
    stalled = [one for one in played if one.stall]
    assert len(stalled) >= 20
    assert all(math.isfinite(one.verdict.at) for one in stalled)
    assert all(one.verdict.reason for one in stalled)


def test_with_earlier_starts_a_stall_is_found_five_times_sooner_than_by_a_timer(played: list[Played]) -> None:
    learned = [one for one in played if one.earlier >= 3 and one.condition is Condition.NORMAL]
    assert summary("", learned).ratio >= 5


def test_the_table_puts_the_ratio_first_and_has_a_row_per_condition(played: list[Played]) -> None:
    lines = table(played).splitlines()
    assert lines[0].split()[0] == "ratio"
    for condition in Condition:
        assert any(line.endswith(f"{condition.value}, learned") for line in lines)
    assert len(lines) == 1 + len(list(rows(played)))


def test_the_safe_timer_kills_nobody_and_takes_long(played: list[Played]) -> None:
    safe_s = safe_timer_s(played)
    assert all(one.start.ready <= safe_s for one in played if one.stall is None)
    (measured,) = against_safe_timer(played)
    assert measured.ratio is not None
    assert measured.ratio > 1


# --- what is played ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", list(models(1)), ids=lambda model: model.name)
def test_the_same_chance_makes_the_same_start(model: Model) -> None:
    def made(seed: int) -> tuple[tuple[float, LineMatched], ...]:
        return model.start(Condition.BOTH, random.Random(seed), stall=True).lines

    assert made(1) == made(1)


@pytest.mark.parametrize("model", list(models(1)), ids=lambda model: model.name)
def test_a_healthy_start_says_ready_and_a_stalled_one_does_not(model: Model) -> None:
    healthy = model.start(Condition.NORMAL, random.Random(1), stall=False)
    assert healthy.struck is None
    assert healthy.listening < healthy.ready < math.inf
    assert [at for at, _ in healthy.lines] == sorted(at for at, _ in healthy.lines)
    stalled = model.start(Condition.NORMAL, random.Random(1), stall=True)
    assert stalled.struck is not None
    assert stalled.ready == math.inf
    assert len(stalled.lines) < len(healthy.lines)


def test_a_cold_cache_slows_the_weights_and_a_busy_box_everything() -> None:
    (model, *_) = chosen()
    ready = {one: model.start(one, random.Random(2), stall=False).ready for one in Condition}
    assert ready[Condition.NORMAL] * 2 < ready[Condition.COLD] < ready[Condition.BOTH] / 2
    assert ready[Condition.BUSY] == pytest.approx(3 * ready[Condition.NORMAL], rel=0.1)


def test_a_stopped_rank_is_named_within_about_a_minute() -> None:
    (model, *_) = chosen()
    chance = random.Random(8)
    start = model.start(Condition.NORMAL, chance, stall=True)
    assert start.struck is not None
    verdict = play(start, Condition.NORMAL, (), Stall.STOPPED, chance)
    assert verdict.at - start.struck.at < 65
    assert f"scheduler {start.struck.rank}" in verdict.reason


def test_percentiles_are_values_that_were_seen() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile(list(range(1, 101)), 95) == 95
    assert math.isnan(percentile([], 95))
