"""The page on the architecture names what there is: every module has a floor, every path exists, the invariants agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.core import test_server_properties

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGE = ROOT / "supervisor"
TOP = sorted(
    f"{path.name}/" if path.is_dir() else path.name
    for path in PACKAGE.iterdir()
    if path.name not in ("__init__.py", "__pycache__", "py.typed")
)
QUOTED = re.findall(r"`([^`\n]+)`", PAGE)
WORDS = sorted({word for quoted in QUOTED for word in quoted.split() if re.fullmatch(r"[\w/.]+(\.py|\.toml|/)", word)})


def floors() -> str:
    """The table, and what is said below it of whatever stands beside the floors."""
    return PAGE[PAGE.index("| floor |") : PAGE.index("## One server")]


@pytest.mark.parametrize("module", TOP)
def test_every_module_has_its_floor(module: str) -> None:
    named = {word for quoted in re.findall(r"`([^`\n]+)`", floors()) for word in quoted.split()}
    assert module in named or any(word.startswith(module) for word in named)


@pytest.mark.parametrize("word", [word for word in WORDS if "NAME" not in word])
def test_every_path_exists(word: str) -> None:
    """Within the package, the repository, or beside the path that the same words began with."""
    places = (PACKAGE, ROOT, PACKAGE / "core", PACKAGE / "shell" / "upgrade")
    outside = word.startswith(("state_dir/", "/etc/"))
    assert outside or any((place / word).exists() for place in places)


def test_the_invariants_are_those_that_the_histories_keep() -> None:
    listed = PAGE[PAGE.index("### Invariants") : PAGE.index("## Several servers")]
    told = " ".join((test_server_properties.__doc__ or "").split())
    invariants = [line.removeprefix("- ").rstrip(";.") for line in listed.splitlines() if line.startswith("- ")]
    assert [one for one in invariants if one not in told] == []
    assert told.count(";") == len(invariants) - 1
