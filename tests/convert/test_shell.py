"""A shell around an engine is taken away where that changes nothing, and told where it might."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from supervisor.config.model import UNLIMITED
from supervisor.convert.shell import SERVICE_PATH, Opaque, Plain, unwrapped
from tests.convert.conftest import Convert


def plain(script: str, **environment: str) -> Plain:
    found = unwrapped(["bash", "-c", script], environment, None)
    assert isinstance(found, Plain), found
    return found


def reason(script: str, **environment: str) -> str:
    found = unwrapped(["bash", "-c", script], environment, None)
    assert isinstance(found, Opaque), found
    return found.reason


def test_a_virtual_environment_is_its_python_and_two_variables() -> None:
    found = plain("source /opt/v/bin/activate && exec python -m sglang.launch_server --port 1")

    assert found.command == ("/opt/v/bin/python", "-m", "sglang.launch_server", "--port", "1")
    assert found.environment == {"VIRTUAL_ENV": "/opt/v", "PATH": f"/opt/v/bin:{SERVICE_PATH}"}


def test_directory_variables_and_limits_are_gathered() -> None:
    found = plain(
        "set -euo pipefail\n# comment\nulimit -n 65536; ulimit -l unlimited\ncd /srv\ncd models\n"
        "export A='x y' B=2\nC=3\nexport C\nD=hidden\nE=5 exec program \"$A\" $B"
    )

    assert found.command == ("program", "x y", "2")
    assert (found.directory, found.nofile, found.memlock) == ("/srv/models", 65536, UNLIMITED)
    assert found.environment == {"A": "x y", "B": "2", "C": "3", "E": "5"}


def test_a_relative_activate_lies_in_the_directory() -> None:
    assert plain("cd /srv && . venv/bin/activate && python3.11 x.py").command == ("/srv/venv/bin/python3.11", "x.py")


def test_output_to_a_file_goes_to_the_log() -> None:
    found = plain("exec program -v >> /var/log/x.log 2>&1")

    assert found.command == ("program", "-v")
    assert found.remarks == ("its output went to /var/log/x.log; here it is in the server's own log",)


def test_a_variable_is_not_the_childs_unless_it_is_exported() -> None:
    assert plain("A=1; program $A", B="2").environment == {"B": "2"}
    assert plain("B=3; program", B="2").environment == {"B": "3"}


@pytest.mark.parametrize(
    "script",
    [
        "a | b", "a || b", "a &", "(a)", "a < f", "a; b", "a $(b)", "a `b`", "a $HOME", 'a "${X:-1}"', "a *.py", "a ~/x", "a {b,c}",
        "a $1", "a $?", "source /etc/profile; a", "conda activate x && a", "cd - ; a", "cd; a", "cd x; a", "eval a", "trap x TERM; a",
        "if a; then b; fi", "a 'b", 'a "b', "", " ; ", "export X; a", "ulimit -n many; a", "ulimit -a; a", "X=1", "exec", "exec -a n a",
        "cd /x > /dev/null; a", "for x in 1; do a; done", "a >", "wait", "! a", "a <<X\nb\nX",
    ],
)  # fmt: skip
def test_what_needs_a_shell_keeps_it(script: str) -> None:
    assert reason(script)


def test_a_value_that_would_become_two_words_keeps_the_shell() -> None:
    assert "$A without quotes" in reason("program $A", A="x y")
    assert plain('program "$A"', A="x y").command == ("program", "x y")


@pytest.mark.parametrize(
    "command", [["bash", "-lc", "a"], ["bash", "-ic", "a"], ["sh", "-c", "a", "zero"], ["bash", "--norc", "-c", "a"]]
)
def test_a_shell_that_reads_more_stays(command: list[str]) -> None:
    assert isinstance(unwrapped(command, {}, None), Opaque)


@pytest.mark.parametrize("command", [["python", "-c", "x"], ["bash", "script.sh"], ["/bin/sh"]])
def test_what_is_no_shells_script_is_left_alone(command: list[str]) -> None:
    assert unwrapped(command, {}, None) is None


@pytest.mark.parametrize(
    "script",
    [
        "exec probe a 'b c' \"d\\\"e\" f\\ g",
        "A='1 2' B=\"x\" C= probe $B x'y'",
        "export A=1; B=$A; export B; cd /tmp && probe \"$A$B\" $A",
        "cd /; cd tmp; set -e; true && : ; probe 2>/dev/null x",
        "probe a#b \\$A '$A' \"\\$A\" \"a\\b\" # comment",
        "export PATH=/nowhere:$PATH; exec probe 'it'\"'\"'s' \"\"",
        "source /opt/v/bin/activate; probe",
        "probe \\\n  --next \\\n  line",
        "probe --json '{\"a\": [1, 2]}' --flag=x=y",
    ],
)  # fmt: skip
def test_a_real_shell_would_have_started_the_same(script: str, tmp_path: Path) -> None:
    """`probe` tells its arguments, directory and environment; the shell and we must agree on all of them."""
    probe, activate = tmp_path / "probe", tmp_path / "v" / "bin" / "activate"
    probe.write_text(
        '#!/bin/sh\npwd\nenv | grep -E "^(A|B|C|VIRTUAL_ENV)=" | sort\nfor word; do printf "<%s>" "$word"; done\n'
    )
    probe.chmod(0o755)
    activate.parent.mkdir(parents=True)
    activate.write_text(f"export VIRTUAL_ENV={tmp_path}/v\nexport PATH=$VIRTUAL_ENV/bin:$PATH\n")
    script = script.replace("/opt/v", f"{tmp_path}/v")
    given = {"PATH": f"{tmp_path}:{os.defpath}", "B": "given"}
    found = unwrapped(["bash", "-c", script], given, "/usr")
    assert isinstance(found, Plain), found

    shell = subprocess.run(["bash", "-c", script], env=given, cwd="/usr", capture_output=True, timeout=30)
    ours = subprocess.run(
        [tmp_path / "probe", *found.command[1:]],
        env=found.environment,
        cwd=found.directory,
        capture_output=True,
        timeout=30,
    )

    assert shell.returncode == 0, shell.stderr
    assert (shell.stdout or shell.stderr) == ours.stdout


def test_the_server_starts_without_the_shell(converted: Convert) -> None:
    done = converted(
        '[supervisord]\n[program:a]\ncommand=/bin/bash -c "source /opt/v/bin/activate; exec python -m sglang.launch_server --port 5"\n'
    )

    assert (done.status, done.server.command[0], done.server.effective_port) == (0, "/opt/v/bin/python", 5)
    assert "# command: the shell around it is gone" in done.out


SCRIPT = "#!/bin/bash\nset -e\n# our model\nexport A=1\nexec python -m sglang.launch_server --port 5\n"


def in_one_line(page: str) -> str:
    """Without the breaks of long comments."""
    return re.sub(r"\n#\s+", " ", page)


@pytest.mark.parametrize("command", ["{file}", "bash {file}", "/bin/sh start.sh"])
def test_a_script_that_only_starts_the_engine_is_written_out(converted: Convert, tmp_path: Path, command: str) -> None:
    file = tmp_path / "start.sh"
    file.write_text(SCRIPT)
    done = converted(f"[supervisord]\n[program:a]\ndirectory={tmp_path}\ncommand={command.format(file=file)}\n")

    assert (done.status, done.server.command[0], done.server.environment) == (0, "python", {"A": "1"})
    assert f"command: what {file} does today is written out" in in_one_line(done.out)


@pytest.mark.parametrize(
    ("script", "arguments", "told"),
    [
        (SCRIPT.replace("exec", "nice -n 5 exec") + "echo $?\n", "", "stays a shell's"),
        (SCRIPT, " --more", "no profile recognises"),
        (SCRIPT.replace("bash", "python3"), "", "no profile recognises"),
        ("", "", "no profile recognises"),
    ],
)
def test_any_other_script_stays_and_is_told(
    converted: Convert, tmp_path: Path, script: str, arguments: str, told: str
) -> None:
    file = tmp_path / "start.sh"
    file.write_text(script)
    done = converted(f"[supervisord]\n[program:a]\ncommand={file}{arguments}\n")

    assert done.server.command[0] == str(file)
    assert done.says(told)


def test_a_shell_that_stays_is_told_with_its_price(converted: Convert) -> None:
    done = converted(
        '[supervisord]\n[program:a]\ncommand=bash -c "conda activate x && python -m sglang.launch_server --port 5"\n'
    )

    assert done.status == 1
    assert done.server.command[:2] == ("bash", "-c")
    assert done.says("a: command: it stays a shell's", "'conda'", "nothing drains", "exec")


BEHIND_ANY_FILE = 'command=/bin/bash -c "source /opt/env && exec python -m sglang.launch_server {port}"\n'
FIRST = "[supervisord]\n[program:a]\ncommand=python -m sglang.launch_server --model-path /m\n[program:b]\n"


@pytest.mark.parametrize("port", ["--port 30010", "--port=30010 --tp 2", "--port 30010; echo --port 30010"])
def test_a_shells_server_is_asked_on_the_port_that_its_script_names(converted: Convert, port: str) -> None:
    """The engine's own port, which is another server's here, is not what it listens on."""
    done = converted(FIRST + BEHIND_ANY_FILE.format(port=port))
    assert done.config.servers["b"].port == 30010
    assert "# port is what the script in its command names (--port 30010)" in done.out


@pytest.mark.parametrize(
    "port", ["", "--port $PORT", "--port 30010 || exec python serve.py --port 30011", "--port 99999"]
)
def test_of_no_port_or_several_none_is_taken(converted: Convert, port: str) -> None:
    done = converted(FIRST + BEHIND_ANY_FILE.format(port=port))
    assert list(done.config.servers) == ["a"]
    assert "already taken by server a" in in_one_line(done.out)
