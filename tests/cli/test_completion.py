"""The completion scripts are what the parser says, parse in their shells, and complete."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from supervisor.cli.completion import script
from supervisor.cli.verbs import VERBS
from supervisor.config import GroupConfig
from tests.api.fake import FakeControl
from tests.cli.conftest import Sglctl

FILES = Path(__file__).parents[2] / "etc" / "completion"
NAMES = {"bash": "sglctl.bash", "zsh": "_sglctl", "fish": "sglctl.fish"}


@pytest.mark.parametrize("shell", NAMES)
def test_the_files_are_what_the_parser_says(shell: str) -> None:
    assert (FILES / NAMES[shell]).read_text() == script(shell), f"write it with: sglctl completion {shell}"


@pytest.mark.parametrize("shell", NAMES)
def test_the_shell_understands_its_file(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    ran = subprocess.run([shell, "-n", str(FILES / NAMES[shell])], capture_output=True, text=True, timeout=30)
    assert (ran.returncode, ran.stderr) == (0, "")


async def test_the_verb_prints_the_script(sglctl: Sglctl) -> None:
    assert (await sglctl("completion", "fish")).out == script("fish")


@pytest.fixture
def bash(tmp_path: Path) -> str:
    """Where a stand-in for sglctl tells of two servers and a group."""
    tool = tmp_path / "sglctl"
    tool.write_text(
        "#!/bin/sh\n[ \"$*\" = '-s x completion names' ] || exit 4\necho all\necho kimi\necho draft\necho g:pair\n"
    )
    tool.chmod(0o755)
    return str(tool)


def completed(tool: str, *words: str) -> list[str]:
    line = " ".join(f"'{word}'" for word in (tool, *words))
    commands = f"source {FILES}/sglctl.bash; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _sglctl"
    ran = subprocess.run(
        ["bash", "-c", f'{commands}; printf "%s\\n" "${{COMPREPLY[@]}}"'], capture_output=True, text=True, timeout=30
    )
    assert ran.stderr == ""
    return ran.stdout.split()


def test_bash_completes_verbs(bash: str) -> None:
    assert completed(bash, "re") == [verb for verb in VERBS if verb.startswith("re")]


def test_bash_completes_names_asked_at_the_same_socket(bash: str) -> None:
    assert completed(bash, "-s", "x", "start", "") == [
        *("-h", "--help", "--force", "--wait", "--timeout", "all", "kimi", "draft", "g:pair")
    ]
    assert completed(bash, "-s", "x", "start", "dr") == ["draft"]
    assert completed(bash, "start", "dr") == [], "the daemon does not answer there"


def test_bash_completes_groups_whose_colon_breaks_words(bash: str) -> None:
    assert completed(bash, "-s", "x", "stop", "g") == ["g:pair"]
    assert completed(bash, "-s", "x", "stop", "g", ":") == ["pair"]
    assert completed(bash, "-s", "x", "stop", "g", ":", "pa") == ["pair"]


async def test_names_are_servers_and_groups(sglctl: Sglctl, control: FakeControl) -> None:
    control.configuration = replace(control.configuration, groups={"pair": GroupConfig("pair", ("kimi", "draft"))})
    assert (await sglctl("completion", "names")).out.split() == ["all", "kimi", "draft", "g:pair"]


def test_bash_completes_options(bash: str) -> None:
    assert completed(bash, "bundle", "--at") == ["--attempt"]


def test_bash_completes_what_an_option_may_be(bash: str) -> None:
    assert completed(bash, "-s", "x", "wait", "kimi", "--for", "") == ["healthy", "stopped"]
    assert completed(bash, "-s", "x", "wait", "kimi", "--for", "st") == ["stopped"]
    assert completed(bash, "-s", "x", "wait", "--for", "stopped", "k") == ["kimi"]
