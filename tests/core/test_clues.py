"""The clues that a log gives: bounded, sharpened by others, taken back by signs of life, and weighed."""

from __future__ import annotations

import pytest

from supervisor.core.clues import HOST_OOM, NO_EVIDENCE, Clue, ClueBook
from supervisor.core.diagnose import CauseFinder
from supervisor.events import LineMatched
from supervisor.profile import load_profile

PROFILE = load_profile("sglang")
SIGNATURES = {signature.name: signature for signature in PROFILE.signatures}
LIFE = next(rule.name for rule in PROFILE.rules if rule.life)


def seen(name: str, at: str = "", rank: str = "TP0", **fields: str) -> LineMatched:
    return LineMatched(1, 1, name, rank, f"2026-03-01 10:{at}" if at else "", fields)


def book(*events: LineMatched, stage: str = "weights") -> ClueBook:
    it = ClueBook(PROFILE)
    for event in events:
        it.observe(event, stage)
    return it


def names(it: ClueBook) -> list[str]:
    return [clue.signature.name for clue in it.all()]


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_a_clue_that_another_line_takes_back_is_gone_and_no_other() -> None:
    assert names(book(seen("cuda-oom"), seen("jit-loading"), seen("jit-loaded"))) == ["cuda-oom"]


def test_what_a_log_repeats_is_counted_and_kept_a_few_times() -> None:
    it = book(*[seen("cuda-oom")] * 30)
    assert (len(it.all()), it.count("cuda-oom")) == (24, 30)
    assert it.count("watchdog") == 0


def test_a_signature_of_some_stages_counts_in_no_other() -> None:
    assert names(book(seen("argument-value"), stage="launch")) == ["argument-value"]
    assert names(book(seen("argument-value"), stage="serving")) == []


def test_the_engines_own_word_that_it_ends_makes_an_error_fatal() -> None:
    said = book(seen("cuda-oom", header="[10:00:00 TP0] Scheduler hit an exception: Traceback"))
    assert said.said_fatal
    assert [clue.authoritative for clue in said.all()] == [True]
    plain = book(seen("cuda-oom", header="[10:00:00 TP0] retrying: Traceback"))
    assert not plain.said_fatal
    assert [clue.authoritative for clue in plain.all()] == [False]


def test_what_the_engine_is_said_to_do_is_remembered_by_its_rules() -> None:
    it = book()
    assert (it.served, it.said_fatal, it.draining) == (False, False, False)
    assert book(seen("ready")).served
    assert book(seen("decode")).served
    assert book(seen("sigquit")).said_fatal
    assert book(seen("drain")).draining
    weights = book(seen("weights-begin"))
    assert (weights.served, weights.said_fatal, weights.draining) == (False, False, False)


def test_what_only_tells_of_an_end_without_words_counts_for_nothing_beside_them() -> None:
    quiet = next(name for name, one in SIGNATURES.items() if one.quiet_only)
    assert names(book(seen(quiet), seen("cuda-oom"))) == [quiet, "cuda-oom"]
    assert names(book(seen(quiet), seen("cuda-oom"), seen("sigquit"))) == ["cuda-oom"]


def test_a_victims_word_weighs_less_than_the_culprits() -> None:
    victim = next(name for name, one in SIGNATURES.items() if one.victim)
    (clue,) = book(seen(victim)).all()
    assert clue.weight == SIGNATURES[victim].weight - 30
    (clue,) = book(seen("cuda-oom")).all()
    assert clue.weight == SIGNATURES["cuda-oom"].weight


# --- repeated, and over a long time ----------------------------------------------------------------------------------


def test_a_probe_that_fails_again_and_again_is_no_misreading() -> None:
    assert names(book(*[seen("health-check-failed")] * 5)) == [
        *["health-check-failed"] * 3,
        *["health-checks-failing"] * 2,
    ]


@pytest.mark.parametrize(
    ("beat", "tic", "name"),
    [
        ("10:00:00", "10:01:00", "health-check-failed"),
        ("10:00:00", "10:02:00", "health-check-failed"),
        ("10:00:00", "10:02:01", "heartbeat-lost"),
        ("23:59:00", "00:03:00", "heartbeat-lost"),
        ("", "10:09:00", "health-check-failed"),
    ],
)
def test_a_heartbeat_that_is_long_gone_is_a_hang(beat: str, tic: str, name: str) -> None:
    assert names(book(seen("health-check-failed", beat=beat, tic=tic))) == [name]


