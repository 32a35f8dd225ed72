"""sglsup's completion scripts are what its parsers say, parse in their shells, and complete."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from supervisor.completion import SHELLS, parsers, script
from supervisor.main import COMMANDS, main, summaries
from supervisor.profile import profile_names
from supervisor.runbook import runbooks

FILES = Path(__file__).resolve().parents[1] / "etc" / "completion"
NAMES = {"bash": "sglsup.bash", "zsh": "_sglsup", "fish": "sglsup.fish"}
ENDED = ["-h", "--help"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_files_are_what_the_parsers_say(shell: str) -> None:
    assert (FILES / NAMES[shell]).read_text() == script(shell, summaries()), f"write it: sglsup completion {shell}"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_understands_its_file(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    ran = subprocess.run([shell, "-n", str(FILES / NAMES[shell])], capture_output=True, text=True, timeout=30)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_command_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    assert capsys.readouterr().out == script("fish", summaries())


def test_each_command_with_arguments_has_a_parser() -> None:
    assert set(COMMANDS) - set(parsers()) == {"version"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a stand-in for sglsup knows two causes, beside two files."""
    tool = tmp_path / "sglsup"
    tool.write_text('#!/bin/sh\n[ "$*" = runbook ] || exit 4\necho gpu-oom\necho config-error\n')
    tool.chmod(0o755)
    (tmp_path / "night.log").touch()
    (tmp_path / "state").mkdir()
    return tmp_path


def completed(folder: Path, *words: str) -> list[str]:
    line = " ".join(f"'{word}'" for word in ("./sglsup", *words))
    commands = f"source {FILES}/sglsup.bash; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _sglsup"
    ran = subprocess.run(
        ["bash", "-c", f'{commands}; printf "%s\\n" "${{COMPREPLY[@]}}"'],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=folder,
    )
    assert ran.stderr == ""
    return ran.stdout.split()


def test_bash_completes_commands(folder: Path) -> None:
    assert completed(folder, "r") == [name for name in COMMANDS if name.startswith("r")]


def test_bash_completes_options_and_files(folder: Path) -> None:
    assert completed(folder, "diagnose", "--e") == ["--exit-code", "--engine"]
    assert completed(folder, "diagnose", "n") == ["night.log"]
    assert completed(folder, "run", "--once", "--state-dir", "s") == ["sglsup", "state"]
    assert completed(folder, "run", "n") == [], "what runs stands behind --"


def test_bash_completes_what_an_option_takes(folder: Path) -> None:
    assert completed(folder, "check", "--engine", "") == list(profile_names())
    assert completed(folder, "run", "--port", "") == []


def test_bash_completes_causes_as_the_program_has_them(folder: Path) -> None:
    assert completed(folder, "runbook", "c") == ["config-error"]
    assert completed(folder, "runbook", "") == [*ENDED, "gpu-oom", "config-error"]


def test_the_program_lists_the_causes_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runbook"]) == 0
    assert capsys.readouterr().out.split() == list(runbooks())


def test_bash_completes_another_commands_line_behind_the_dashes(folder: Path) -> None:
    assert "env" in completed(folder, "run", "--once", "--", "en")
    assert completed(folder, "check", "--", "python3", "n") == ["night.log"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_options(folder: Path) -> None:
    asked = f"source {FILES}/sglsup.fish; complete -C 'sglsup replay --un'"
    environment = os.environ | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    ran = subprocess.run(
        ["fish", "--no-config", "-c", asked], capture_output=True, text=True, timeout=30, cwd=folder, env=environment
    )
    assert [line.split("\t")[0] for line in ran.stdout.splitlines()] == ["--until"]
