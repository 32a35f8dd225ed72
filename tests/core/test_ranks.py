"""One rank's way through its phases: nested ones, ends that are told, bars and memory, and bounds."""

from __future__ import annotations

from supervisor.core.ranks import Rank, Step
from supervisor.events import LineMatched
from supervisor.snapshot import ProgressView


def rank() -> Rank:
    return Rank("TP0", Step("launch", 0.0))


def spans(one: Rank) -> list[tuple[str, float, float | None]]:
    return [(span.phase, span.begin, span.end) for span in one.spans()]


def heard(text: str, **fields: str) -> LineMatched:
    return LineMatched(1, 1, "rule", text=text, fields=fields)


def test_a_phase_ends_where_the_next_begins_and_announces_itself_once() -> None:
    one = rank()
    assert one.enter("weights", 5.0, nested=False)
    assert not one.enter("weights", 6.0, nested=False)
    assert one.enter("memory-pool", 9.0, nested=False)
    assert spans(one) == [("launch", 0.0, 5.0), ("weights", 5.0, 9.0), ("memory-pool", 9.0, None)]
    assert one.been_past("weights")
    assert not one.been_past("memory-pool")


def test_a_nested_phase_gives_its_outer_one_back() -> None:
    one = rank()
    one.enter("target-graph", 5.0, nested=False)
    one.enter("jit", 7.0, nested=True)
    assert one.step.phase == "jit"
    assert one.enter("target-graph", 9.0, nested=False)
    assert spans(one) == [("launch", 0.0, 5.0), ("target-graph", 5.0, None), ("jit", 7.0, 9.0)]
    assert (one.step.phase, one.outer) == ("target-graph", None)


def test_a_second_nested_phase_has_the_same_outer_one() -> None:
    one = rank()
    one.enter("target-graph", 5.0, nested=False)
    one.enter("jit", 7.0, nested=True)
    one.enter("tune", 8.0, nested=True)
    assert one.leave("tune", 9.0, {}) == "tune"
    assert one.step.phase == "target-graph"


def test_what_comes_after_both_ends_both() -> None:
    one = rank()
    one.enter("target-graph", 5.0, nested=False)
    one.enter("jit", 7.0, nested=True)
    one.enter("warmup", 9.0, nested=False)
    assert spans(one) == [("launch", 0.0, 5.0), ("target-graph", 5.0, 9.0), ("jit", 7.0, 9.0), ("warmup", 9.0, None)]
    assert one.outer is None


def test_the_end_of_the_outer_phase_ends_the_nested_one_too() -> None:
    one = rank()
    one.enter("target-graph", 5.0, nested=False)
    one.enter("jit", 7.0, nested=True)
    assert one.leave("target-graph", 9.0, {"used": "1.5"}) == "target-graph"
    assert spans(one) == [("launch", 0.0, 5.0), ("target-graph", 5.0, 9.0), ("jit", 7.0, 9.0)]
    assert [span.memory_gb for span in one.spans()] == [None, 1.5, None]
    assert (one.step.phase, one.outer) == ("target-graph", None), "what follows has not begun"


def test_an_end_is_told_once_and_only_of_where_the_rank_is() -> None:
    one = rank()
    one.enter("weights", 5.0, nested=False)
    assert one.leave("memory-pool", 6.0, {}) == ""
    assert one.leave("weights", 7.0, {}) == "weights"
    assert one.leave("weights", 8.0, {}) == ""
    assert spans(one)[-1] == ("weights", 5.0, 7.0)
    assert one.view("weights").last_progress == 7.0
    assert one.enter("weights", 9.0, nested=False), "it may come again"


def test_the_end_of_an_outer_phase_is_told_once_as_well() -> None:
    one = rank()
    one.enter("target-graph", 5.0, nested=False)
    one.leave("target-graph", 6.0, {})
    one.enter("jit", 7.0, nested=True)
    assert one.leave("target-graph", 9.0, {}) == ""
    assert one.step.phase == "jit"


def test_a_bar_moves_by_its_numbers_or_its_label() -> None:
    one = rank()
    bar = ProgressView(1, 4)
    assert one.count(bar, "shards", 1.0)
    assert not one.count(bar, "shards", 2.0)
    assert one.view("weights").last_progress == 1.0
    assert one.count(bar, "draft shards", 3.0)
    assert one.count(ProgressView(2, 4), "draft shards", 4.0)
    assert one.count(ProgressView(2, 8), "draft shards", 5.0)
    assert one.view("weights").last_progress == 5.0
    one.enter("memory-pool", 6.0, nested=False)
    assert one.view("memory-pool").progress is None, "a bar is its phase's"


def test_memory_is_taken_from_wherever_it_is_told_and_kept() -> None:
    one = rank()
    one.hear(heard("a", left="70.5"))
    one.hear(heard("b", used="8.0"))
    one.hear(heard("c"))
    view = one.view("weights")
    assert (view.memory_left_gb, view.memory_used_gb, view.last_line) == (70.5, 8.0, "c")


def test_what_a_log_repeats_does_not_grow_without_end() -> None:
    one = rank()
    one.hear(heard("x" * 1000))
    assert one.view("weights").last_line == "x" * 200
    for at in range(1000):
        one.enter(("weights", "memory-pool")[at % 2], float(at), nested=False)
    assert len(one.spans()) == 64
    assert one.view("").since == 999.0, "where it is now is known all the same"


def test_ranks_are_sorted_by_their_numbers() -> None:
    names = ["TP10", "TP2", "DP1 TP0", "DP0 TP11"]
    assert sorted(names, key=lambda name: Rank(name, Step("launch", 0.0)).sort_key) == [
        "DP0 TP11",
        "DP1 TP0",
        "TP2",
        "TP10",
    ]
