"""The page about the preflight lists every rule as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.preflight import Rule
from tests.core.lint.start import RULES

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "check.md").read_text()


@pytest.mark.parametrize("rule", RULES.rules, ids=lambda rule: str(rule.name))
def test_the_page_has_the_rule_with_severity_and_versions(rule: Rule) -> None:
    assert f"| `{rule.name}` | {rule.severity} | {rule.versions or 'all'} |" in PAGE


def test_the_page_has_no_rule_that_is_gone() -> None:
    listed = {line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `")}
    assert listed == {rule.name for rule in RULES.rules}
