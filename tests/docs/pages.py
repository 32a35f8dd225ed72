"""Reads the blocks of a page that a reader would type, and the comments before them that say how they are tried.

A comment stands on the line above a fence, or alone where it is an act of its own:

    <!-- not run: REASON -->      the block needs what a test has not; REASON begins with a word of REASONS
    <!-- exit: N -->              the last command of the block ends with N
    <!-- until: TEXT -->          the last command never ends: it is stopped once it has printed TEXT
    <!-- in: repository -->       it is typed in a clone of this repository
    <!-- file: PATH -->           the block is what a file holds
    <!-- daemon: on, off, NAMES -->  the daemon is started with the files so far, ended, or started with these servers
    <!-- engine: NAME SCENARIO --> from now on the fake engine of the model NAME goes wrong like this
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TYPED = ("console", "bash", "sh")
REASONS = ("root", "gpu", "systemd", "engine", "network", "container", "repository", "elsewhere", "illustration")
_COMMENT = re.compile(r"<!-- (not run|exit|until|in|file|daemon|engine): ?(.*?) -->")
_FENCE = re.compile(r"```(\w*)\s*")
_PROGRAMS = r"(?:sglsup|sglctl|make|python3?|systemctl|supervisorctl|curl|journalctl|pip|pipx|\$)"
_INDENTED = re.compile(rf"    (?:\.venv/bin/)?{_PROGRAMS} ")


class Block(NamedTuple):
    """A fenced block (`kind` console, toml…) or an act of its own (`kind` daemon, engine). `line` is where it begins."""

    line: int
    kind: str
    text: str
    marks: dict[str, str]

    @property
    def typed(self) -> bool:
        return self.kind in TYPED

    @property
    def skipped(self) -> str:
        """Why it is not run; "" when it is."""
        return self.marks.get("not run", "")


class Command(NamedTuple):
    """What is typed after a prompt, and the lines that the page shows below it."""

    text: str
    shown: list[str]


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """Fenced blocks and acts, from top to bottom. Raises ValueError for a fence that is not closed."""
    marks: dict[str, str] = {}
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    for number, line in lines:
        if mark := _COMMENT.fullmatch(line.strip()):
            if mark[1] in ("daemon", "engine"):
                yield Block(number, mark[1], mark[2], {})
            else:
                marks[mark[1]] = mark[2]
        elif fence := _FENCE.fullmatch(line):
            yield Block(number, fence[1], "\n".join(_inside(lines, page, number)) + "\n", marks)
            marks = {}
        elif line.strip() and marks:
            raise ValueError(f"{page.name}:{number}: {marks} stands before no block")


def commands(block: Block) -> list[Command]:
    """Those of a console block stand behind a `$`; a script is one command."""
    if block.kind != "console":
        return [Command(block.text, [])]
    found: list[Command] = []
    going_on = False
    for line in block.text.splitlines():
        if going_on:
            found[-1] = found[-1]._replace(text=f"{found[-1].text}\n{line}")
        elif line.startswith("$ "):
            found.append(Command(line[2:], []))
        elif found:
            found[-1].shown.append(line)
        else:
            raise ValueError(f"a console block begins with a command behind '$ ', not with {line!r}")
        going_on = line.endswith("\\") and (going_on or line.startswith("$ "))
    return found


def indented_commands(page: Path) -> list[int]:
    """Lines with a command that stands in no fence, and would escape the tests."""
    fenced, found = False, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and _INDENTED.match(line):
            found.append(number)
    return found


def _inside(lines: Iterator[tuple[int, str]], page: Path, begin: int) -> Iterator[str]:
    for _, line in lines:
        if line == "```":
            return
        yield line
    raise ValueError(f"{page.name}:{begin}: the block is not closed")
