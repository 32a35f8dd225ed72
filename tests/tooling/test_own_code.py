"""A child of ours runs our code, not what lies in the directory where somebody has started us."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BY_MODULE = re.compile(r'sys\.executable,\s*(?:"-[^m"]*",\s*)*"-m"')
FILES = [path for path in sorted((ROOT / "supervisor").rglob("*.py")) if BY_MODULE.search(path.read_text())]


def test_there_are_such_children() -> None:
    assert {path.name for path in FILES} >= {"process.py", "ask.py", "keeper.py"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_started_without_the_present_directory(path: Path) -> None:
    assert all('"-P"' in found[0] for found in BY_MODULE.finditer(path.read_text()))
