"""How the story is said: wrapped below itself, everything in plain lines, only what matters above a live view."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from supervisor.demo.narrator import LiveNarrator, PlainNarrator, lines_of
from supervisor.demo.story import Telling
from tests.shell.made import server

NEWS = [Telling(1.0, "kimi", "phase weights", minor=True), Telling(14.6, "kimi", "stalled in draft-graph", "bold red")]


def test_plain_lines_tell_everything(capsys: pytest.CaptureFixture[str]) -> None:
    PlainNarrator().tell([*NEWS, Telling(None, "kimi", "silent for 4.0 s")])
    assert capsys.readouterr().out.splitlines() == [
        " 1.0 s  kimi   phase weights",
        "14.6 s  kimi   stalled in draft-graph",
        "               silent for 4.0 s",
    ]


def test_above_a_live_view_only_what_it_does_not_show_is_told() -> None:
    out = io.StringIO()
    voice = LiveNarrator(Console(file=out, force_terminal=True, width=80, height=24, color_system=None))
    voice.show([server("kimi")])
    voice.tell(NEWS)
    voice.close()
    assert "stalled in draft-graph" in out.getvalue()
    assert "phase weights" not in out.getvalue()
    assert out.getvalue().endswith("\x1b[?25h")


def test_long_words_go_on_below_the_first_line() -> None:
    lines = lines_of(Telling(14.6, "kimi", "word " * 30), 60)
    assert len(lines) > 2
    assert all(len(line) <= 60 for line in lines)
    assert all(line.startswith(" " * 15 + "word") for line in lines[1:])


def test_a_path_is_never_broken() -> None:
    path = "/tmp/" + "x" * 90
    assert any(line.strip() == path for line in lines_of(Telling(None, "kimi", f"evidence in {path}"), 60))