# --- several ranks ---------------------------------------------------------------------------------------------------


def test_watchdogs_of_one_group_at_once_are_a_collective_that_hangs() -> None:
    it = book(seen("cuda-oom", "00:00"), seen("watchdog", "00:01"), seen("watchdog", "00:03", "TP1"))
    assert names(it) == ["cuda-oom", "watchdogs-together", "watchdogs-together"]
    later = seen("watchdog", "00:05", "TP2")
    it.observe(later, "serving")
    assert names(it)[-1] == "watchdogs-together", "the third joins them"


@pytest.mark.parametrize(
    ("at", "rank"), [("00:09", "TP1"), ("00:02", "TP0"), ("00:02", "DP1 TP0")], ids=["later", "itself", "another group"]
)
def test_watchdogs_that_have_nothing_to_do_with_each_other_are_not(at: str, rank: str) -> None:
    first = seen("watchdog", "00:01", "DP0 TP0" if rank.startswith("DP") else "TP0")
    assert names(book(first, seen("watchdog", at, rank))) == ["watchdog", "watchdog"]


# --- signs of life ---------------------------------------------------------------------------------------------------


def fatal() -> str:
    return next(name for name, one in SIGNATURES.items() if one.severity == "fatal" and not one.explains_hang)


@pytest.mark.parametrize(
    ("alive_at", "disproved"), [("00:10", False), ("00:14", False), ("00:16", True), ("05:00", True)]
)
def test_who_works_well_after_his_end_has_not_ended(alive_at: str, *, disproved: bool) -> None:
    (clue,) = book(seen(fatal(), "00:00"), seen(LIFE, alive_at)).all()
    assert clue.disproved is disproved
    assert clue.severity == ("error" if disproved else "fatal")


def test_without_times_some_signs_of_life_are_needed() -> None:
    it = book(seen(fatal()))
    for count in range(1, 6):
        it.observe(seen(LIFE), "serving")
        assert it.all()[0].disproved is (count >= 4)


def test_what_explains_a_hang_is_over_with_the_next_sign_of_life() -> None:
    assert names(book(seen("jit-loading"), seen("cuda-oom"), seen(LIFE))) == ["cuda-oom"]


def test_a_life_that_came_before_disproves_nothing() -> None:
    (clue,) = book(seen(LIFE, "05:00"), seen(fatal(), "06:00"), seen("cuda-oom", "06:00")).all()[:1]
    assert not clue.disproved


def test_the_engines_own_word_is_not_disproved() -> None:
    header = "[10:00:00 TP0] Scheduler hit an exception: Traceback"
    (clue,) = book(seen(fatal(), "00:00", header=header), seen(LIFE, "05:00")).all()
    assert not clue.disproved


# --- weighed ---------------------------------------------------------------------------------------------------------


def test_a_clue_is_believed_by_its_weight() -> None:
    finder = CauseFinder(PROFILE)
    finder.observe(seen("cuda-oom"), "weights")
    view = finder.conclude(1, frozenset(), alive=False, stage="weights")
    assert view.cause == "gpu-oom-weights"
    assert view.confidence == min(0.99, SIGNATURES["cuda-oom"].weight / 100) < 1


@pytest.mark.parametrize("code", [0, 1, 3])
def test_whom_the_kernel_kills_ends_with_no_status_of_his_own(code: int) -> None:
    signature = next(one for one in PROFILE.signatures if one.cause == HOST_OOM and one.weight >= 30)
    clue = Clue(signature, seen(signature.name), "weights")
    finder = CauseFinder(PROFILE)
    view = finder.conclude(code, frozenset(), alive=False, stage="weights", best=clue)
    assert view.cause == NO_EVIDENCE
    assert view.confidence < 0.3
    assert finder.conclude(-9, frozenset(), alive=False, stage="weights", best=clue).cause == HOST_OOM


def test_a_status_of_one_before_anything_was_done_says_nothing() -> None:
    assert CauseFinder(PROFILE).conclude(1, frozenset(), alive=False, stage="launch").cause == NO_EVIDENCE


def test_a_hang_that_is_only_guessed_from_its_stage_is_no_more_than_a_guess() -> None:
    view = CauseFinder(PROFILE).conclude(None, frozenset(), alive=True, stage="dist-init")
    assert (view.cause, view.restart) == ("nccl-init-hang", "maybe")
    assert view.confidence < 0.4
    assert CauseFinder(PROFILE).conclude(None, frozenset(), alive=True, stage="serving").restart == "yes"
