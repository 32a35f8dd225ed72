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


def test_every_verb_and_exit_code_is_documented() -> None:
    page = (DOCS / "cli.md").read_text()
    verbs = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert set(re.findall(r"^\| `([a-z]+)[ `]", page, re.M)) == set(verbs.choices)
    assert set(map(int, re.findall(r"^\| (\d+) \|", page, re.M))) == {
        value for name, value in vars(codes).items() if name.isupper()
    }
