"""What an operator sees on a terminal: drawn from the daemon's answers, never wider than the screen."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from supervisor.shell.terminal import FINE, PLAIN, Board, draw, finished, glyphs_for, steps
from supervisor.snapshot import FacetView
from tests.shell.made import rank, server, span, startup

EIGHT = tuple(f"TP{number}" for number in range(8))


def drawn(*servers, width: int = 79, glyphs=FINE, notes=None) -> list[str]:
    return [line.plain.rstrip() for line in draw(servers, width, glyphs, notes)]


def test_a_start_shows_phases_gone_through_the_present_one_and_the_patience_left() -> None:
    start = startup(
        rank("TP0", "weights", 4.0, done=5),
        spans=(span("TP0", "launch", 0.0, 3.0), span("TP0", "dist-init", 3.0, 4.0), span("TP0", "weights", 4.0, None)),
        last_progress=9.0,
    )
    text = "\n".join(drawn(server("kimi", start=start, last_progress=9.0, deadline=13.0)))
    assert "kimi  STARTING  attempt 1 · pid 4711 · port 30000" in text
    assert "launch 3.0 s  dist-init 1.0 s  ▸ weights" in text
    assert "50% in 6 s" in text
    assert "silent ━━────── 1.0 s of 4 s" in text


def test_the_launchers_spans_last_beside_the_ranks_and_do_not_count_then() -> None:
    launcher = (span("", "launch", 0.0, 1.0), span("", "tokenizer", 1.0, None))
    view = server("x", start=startup(rank("", "tokenizer"), spans=launcher))
    assert view.start is not None
    assert [step.phase for step in steps(view.start)] == ["launch", "tokenizer"]
    of_rank = (span("TP0", "launch", 0.0, 2.0), span("TP0", "weights", 2.0, None))
    view = server("x", start=startup(rank("TP0", "weights"), spans=launcher + of_rank))
    assert view.start is not None
    assert [(step.phase, step.ended) for step in steps(view.start)] == [("launch", True), ("weights", False)]


def test_a_phase_lasts_from_the_first_ranks_entry_to_the_last_ones_leaving() -> None:
    spans = (span("TP0", "weights", 2.0, 5.0), span("TP1", "weights", 3.0, 8.5))
    view = server("x", start=startup(rank("TP0", "weights"), spans=spans))
    assert view.start is not None
    (step,) = steps(view.start)
    assert step.seconds == pytest.approx(6.5)


def test_ranks_that_are_through_are_told_from_the_one_that_is_not() -> None:
    spans = tuple(span(name, "draft-graph", 4.0, None if name == "TP3" else 5.5) for name in EIGHT)
    start = startup(*(rank(name, "draft-graph") for name in EIGHT), spans=spans)
    view = server("kimi", start=start)
    assert view.start is not None
    assert set(finished(view.start)) == set(EIGHT) - {"TP3"}
    lines = drawn(view)
    (line,) = [line for line in lines if "TP3" in line]
    assert line.startswith("  TP3 draft-graph ········ 6.0 s")
    assert "TP7 draft-graph ━━━━━━━━ ✓ 1.5 s" in line, "eight ranks stand in two columns"


def test_of_many_ranks_those_that_lag_are_shown() -> None:
    names = tuple(f"TP{number}" for number in range(32))
    spans = tuple(span(name, "weights", 4.0, None if name == "TP31" else 5.5) for name in names)
    lines = drawn(server("big", start=startup(*(rank(name, "weights") for name in names), spans=spans)))
    assert any("TP31 weights" in line for line in lines)
    assert "  and 16 more ranks" in lines
    assert len(lines) <= 14


def test_a_server_that_runs_takes_two_lines() -> None:
    view = server(
        "llama", "running", "healthy 7.1 s after the start", verdict=FacetView("idle", 7.0), ready_since=7.0, restarts=2
    )
    blank, head, line, end = drawn(view, notes={"llama": "plain, TP2"})
    assert (blank, end) == ("", "")
    assert head == "llama  RUNNING  attempt 1 · pid 4711 · port 30000 · 2 restarts · plain, TP2"
    assert line == "  ✓ healthy, idle, up 3 s   healthy 7.1 s after the start"


def test_a_sick_server_says_what_it_suffers_from() -> None:
    view = server("llama", "running", verdict=FacetView("degraded", 7.0, "probe timed out"), ready_since=7.0)
    assert "  degraded: probe timed out" in drawn(view)


def test_a_server_between_attempts_tells_when_it_goes_on_and_why_it_ended() -> None:
    view = server("kimi", "backoff", "stalled in draft-graph", backoff_until=12.0)
    assert "  next start in 2 s: stalled in draft-graph" in drawn(view)
    assert "  fatal: exited with status 1" in drawn(server("kimi", "fatal", "exited with status 1"))


def test_what_comes_from_a_log_moves_no_cursor() -> None:
    text = "\n".join(drawn(server("kimi", "fatal", "\x1b[2J\u202egone\n")))
    assert "\x1b" not in text
    assert "?[2J?gone?" in text


def test_without_line_drawing_in_the_encoding_it_is_ascii() -> None:
    assert glyphs_for("utf-8") is FINE
    assert glyphs_for("ascii") is PLAIN
    assert glyphs_for("no-such-encoding") is PLAIN
    start = startup(rank("TP0", "weights", done=5), rank("TP1", "weights"), spans=(span("TP0", "launch", 0.0, 4.0),))
    text = "\n".join(drawn(server("x", start=start), server("y", "running"), width=30, glyphs=PLAIN))
    assert text.isascii()
    assert "####" in text


@given(
    st.integers(20, 200),
    st.integers(1, 20),
    st.sampled_from(["starting", "running", "backoff", "fatal", "stopping"]),
    st.text(max_size=200),
)
@settings(max_examples=60, deadline=None)
def test_no_line_is_wider_than_the_screen(width: int, ranks: int, lifecycle: str, reason: str) -> None:
    names = tuple(f"DP1 TP{number}" for number in range(ranks))
    start = startup(
        *(rank(name, "draft-extend-graph", done=3) for name in names),
        spans=tuple(span(name, phase, 1.0, 2.0) for name in names for phase in ("launch", "dist-init", "weights")),
    )
    view = server("a-server-with-a-long-name", lifecycle, reason, start=start, deadline=99.0, last_progress=5.0)
    assert all(line.cell_len <= width for line in draw([view], width))


# --- the board -------------------------------------------------------------------------------------------------------


def board(width: int = 80, height: int = 24) -> tuple[Board, io.StringIO]:
    out = io.StringIO()
    return Board(Console(file=out, force_terminal=True, width=width, height=height, color_system=None)), out


def test_a_frame_is_painted_over_the_last_one_in_one_write_without_erasing_it_first() -> None:
    it, out = board()
    with it:
        it.show([server("kimi", "running")])
        out.truncate(0)
        out.seek(0)
        it.show([server("kimi", "fatal", "gone")])
        painted = out.getvalue()
    assert painted.startswith("\x1b[?2026h\r\x1b[4A"), "up by the lines of the last frame"
    assert "\x1b[2K" not in painted
    assert painted.endswith("\x1b[J\x1b[?2026l"), "what a longer frame left below goes at the end"


def test_the_same_frame_is_not_painted_twice() -> None:
    it, out = board()
    it.show([server("kimi", "running")])
    before = out.getvalue()
    it.show([server("kimi", "running")])
    assert out.getvalue() == before


def test_lines_that_stay_are_above_the_frame() -> None:
    it, out = board()
    it.show([server("kimi", "running")])
    it.say(Text("kimi is well"))
    last = out.getvalue().rpartition("\x1b[?2026h")[2]
    assert last.index("kimi is well") < last.index("kimi  RUNNING")


def test_a_frame_leaves_room_on_a_small_screen() -> None:
    it, out = board(height=6)
    it.show([server(name, "running") for name in "abcdef"])
    assert out.getvalue().count("\n") == 4


def test_the_cursor_is_hidden_while_it_paints_and_comes_back() -> None:
    it, out = board()
    with pytest.raises(RuntimeError), it:
        raise RuntimeError
    assert out.getvalue() == "\x1b[?25l\x1b[?25h"


def test_a_cleared_frame_leaves_nothing_but_what_was_said() -> None:
    it, out = board()
    it.show([server("kimi", "running")])
    it.clear()
    assert out.getvalue().endswith("\x1b[?2026h\r\x1b[4A\x1b[J\x1b[?2026l")
