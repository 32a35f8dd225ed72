"""sglsup hands each command its arguments, imports no more than that, and refuses to share an environment."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from supervisor import main as sglsup

REPOSITORY = Path(__file__).resolve().parent.parent
VERSION = metadata.version("sglang-supervisor")


def ran(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*([path] if path else []), REPOSITORY)))}
    command = [sys.executable, "-m", "supervisor.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert sglsup.main(["version"]) == 0
    assert capsys.readouterr().out == f"{VERSION}\n"
    assert ran("--version").stdout == f"sglsup {VERSION}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        sglsup.main(["-h"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name}" in shown for name in sglsup.COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["--nonsense"], ["version", "x"]])
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    process = ran(*arguments)
    assert process.returncode == 2
    assert process.stderr.startswith("usage: sglsup")
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (["deamon"], 'there is no command "deamon", did you mean "daemon"? `sglsup -h` lists them'),
        (["x\x1b[2J"], 'there is no command "x?[2J"; `sglsup -h` lists them'),
        ([], "expected a command; `sglsup -h` lists them"),
    ],
)
def test_the_nearest_command_is_guessed(capsys: pytest.CaptureFixture[str], words: list[str], end: str) -> None:
    assert sglsup.main(words) == 2
    assert capsys.readouterr().err.splitlines()[1:] == [f"sglsup: error: {end}"]


def test_version_does_not_pay_for_the_daemon() -> None:
    script = (
        "import sys; from supervisor.main import main; main(['version'])\n"
        "print(sorted({'uvicorn', 'starlette', 'httpx', 'anyio', 'structlog', 'msgspec'} & set(sys.modules)))"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, cwd=REPOSITORY)
    assert process.stdout == f"{VERSION}\n[]\n", process.stderr


@pytest.mark.parametrize("command", sorted(set(sglsup.COMMANDS) - {"version"}))
def test_every_command_explains_itself(command: str) -> None:
    process = ran(command, "-h")
    assert process.returncode == 0, process.stderr
    assert "usage: sglsup" in process.stdout


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("[server.a]\ncomand = 1\n", 'server.a.comand: unknown key, did you mean "command"?'),
        (
            "[server.a]\ncommand = ['e']\nstop = {grace = 5}\n",
            'server.a.stop.grace: expected a duration such as "90s", got 5',
        ),
    ],
)
def test_a_bad_configuration_is_one_line_and_2(tmp_path: Path, content: str, line: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(content)
    process = ran("daemon", "-c", str(path))
    assert process.returncode == 2
    assert f"cannot use {path}: {line}" in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize("command", ["daemon -c {file}", "check {file}", "diagnose {log}"])
def test_a_hosts_own_broken_profile_is_one_line_and_2(tmp_path: Path, command: str) -> None:
    (tmp_path / "odd.toml").write_text("name = 3")
    log, file = tmp_path / "server.log", tmp_path / "supervisor.conf"
    log.write_text("nothing that anybody knows\n")
    file.write_text('[server.a]\ncommand = ["sleep", "9"]\nengine = "odd"\nport = 1\ngpus = []\n')
    words = command.format(file=file, log=log).split()
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.main", *words],
        env=os.environ | {"SGLSUP_PROFILES": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"cannot load the profile of engine 'odd': {tmp_path}/odd.toml: Expected `str`, got `int`" in done.stderr


def test_the_other_supervisor_in_the_environment_is_refused(tmp_path: Path) -> None:
    information = tmp_path / "supervisor-4.3.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: supervisor\nVersion: 4.3.0\n")
    process = ran("version", path=tmp_path)
    assert process.returncode == 1
    assert process.stderr == (
        "sglsup: cannot start: supervisor 4.3.0 is installed beside us and both packages have one name; "
        "install sglang-supervisor into a virtual environment of its own\n"
    )


def test_our_own_environment_is_fine() -> None:
    assert sglsup.found_rival() == ""


def test_files_of_the_other_supervisor_among_ours_are_refused(tmp_path: Path) -> None:
    package = tmp_path / "supervisor"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "0"\n')
    (package / "supervisord.py").write_text("")
    (package / "main.py").write_text((REPOSITORY / "supervisor" / "main.py").read_text())
    process = subprocess.run(
        [sys.executable, "-m", "supervisor.main", "version"],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert process.returncode == 1
    assert f"files of the PyPI project supervisor lie among ours in {package}" in process.stderr
