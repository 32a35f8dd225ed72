"""The picture of a start: who is where, who is late, when it ends."""

from __future__ import annotations

import re

import msgspec

from supervisor.api.control import Clock
from supervisor.snapshot import DeadlineView, ServerSnapshot, SpanView
from supervisor.web.lanes import LANES, lanes
from supervisor.web.stages import colour_of, stages
from tests.api.fake import snapshot
from tests.metrics import fleet
from tests.web.test_markup import Reader

CLOCK = Clock(fleet.NOW, 1764420000.0)


def drawn(shown: ServerSnapshot) -> str:
    made = lanes(shown, CLOCK)
    assert made is not None
    return made


def kinds(html: str, word: str) -> list[dict[str, str | None]]:
    return [attributes for _, attributes in Reader(html).tags if word in (attributes.get("class") or "").split()]


def labels(html: str) -> list[str]:
    return re.findall(r'<span class="rank">([^<]*)</span>', html)


def test_every_rank_has_a_lane_and_the_late_one_stands_out() -> None:
    html = drawn(fleet.starting())

    assert labels(html) == ["", "usual", *(f"TP{number}" for number in range(8))]
    assert len(kinds(html, "slow")) == 1
    assert '<div class="lane slow"><span class="rank">TP5</span>' in html


def test_every_late_rank_stands_out() -> None:
    made = fleet.starting()
    assert made.start is not None
    late = msgspec.structs.replace(made.start, lagging=tuple(f"TP{number}" for number in range(7)))

    assert len(kinds(drawn(msgspec.structs.replace(made, start=late)), "slow")) == 7


def test_what_the_launcher_does_beside_the_ranks_does_not_peep_out_between_their_bars() -> None:
    made = fleet.starting(ranks=1, slow="")
    assert made.start is not None
    begun = made.started or 0.0
    spans = (
        SpanView("", "launch", begun, begun + 30),
        SpanView("", "tokenizer", begun + 30),
        SpanView("TP0", "dist-init", begun + 20, begun + 40),
        SpanView("TP0", "weights", begun + 60),
    )
    html = drawn(msgspec.structs.replace(made, start=msgspec.structs.replace(made.start, timeline=spans)))

    assert "<title>launch: 20 s</title>" in html
    assert "<title>dist-init: 20 s</title>" in html
    assert "tokenizer" not in html


def test_the_usual_start_lies_under_each_lane() -> None:
    html = drawn(fleet.starting())

    assert len(kinds(html, "ghost")) == 8 * len(fleet.PHASES)
    assert len(kinds(html, "pale")) == len(fleet.PHASES)


def test_a_first_start_has_no_ghosts() -> None:
    unlearned = tuple(DeadlineView(phase, 60.0, None, 900.0, "profile") for phase in fleet.PHASES)
    html = drawn(msgspec.structs.replace(fleet.starting(), deadlines=unlearned))

    assert "usual" not in labels(html)
    assert kinds(html, "ghost") == []


def test_now_the_deadline_and_the_end_are_drawn_through_all_lanes() -> None:
    html = drawn(fleet.starting())
    now, ready, deadline = (
        {float((line["x1"] or "").rstrip("%")) for line in kinds(html, f"{name}-line")}
        for name in ("now", "ready", "deadline")
    )

    assert len(now) == len(ready) == len(deadline) == 1
    assert now.pop() < ready.pop() < deadline.pop()
    assert len(kinds(html, "now-line")) == 9


def test_a_deadline_far_away_does_not_squeeze_the_bars() -> None:
    html = drawn(msgspec.structs.replace(fleet.starting(), deadline=fleet.NOW + 86400))
    widths = [
        float((bar["width"] or "").rstrip("%"))
        for name, bar in Reader(html).tags
        if name == "svg" and "%" in (bar.get("width") or "")
    ]

    assert max(widths) > 20
    assert {line["x1"] for line in kinds(html, "deadline-line")} == {"100.00%"}


def test_everything_stays_inside_the_picture() -> None:
    for shown in (fleet.starting(), fleet.running(), fleet.starting(ranks=64)):
        for _, attributes in Reader(drawn(shown)).tags:
            if "%" in (attributes.get("x") or "") and "%" in (attributes.get("width") or ""):
                begin, width = (float((attributes[name] or "").rstrip("%")) for name in ("x", "width"))
                assert 0 <= begin <= 100
                assert width > 0
                assert begin + width <= 100.2


def test_a_start_that_is_over_has_neither_now_nor_deadline() -> None:
    html = drawn(fleet.running())

    assert kinds(html, "now-line") == kinds(html, "deadline-line") == []
    assert kinds(html, "open") == []


def test_who_never_started_has_no_picture() -> None:
    assert lanes(snapshot("spare"), CLOCK) is None


def test_many_ranks_are_cut_down_but_never_the_slow_one() -> None:
    html = drawn(fleet.starting(ranks=64, slow="TP60"))

    assert len(labels(html)) == LANES + 2
    assert "TP60" in labels(html)
    assert "and 48 more ranks" in html


def test_who_cannot_see_gets_a_table() -> None:
    html = drawn(fleet.starting())

    assert "Ranks of kimi-k2. TP5 still in weights; 7 ranks wait in verify-graph" in html
    assert '<th scope="row">TP5</th><td>weights</td><td>5 m 8 s</td><td>46 of 62 shards</td>' in html


def test_phases_of_one_stage_share_a_colour() -> None:
    assert colour_of("sglang", "verify-graph") == colour_of("sglang", "draft-graph")
    assert colour_of("sglang", "weights") != colour_of("sglang", "verify-graph")
    assert colour_of("no-such-engine", "weights") == 7
    assert stages("no-such-engine") == ()
    assert stages("sglang")[0] == "launch"
