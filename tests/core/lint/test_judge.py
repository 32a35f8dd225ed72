"""How rules are applied: by version, gravest first, certain or in doubt; and that the rules' file is whole."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from supervisor.core.lint import lint, worst
from supervisor.core.lint.case import given
from supervisor.core.lint.table import OF_OPTIONS, TESTS
from supervisor.core.lint.versions import parse, within
from supervisor.preflight import Inspected, Looked, ProgramFacts, Severity, has_rules, load_rules
from supervisor.profile import CommandFacts, profile_names
from tests.core.lint.start import RULES, findings, folder, names, start

TESTED = Path(__file__).with_name("test_rules.py").read_text()


def test_there_are_rules_enough_and_each_is_named_once() -> None:
    known = [rule.name for rule in RULES.rules]
    assert len(known) >= 25
    assert len(set(known)) == len(known)


@pytest.mark.parametrize("rule", [rule.name for rule in RULES.rules])
def test_each_rule_has_a_test(rule: str) -> None:
    assert f'"{rule}"' in TESTED


@pytest.mark.parametrize("engine", profile_names())
def test_each_rule_names_a_test_of_ours_and_a_readable_range(engine: str) -> None:
    for rule in load_rules(engine).rules:
        assert rule.test in TESTS, rule.name
        assert within("0.5.9", rule.versions) in (True, False)
        assert all((rule.what, rule.why, rule.change, rule.source)), rule.name


def test_every_test_is_used_by_a_rule() -> None:
    assert TESTS.keys() == {rule.test for rule in RULES.rules}


def test_an_engine_without_rules_of_its_own_gets_the_general_ones() -> None:
    general = {"model-missing", "shards-broken", "port-held"}
    assert {rule.name for rule in load_rules("nobody").rules} >= general
    assert {rule.name for rule in load_rules("vllm").rules} >= general | {"heads-divide"}
    assert (has_rules("vllm"), has_rules("nobody")) == (True, False)


def test_a_plain_start_has_no_findings() -> None:
    assert findings(start("--tp 8 --port 30000")) == []


def test_the_gravest_come_first() -> None:
    found = findings(start("--tp 8 --nnodes 3 --log-level error --speculative-algorithm EAGLE3"))
    assert [one.severity for one in found] == sorted(
        (one.severity for one in found), key=["error", "warning", "notice"].index
    )
    assert worst(found) is Severity.ERROR
    assert worst([]) is None


def test_what_is_certain_in_one_version_is_a_doubt_without_one() -> None:
    (found,) = findings(start("--served-model-name a:b", version=""), "served-name-colon")
    assert found.severity is Severity.WARNING
    assert "the installed version is not known" in found.why


def test_what_is_certain_in_studied_versions_is_a_doubt_in_a_later_one() -> None:
    (found,) = findings(start("--served-model-name a:b", version="0.6.0"), "served-name-colon")
    assert found.severity is Severity.WARNING
    assert "not verified for 0.6.0" in found.why


@pytest.mark.parametrize("test", sorted(OF_OPTIONS))
def test_of_a_command_whose_options_are_not_known_no_option_is_judged(test: str) -> None:
    """Whatever else is known of it: neither its own words nor the defaults are those of the engine."""
    options = "--tp 4 --dp 3 --nnodes 3 --skip-server-warmup --log-level error --page-size x --no-such-option"
    seen = start(options, leased=tuple(range(8)), models=(folder(config_problem="broken", tokenizer=False),))
    unknown = msgspec.structs.replace(seen, facts=CommandFacts(30000, "127.0.0.1"))
    rules = msgspec.structs.replace(RULES, rules=tuple(rule for rule in RULES.rules if rule.test == test))
    assert lint(unknown, rules) == []


def test_what_of_any_command_can_be_known_is_judged_of_a_script_too() -> None:
    looked = Looked(program=ProgramFacts(problem="is not there"))
    seen = Inspected("kimi", facts=CommandFacts(30000, "127.0.0.1"), gpus=(0, 1), looked=looked)
    assert names(seen) == {"program-missing"}


def test_the_daemon_leaves_out_what_it_looks_at_itself() -> None:
    from supervisor.preflight import PortFacts

    held = start(ports=(PortFacts(30000, "requests", "held"),))
    assert lint(held, RULES, standing_only=True) == []
    assert names(held) == {"port-held"}


def test_findings_obey_no_control_characters() -> None:
    (found,) = findings(start("--served-model-name a:\x1b[31mb"), "served-name-colon")
    assert "\x1b" not in found.what


def test_options_are_read_as_argparse_does() -> None:
    words = [
        "--tp",
        "8",
        "--port=30000",
        "--tp=4",
        "--chunked-prefill-size",
        "-1",
        "--flag",
        "--tool_call",
        "x",
        "--",
        "--later",
    ]
    assert given(words) == {
        "--tp": "4",
        "--port": "30000",
        "--chunked-prefill-size": "-1",
        "--flag": "",
        "--tool-call": "x",
    }


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ("0.4.6", "0.4.6.post5"),
        ("0.4.6.post5", "0.4.10.post2"),
        ("0.5.0rc1", "0.5.0"),
        ("0.5.9.dev12+gabc", "0.5.9"),
        ("0.5.9", "0.5.10"),
        ("0.5.10", "0.5.10.post1"),
        ("0.5.9", "0.5.9.post0"),
        ("0.5.9.post0", "0.5.9.post1"),
        ("0.5.9a1", "0.5.9"),
        ("0.5.9.dev1", "0.5.9.post0"),
        ("0.5.9.post1", "0.5.9.1"),
    ],
)
def test_versions_are_ordered_as_packages_order_them(low: str, high: str) -> None:
    older, newer = parse(low), parse(high)
    assert older is not None
    assert newer is not None
    assert older < newer


@pytest.mark.parametrize("text", ["", "main", "0.0.0.dev0", "0.0.0"])
def test_what_is_no_version_is_unknown(text: str) -> None:
    assert parse(text) is None
    assert within(text, ">=0.5") is None
    assert within(text, "") is True


def test_a_range_has_both_ends() -> None:
    inside = [version for version in ("0.5.6", "0.5.7", "0.5.10.post1", "0.5.11") if within(version, ">=0.5.7,<0.5.11")]
    assert inside == ["0.5.7", "0.5.10.post1"]
    with pytest.raises(ValueError, match="cannot read the range"):
        within("0.5.9", "from 0.5 on")


def test_no_rule_leaves_a_template_unfilled() -> None:
    """Doubled brackets are a literal one; every single one names a value that the test yields (see test_rules)."""
    for rule in RULES.rules:
        for template in (rule.what, rule.why, rule.change):
            assert re.fullmatch(r"(?:[^{}]|\{\{|\}\}|\{\w+\})*", template), rule.name
