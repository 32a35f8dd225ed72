"""The prices that the decisions name are printed by the command that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import prices

DECISIONS = Path(__file__).resolve().parents[2] / "docs/decisions"
FIRST = sorted(page for page in DECISIONS.glob("00*.md") if page.name[:4] in ("0001", "0002", "0003", "0004", "0006"))


def test_a_price_has_two_figures_and_what_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert prices.main(["colorsys", "no_such_package"]) == 1
    shown = capsys.readouterr()
    assert re.fullmatch(r"colorsys +-?\d+ ms +-?\d+\.\d MiB\n", shown.out)
    assert shown.err == "cannot import no_such_package: ModuleNotFoundError: No module named 'no_such_package'\n"


@pytest.mark.parametrize("page", FIRST, ids=lambda page: page.name)
def test_a_decision_with_a_figure_names_the_command_that_prints_it(page: Path) -> None:
    text = page.read_text()
    if re.search(r"\d (ms|MiB)\b|\| \d", text):
        assert "python -m bench.prices" in text
