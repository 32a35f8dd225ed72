"""Goes through the rules of an engine and writes down what each test finds."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from supervisor.core.lint import table, versions
from supervisor.core.lint.case import Case, Values
from supervisor.lines import printable
from supervisor.preflight import Inspected, Rule, Rules, Severity

_ORDER = (Severity.ERROR, Severity.WARNING, Severity.NOTICE)
_TEXT_MAX = 600


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong or worth knowing. `versions` are those that the rule holds for, "" = all."""

    rule: str
    severity: Severity
    what: str
    why: str
    change: str
    source: str
    versions: str = ""
    server: str = ""


def lint(seen: Inspected, rules: Rules, *, standing_only: bool = False) -> list[Finding]:
    """The findings, gravest first. `standing_only` leaves out what the daemon looks at itself before each start."""
    case = Case(seen, rules)
    found = [finding for rule in rules.rules if rule.standing or not standing_only for finding in _apply(rule, case)]
    return sorted(found, key=lambda finding: _ORDER.index(finding.severity))


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The gravest severity among them."""
    present = {finding.severity for finding in findings}
    return next((severity for severity in _ORDER if severity in present), None)


def _apply(rule: Rule, case: Case) -> list[Finding]:
    if rule.test in table.OF_OPTIONS and not case.facts.recognised:
        return []
    holds = versions.within(case.seen.engine.version, rule.versions)
    if holds is False:
        return []
    doubt = _doubt(rule, case, holds)
    severity = Severity.WARNING if doubt and rule.severity is Severity.ERROR else rule.severity
    found = table.TESTS[rule.test](case, rule)
    return [_finding(rule, severity, doubt, values, case.seen.server) for values in found]


def _doubt(rule: Rule, case: Case, holds: bool | None) -> str:
    """Why a rule about certain versions is not certain here; only what is certain may block a start."""
    if case.has(case.options.options_file):
        return f"unless {case.flag(case.options.options_file)} says otherwise, which is not read"
    if not rule.versions:
        return ""
    if holds is None:
        return "the installed version is not known"
    if versions.within(case.seen.engine.version, case.rules.studied) is False:
        return f"not verified for {case.seen.engine.version}"
    return ""


def _finding(rule: Rule, severity: Severity, doubt: str, values: Values, server: str) -> Finding:
    why = f"{rule.why} ({doubt})" if doubt else rule.why
    what, why, change = (_text(template, values) for template in (rule.what, why, rule.change))
    return Finding(rule.name, severity, what, why, change, rule.source, rule.versions, server)


def _text(template: str, values: Values) -> str:
    """Paths and options are the operator's, but a terminal must not obey what is in them."""
    text = template.format_map(values)
    return printable(text)[:_TEXT_MAX]
