"""A line is one record, or a bar with a record glued to it; what users have written stays in one piece."""

from __future__ import annotations

import pytest

from supervisor.core.log.rules import rule_index
from supervisor.core.log.segments import Segment, heading, segments
from supervisor.lines import Line
from supervisor.profile import load_profile

RULES = rule_index(load_profile("sglang"))
RECORD = "[2026-11-29 10:00:52 TP1] Capture cuda graph begin."
BAR = "  0%|          | 0/13 [00:00<?, ?it/s]"


def line(text: str) -> Line:
    return Line(7, text, len(text))


def cut(text: str) -> list[tuple[str, str]]:
    return [(one.rank, one.message) for one in segments(RULES, line(text))]


def test_a_record_is_one_segment() -> None:
    begun = Segment(7, "TP1", "2026-11-29 10:00:52", "Capture cuda graph begin.", True)
    assert segments(RULES, line(RECORD)) == [begun]
    assert heading(RULES, line(RECORD)) == begun


def test_a_bar_and_the_record_glued_to_it_are_two() -> None:
    assert cut(BAR + RECORD) == [("", BAR), ("TP1", "Capture cuda graph begin.")]


def test_records_of_two_ranks_in_one_line_are_two() -> None:
    other = RECORD.replace("TP1", "TP0")
    assert cut(RECORD + other) == [("TP1", "Capture cuda graph begin."), ("TP0", "Capture cuda graph begin.")]
    whole = heading(RULES, line(RECORD + other))
    assert whole is not None
    assert whole.message == f"Capture cuda graph begin.{other}"


@pytest.mark.parametrize("text", ["", BAR, "Traceback (most recent call last):"])
def test_a_line_without_a_prefix_is_raw(text: str) -> None:
    assert segments(RULES, line(text)) == [Segment(7, "", "", text, False)]
    assert heading(RULES, line(text)) is None


def test_a_line_of_prefixes_alone_is_cut_no_more_than_it_takes() -> None:
    assert len(segments(RULES, line(RECORD * 500))) == 64


def test_what_a_record_quotes_of_users_is_not_cut() -> None:
    """Whoever writes a prompt may quote a prefix, and would speak for a rank."""
    start = next(one for one in RULES.untrusted)
    quoted = f"[2026-11-29 10:00:52 TP0] {start} text={RECORD!r}"
    assert [rank for rank, _ in cut(quoted)] == ["TP0"]
