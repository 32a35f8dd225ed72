"""What to change after a failure, with the values that the log's own numbers give."""

from __future__ import annotations

import pytest

from supervisor.core.clues import Clue
from supervisor.core.remedy import Figures, gigabytes, remedy, with_outcome
from supervisor.events import LineMatched
from supervisor.profile import Cause, load_profile

PROFILE = load_profile("sglang")
SIGNATURES = {signature.name: signature for signature in PROFILE.signatures}


def told(rule: str, rank: str = "TP0", **fields: str) -> LineMatched:
    return LineMatched(1, 1, rule, rank, fields=fields)


def oom(text: str = "", stage: str = "weights", **fields: str) -> Clue:
    return Clue(SIGNATURES["cuda-oom"], LineMatched(1, 9, "cuda-oom", "TP0", fields=fields, text=text), stage)


def figures(*events: LineMatched) -> Figures:
    it = Figures(PROFILE)
    for event in events:
        it.observe(event)
    return it


# --- the numbers of the launch ---------------------------------------------------------------------------------------


def test_what_was_left_before_the_load_is_the_least_of_all_ranks_at_their_first_word() -> None:
    it = figures(
        told("weights-begin", "TP0", left="78.0"),
        told("weights-begin", "TP1", left="70.5"),
        told("weights-begin", "TP2", left="75.0"),
        told("weights-begin", "TP1", left="1.0"),  # the draft's load begins: what is left then says nothing of others
    )
    assert it.left_before_gb == 70.5


def test_a_first_word_without_a_figure_leaves_it_to_the_other_ranks() -> None:
    it = figures(told("weights-begin", "TP0"), told("weights-begin", "TP0", left="1.0"))
    assert it.left_before_gb is None
    it.observe(told("weights-begin", "TP1", left="70.5"))
    assert it.left_before_gb == 70.5


def test_lines_of_other_kinds_say_nothing_of_the_beginning() -> None:
    it = figures(told("weights-end", left="1.0"), told("no-such-rule", left="1.0", fraction="0.5"))
    assert (it.left_before_gb, it.fraction) == (None, None)


def test_the_fraction_is_taken_from_the_engines_own_arguments_alone() -> None:
    assert figures(told("server-args", fraction="0.88")).fraction == 0.88
    assert figures(told("server-args", fraction="0.88"), told("server-args")).fraction == 0.88
    assert figures(told("weights-begin", fraction="0.5")).fraction is None


# --- whose memory it was ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "cause"), [("60.0", "gpu-memory-occupied"), ("78.0", "gpu-oom-weights")])
def test_memory_that_was_gone_before_the_load_is_somebody_elses(left: str, cause: str) -> None:
    it = figures(told("weights-begin", left=left))
    assert it.resolve(oom(total="79.00 GiB")) == cause
    assert it.resolve(oom()) == "gpu-oom-weights", "without the whole nobody can compare"


def test_memory_that_runs_out_while_serving_is_the_servers_own() -> None:
    it = figures(told("weights-begin", left="60.0"))
    assert it.resolve(oom(stage="serving", total="79.00 GiB")) == "gpu-oom-runtime"


@pytest.mark.parametrize(
    ("holders", "own", "cause"),
    [
        (("40.00 GiB",), "30.00 GiB", "gpu-memory-occupied"),
        (("8.00 GiB", "10.00 GiB"), "30.00 GiB", "gpu-memory-occupied"),
        (("10.00 GiB",), "30.00 GiB", "gpu-oom-weights"),  # too little to be the reason
        (("40.00 GiB",), "45.00 GiB", "gpu-oom-weights"),  # its own list has it among the holders
        (("40.00 GiB",), "", "gpu-oom-weights"),
        ((), "30.00 GiB", "gpu-oom-weights"),
    ],
)
def test_other_processes_that_hold_a_good_part_are_the_reason(holders: tuple[str, ...], own: str, cause: str) -> None:
    text = " ".join(f"Process {pid} has {held} memory in use." for pid, held in enumerate(holders))
    text += f" Including non-PyTorch memory, this process has {own} memory in use." if own else ""
    assert figures().resolve(oom(text, total="79.00 GiB")) == cause


# --- the words -------------------------------------------------------------------------------------------------------


def test_the_remedy_with_values_is_told_when_all_of_them_are_known() -> None:
    it = figures(told("server-args", fraction="0.88"))
    clue = oom(stage="serving", tried="2.00 GiB", free="1.20 GiB", total="79.00 GiB")
    text = remedy(PROFILE, "gpu-oom-runtime", clue, it)
    assert text.startswith("An activation peak did not fit (2.00 GiB wanted, 1.20 GiB left of 79.00 GiB)")
    assert "--mem-fraction-static to 0.84" in text


def test_without_a_value_the_general_one_is_told() -> None:
    general = PROFILE.cause("gpu-oom-runtime")
    assert general is not None
    assert remedy(PROFILE, "gpu-oom-runtime", oom(stage="serving"), figures()) == general.remedy


def test_the_signatures_own_remedy_goes_before_its_causes_and_not_with_another_cause() -> None:
    it = figures(told("server-args", fraction="0.88"), told("weights-begin", left="60.0"))
    match = LineMatched(1, 9, "oom-in-pool", fields={"tried": "2.00 GiB", "free": "1.20 GiB", "total": "79.00 GiB"})
    clue = Clue(SIGNATURES["oom-in-pool"], match, "memory-pool")
    assert remedy(PROFILE, "gpu-oom-kv-pool", clue, it).startswith("The KV pool was made larger than what is free")
    assert remedy(PROFILE, "gpu-memory-occupied", clue, it).startswith(
        "Before this server loaded anything 60.0 GB of 79"
    )


HOPEFUL = [cause for cause in PROFILE.causes if cause.again]


@pytest.mark.parametrize("known", HOPEFUL, ids=lambda cause: cause.name)
def test_what_a_restart_does_is_told_unless_this_answer_says_that_it_does_nothing(known: Cause) -> None:
    assert with_outcome("Change it.", known, "yes") == f"Change it. {known.again}"
    hopeless = with_outcome("Change it.", known, "no")
    assert hopeless == "Change it. It came before anything was served, so it comes back with every start."


def test_no_remedy_promises_by_itself_what_a_restart_does() -> None:
    assert HOPEFUL
    texts = [one.remedy + one.remedy_computed for one in PROFILE.causes]
    texts += [one.remedy + one.remedy_computed for one in PROFILE.signatures]
    assert not [text for text in texts if "restart helps" in text]
    assert with_outcome("Change it.", PROFILE.cause("port-in-use"), "no") == "Change it."
    assert with_outcome("Change it.", None, "no") == "Change it."


def test_a_cause_that_no_profile_knows_has_the_signatures_remedy_or_none() -> None:
    assert remedy(PROFILE, "no-such-cause", oom(), figures()) == ""


@pytest.mark.parametrize(
    ("text", "expected"), [("3.10 GiB", 3.1), ("448.00 MiB", 0.448), ("1 TB", 1000.0), ("much", None), ("", None)]
)
def test_sizes_are_read_as_logs_write_them(text: str, expected: float | None) -> None:
    assert gigabytes(text) == pytest.approx(expected)
