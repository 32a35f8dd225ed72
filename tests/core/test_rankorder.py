"""Who is behind whom: by lines that he would have printed, and by no others."""

from __future__ import annotations

from supervisor.core.rankorder import RankOrder
from supervisor.core.ranks import Rank, Step
from supervisor.profile import LogRule

BEGIN, END = LogRule("load-begin", spoken_by="every"), LogRule("load-end", spoken_by="every")
POOL, CAPTURE = LogRule("pool", family="memory"), LogRule("capture", family="memory")


class Start:
    """Some ranks in their launch."""

    def __init__(self, *names: str) -> None:
        self.order = RankOrder("launch")
        self.ranks = {name: Rank(name, Step("launch", 0.0)) for name in names}

    def enters(self, rule: LogRule, phase: str, *names: str) -> None:
        for name in names:
            self.order.printed(rule, name)
            self.order.entered_by(rule, phase)
            self.order.enters(phase)
            self.ranks[name].enter(phase, 1.0, nested=False)

    def leaves(self, rule: LogRule, phase: str, *names: str) -> None:
        for name in names:
            self.order.printed(rule, name)
            assert self.ranks[name].leave(phase, 2.0, {}) == phase
            self.order.left_by(rule, phase)

    @property
    def slowest(self) -> str:
        return self.order.slowest(self.ranks.values()).name

    @property
    def lag(self) -> list[str]:
        return [rank.name for rank in self.order.laggards(self.ranks.values())]

    @property
    def text(self) -> str:
        return self.order.text(self.order.laggards(self.ranks.values()), self.ranks.values())


def test_at_the_launch_nobody_lags() -> None:
    start = Start("TP0", "TP1")
    assert (start.slowest, start.lag, start.text) == ("TP0", [], "")


def test_who_has_not_entered_what_every_rank_announces_lags() -> None:
    start = Start("TP0", "TP1", "TP2")
    start.enters(BEGIN, "weights", "TP0", "TP2")
    assert (start.slowest, start.lag) == ("TP1", ["TP1"])
    assert start.text == "TP1 still in launch; 2 ranks wait in weights"
    start.enters(POOL, "memory-pool", "TP2")
    assert start.text == "TP1 still in launch; 2 ranks wait in memory-pool"
    assert start.order.phases == ["launch", "weights", "memory-pool"]


def test_who_has_not_left_what_every_rank_is_heard_to_leave_lags_within_the_phase() -> None:
    start = Start("TP0", "TP1")
    start.enters(BEGIN, "weights", "TP0", "TP1")
    start.leaves(END, "weights", "TP1")
    assert (start.slowest, start.lag) == ("TP0", ["TP0"])
    assert start.text == "TP0 still in weights; 1 rank waits for it"
    start.leaves(END, "weights", "TP0")
    assert start.lag == []


def test_of_those_that_lag_the_last_one_is_the_slowest_and_the_first_by_rank_among_equals() -> None:
    start = Start("TP10", "TP2", "TP0", "TP1")
    start.enters(BEGIN, "weights", "TP10", "TP2", "TP0", "TP1")
    start.leaves(END, "weights", "TP1", "TP0")
    start.enters(LogRule("pools", spoken_by="every"), "memory-pool", "TP1")
    assert start.lag == ["TP0", "TP2", "TP10"]
    assert start.slowest == "TP2"


def test_a_rank_lags_at_lines_of_a_kind_that_it_has_printed_and_at_no_others() -> None:
    start = Start("TP0", "TP1")
    start.enters(POOL, "memory-pool", "TP0")
    assert start.lag == [], "nobody knows whether TP1 prints these in this version"
    start.enters(POOL, "memory-pool", "TP1")
    start.enters(CAPTURE, "target-graph", "TP0")
    assert start.lag == ["TP1"], "it has printed one of the family"
    assert start.slowest == "TP1"


def test_a_phase_that_is_entered_without_a_word_holds_nobody_up() -> None:
    start = Start("TP0", "TP1")
    start.order.enters("jit")
    start.ranks["TP0"].enter("jit", 1.0, nested=False)
    assert start.lag == []
    assert start.slowest == "TP0", "the one that is ahead"


def test_a_nested_phase_is_as_far_as_the_one_around_it() -> None:
    start = Start("TP0", "TP1")
    start.enters(BEGIN, "weights", "TP0", "TP1")
    start.order.enters("jit")
    start.ranks["TP0"].enter("jit", 1.5, nested=True)
    start.leaves(END, "weights", "TP1")
    assert start.lag == ["TP0"]


def test_no_more_than_four_are_named() -> None:
    names = [f"TP{number}" for number in range(7)]
    for behind, words in ((4, "TP0, TP1, TP2, TP3 still"), (5, "TP0, TP1, TP2, TP3 and 1 more still")):
        start = Start(*names)
        start.enters(BEGIN, "weights", *names[behind:])
        assert start.text.startswith(words)


def test_one_rank_alone_is_its_own_measure() -> None:
    start = Start("TP0")
    start.enters(BEGIN, "weights", "TP0")
    assert (start.slowest, start.lag) == ("TP0", [])
