"""The files for Prometheus and Grafana: checked by promtool, every alert explained, every name one that we export."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from supervisor.core.gpus import quarantine
from supervisor.metrics.families import FAMILIES, Kind
from supervisor.runbook import runbooks

ROOT = Path(__file__).resolve().parents[2]
ETC = ROOT / "etc/prometheus"
RULES, RULE_TESTS = ETC / "rules/sglsup.yml", ETC / "rules/tests.yml"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "etc/grafana/sglang-supervisor.json").read_text())
ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text())

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_promtool
def test_the_rules_are_valid() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", RULES)


@needs_promtool
def test_the_rules_do_what_their_tests_say() -> None:
    promtool("test", "rules", RULE_TESTS)


@needs_promtool
def test_the_scrape_configuration_is_valid() -> None:
    promtool("check", "config", ETC / "scrape.yml")


@needs_promtool
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_rule_that_is_broken_fails_its_test(tmp_path: Path) -> None:
    """Each alert in turn fires never: its unit test must notice."""
    shutil.copy(RULE_TESTS, tmp_path / "tests.yml")
    for alert in ALERTS:
        (tmp_path / "sglsup.yml").write_text(silenced(RULES.read_text(), alert))
        done = subprocess.run(["promtool", "test", "rules", tmp_path / "tests.yml"], capture_output=True, timeout=50)
        assert done.returncode == 1, f"nothing tests {alert}"


def silenced(rules: str, alert: str) -> str:
    head, name, rest = rules.partition(f"- alert: {alert}\n")
    assert name
    return head + name + re.sub(r"expr: (\|\n(?: {10}.*\n)+|.*\n)", "expr: vector(0) > 1\n", rest, count=1)


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_is_explained(alert: str) -> None:
    assert f"\n## {alert}\n" in (ROOT / "docs/alerts.md").read_text()


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alerts_runbook_is_its_own_section_or_a_causes(alert: str) -> None:
    rule = re.search(rf"- alert: {alert}\n(.*?)(?=\n\n|\Z)", RULES.read_text(), re.S)
    assert rule
    targets = re.findall(r"docs/([a-z]+\.md)#([a-z-]+)", rule[1].partition("runbook:")[2])
    assert targets
    known = {("alerts.md", alert.lower())} | {("runbooks.md", cause) for cause in runbooks()}
    assert set(targets) <= known


def test_every_kind_of_quarantine_has_a_runbook() -> None:
    """A new kind must be put to the hardware, to the memory, or to those that the alert's own section explains."""
    hardware = re.search(r'match "\^\(([a-z|-]+)\)\$" \$labels.reason', RULES.read_text())
    assert hardware
    explained = {quarantine.FAILURES, quarantine.OPERATOR}
    assert {*hardware[1].split("|"), quarantine.UNATTRIBUTED} | explained == set(quarantine.KINDS)


def test_nothing_is_explained_that_is_no_alert() -> None:
    assert re.findall(r"^## (\w+)$", (ROOT / "docs/alerts.md").read_text(), re.M) == ALERTS


def exported() -> set[str]:
    ends = {Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}
    return {f"{family.sample}{end}" for family in FAMILIES for end in ends.get(family.kind, ("",))}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    return found + [annotation["expr"] for annotation in DASHBOARD["annotations"]["list"]]


@pytest.mark.parametrize(
    "text", [RULES.read_text(), *queries()], ids=["rules", *(f"query{n}" for n in range(len(queries())))]
)
def test_every_name_is_exported(text: str) -> None:
    assert set(re.findall(r"\bsglsup_\w+", text)) <= exported()


def test_the_dashboards_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_the_dashboard_names_no_data_source_of_ours() -> None:
    assert {panel["datasource"]["uid"] for panel in panels()} == {"${datasource}"}
