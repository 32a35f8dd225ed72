"""What is printed from the code is what the code says, can be read by man, and leaves nothing out."""

from __future__ import annotations

import enum
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from supervisor.config.model import (
    DaemonConfig,
    DetectorsConfig,
    GroupConfig,
    HooksConfig,
    LogConfig,
    RestartConfig,
    RouterConfig,
    ServerConfig,
    ServingConfig,
    StopConfig,
)
from supervisor.units import parse_bytes, parse_duration

ROOT = Path(__file__).resolve().parents[2]
MAN = sorted((ROOT / "docs" / "man").glob("*.[15]"))


def test_every_generated_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.skipif(
    shutil.which("man") is None or shutil.which("groff") is None,
    reason="needs man and groff (Debian: man-db, groff-base)",
)
@pytest.mark.parametrize("page", MAN, ids=lambda page: page.name)
def test_man_takes_a_page_without_a_warning(page: Path) -> None:
    command = ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_there_is_a_page_for_each_command_and_the_file() -> None:
    assert [page.name for page in MAN] == ["sglang-supervisor.toml.5", "sglctl.1", "sglsup.1"]


def test_every_verb_and_option_is_in_its_page() -> None:
    from supervisor.cli.main import VERBS
    from supervisor.main import COMMANDS

    client, daemon = ((ROOT / "docs" / "man" / name).read_text() for name in ("sglctl.1", "sglsup.1"))
    assert [verb for verb in VERBS if f".SS sglctl {verb}\n" not in client] == []
    assert [command for command in COMMANDS if f".SS sglsup {command}\n" not in daemon] == []


SECTIONS = {
    "[daemon]": DaemonConfig,
    "[server.NAME]": ServerConfig,
    "stop": StopConfig,
    "restart": RestartConfig,
    "log": LogConfig,
    "serving": ServingConfig,
    "detectors": DetectorsConfig,
    "hooks": HooksConfig,
    "[router.NAME]": RouterConfig,
    "[group.NAME]": GroupConfig,
}


@pytest.mark.parametrize("section", SECTIONS)
def test_the_documented_default_is_the_one_in_force(section: str) -> None:
    """Defaults are values in backticks; words ("the profile's", "none") are another matter."""
    struct, rows = SECTIONS[section], documented(section)
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct) if not field.required}
    actual = {key: default(struct, fields[key].name) for key in rows if key in fields}

    assert rows, f"configuration.md has no table under {section}"
    assert {key: (rows[key], value) for key, value in actual.items() if not same(rows[key], value)} == {}


def documented(section: str) -> dict[str, str]:
    page = (ROOT / "docs" / "configuration.md").read_text()
    body = re.split(rf"^#+ {re.escape(section)}$", page, maxsplit=1, flags=re.MULTILINE)[-1]
    body = re.split(r"^#+ ", body, maxsplit=1, flags=re.MULTILINE)[0]
    return dict(re.findall(r"^\| `([a-z_]+)` \| `([^`]*)` \|", body, re.MULTILINE))


def default(struct: type[msgspec.Struct], name: str) -> object:
    required = {field.name: "x" for field in msgspec.structs.fields(struct) if field.required}
    return getattr(struct(**required), name)


def same(shown: str, actual: object) -> bool:
    """The value as TOML means the default: a duration or a size may be written in several ways."""
    value = tomllib.loads(f"value = {shown}")["value"]
    match actual:
        case None | msgspec.Struct() | dict():
            return True  # none, or tables with rows of their own
        case enum.Enum():
            return bool(value == actual.value)
        case tuple():
            return value == list(actual)
        case int() | float() if isinstance(value, str):
            return any(read(value) == actual for read in (parse_duration, parse_bytes, octal) if readable(read, value))
        case _:
            return bool(value == actual)


def octal(text: str) -> int:
    return int(text, 8)


def readable(read: Callable[[str], float], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("page", ["cli.md", "operating.md", "run.md", "reference.md", "lifecycle.md"])
def test_every_page_of_states_knows_that_a_repeated_failure_is_quarantined(page: str) -> None:
    told = [line for line in (ROOT / "docs" / page).read_text().splitlines() if "quarantined" in line and "|" in line]
    assert any("again" in line or "keeps coming" in line for line in told)
