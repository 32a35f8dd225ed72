"""A log's starts under today's deadlines: phases, silences, what would have been ended, and whether that was right."""

from __future__ import annotations

import pytest

from supervisor.core.log.stamps import seconds
from supervisor.core.replay.relive import Life, Relived
from supervisor.core.server import Server
from supervisor.core.settings import PhaseLimit, Settings
from supervisor.lines import LineCutter
from supervisor.profile import facts, load_profile

PROFILE = load_profile("sglang")
SETTINGS = Settings(
    name="log", deadlines={"weights": PhaseLimit(100.0, 3600.0)}, default_limit=PhaseLimit(300.0, 3600.0)
)
ARGS = "[2026-11-29 10:00:00] server_args=ServerArgs(model_path='/m', tp_size=1)"
WEIGHTS = "[2026-11-29 10:00:20] Load weight begin. avail mem=78.00 GB"
POOL = "[2026-11-29 10:{}] KV Cache is allocated. #tokens: 1000, K size: 1 GB, V size: 1 GB"
READY = "[2026-11-29 10:{}] The server is fired up and ready to roll!"
SIGQUIT = "[2026-11-29 10:{}] SIGQUIT received. signum=None, frame=None. It usually means one child failed."


def relived(*lines: str, until: str = "", settings: Settings = SETTINGS) -> list[Life]:
    it = Relived(PROFILE, lambda now: Server(settings, PROFILE, facts(PROFILE, ()), now))
    it.read(LineCutter().feed("".join(f"{line}\n" for line in lines).encode()))
    return it.conclude(seconds(until) if until else None)


def phases(life: Life) -> list[tuple[str, float, float]]:
    return [(phase.phase, phase.seconds, phase.longest_silence_s) for phase in life.phases]


def test_a_healthy_start_has_phases_with_their_silences() -> None:
    (life,) = relived(ARGS, WEIGHTS, POOL.format("01:05"), READY.format("01:09"))
    assert life.charge is None
    assert life.ready is not None
    assert life.ready - life.begin == 69
    assert phases(life) == [("launch", 20, 20), ("weights", 45, 45), ("memory-pool", 4, 4)]
    assert [phase.allowed_s for phase in life.phases][1] == 100


def test_a_silence_beyond_the_deadline_is_a_charge_and_a_log_that_goes_on_disproves_it() -> None:
    (life,) = relived(ARGS, WEIGHTS, POOL.format("03:20"), READY.format("03:22"))
    assert life.charge is not None
    assert life.charge.at - life.begin == pytest.approx(120)
    assert life.charge.reason.startswith("stalled in weights: no progress for 100 s")
    assert life.charge.went_on_s == pytest.approx(80)
    assert life.ready is not None


def test_a_log_that_ends_silent_is_judged_only_until_the_time_that_is_given() -> None:
    (life,) = relived(ARGS, WEIGHTS)
    assert life.charge is None
    assert life.deadline == pytest.approx(life.begin + 120)
    (life,) = relived(ARGS, WEIGHTS, until="2026-11-29 11:00:00")
    assert life.charge is not None
    assert life.charge.went_on_s is None
    assert phases(life)[-1] == ("weights", 3580, 3580)


def test_a_serving_server_is_left_alone_for_days() -> None:
    (life,) = relived(ARGS, WEIGHTS, READY.format("00:30"), until="2026-12-03 10:00:00")
    assert life.charge is None
    assert life.deadline is None


def test_last_words_are_a_charge_while_starting_and_while_serving() -> None:
    (life,) = relived(ARGS, WEIGHTS, SIGQUIT.format("00:25"), until="2026-11-29 10:01:00")
    assert life.charge is not None
    assert life.charge.reason.startswith("dead: SIGQUIT received")
    (life,) = relived(ARGS, READY.format("00:30"), SIGQUIT.format("20:00"), until="2026-11-29 10:21:00")
    assert life.charge is not None


def test_every_attempt_of_a_file_is_judged_for_itself() -> None:
    again = ARGS.replace("10:00:00", "10:30:00")
    first, second = relived(ARGS, WEIGHTS, again, WEIGHTS.replace("10:00:20", "10:30:20"), READY.format("30:40"))
    assert (first.charge, first.line) == (None, 1)  # nobody knows when it ended: the silence behind it proves nothing
    assert first.end - first.begin == 20
    assert (second.charge, second.line) == (None, 3)
    assert second.ready is not None
    assert second.ready - second.begin == 40


def test_a_log_without_times_has_no_attempts() -> None:
    assert relived("Load weight begin.", "The server is fired up and ready to roll!") == []


def test_lines_without_a_stamp_share_the_last_one() -> None:
    bar = "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.0s/it]"
    (life,) = relived(ARGS, WEIGHTS, bar, POOL.format("00:50"), READY.format("00:51"))
    assert phases(life)[1] == ("weights", 30, 30)
