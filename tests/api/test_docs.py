"""The pages about API and client name every operation, verb and exit code."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from supervisor.api.app import OPERATIONS
from supervisor.cli import codes
from supervisor.cli.main import parser

DOCS = Path(__file__).parents[2] / "docs"


def test_every_operation_is_documented() -> None:
    page = (DOCS / "api.md").read_text()
    documented = set(re.findall(r"`(GET|POST) (/[^?` ]*)", page))
    known = {(operation.method, operation.path.replace("{name}", "NAME")) for operation in OPERATIONS}
    assert documented - {("POST", "/RPC2")} == known


def test_the_documented_role_is_the_one_that_is_asked() -> None:
    rows = re.findall(r"^\| `(GET|POST) (/[^?` ]*).*?\| (read|operate|admin) \|", (DOCS / "api.md").read_text(), re.M)
    roles = {(method, path): role for method, path, role in rows}
    for operation in OPERATIONS:
        key = (operation.method, operation.path.replace("{name}", "NAME"))
        assert roles.get(key, "read") == operation.role.name.lower()


def test_every_verb_is_documented() -> None:
    page = (DOCS / "cli.md").read_text()
    verbs = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert set(re.findall(r"^\| `([a-z]+)[ `]", page, re.M)) == set(verbs.choices)


CODES = {value for name, value in vars(codes).items() if name.isupper() and isinstance(value, int)}


def cells(page: str) -> dict[int, list[str]]:
    """Rows of the table of exit codes: a number, then words."""
    section = page.partition("\n## Exit codes\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", section, re.M)
    return {int(code): [cell.strip() for cell in words.split("|")] for code, words in rows}


def test_every_exit_code_has_a_meaning() -> None:
    assert set(codes.SHORT) == set(codes.LONG) == CODES
    assert set(codes.OF_WAIT) == CODES - {codes.NOT_RUNNING}, "wait does not ask whether it runs"


def test_the_exit_codes_of_all_pages_are_those_of_the_program() -> None:
    assert cells((DOCS / "cli.md").read_text()) == {code: [meaning] for code, meaning in codes.LONG.items()}
    assert cells((DOCS.parent / "README.md").read_text()) == {
        code: [meaning, codes.OF_WAIT.get(code, "")] for code, meaning in codes.SHORT.items()
    }


def test_the_gravest_exit_code_is_the_documented_one() -> None:
    told = re.search(r"the code is the gravest: ([\d, ]+)\.", (DOCS / "cli.md").read_text())
    assert told
    order = [int(code) for code in told[1].split(", ")]
    assert [codes.worst(order[at:]) for at in range(len(order))] == order
    assert set(order) == CODES - {codes.INTERRUPTED}
