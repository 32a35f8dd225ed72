"""Collisions, names, paths, users and directories are found before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.profile import load_profile, profile_names

Problems = Callable[..., tuple[str, ...]]


def daemon(tmp_path: Path, **keys: str) -> str:
    chosen = {"state_dir": f'"{tmp_path}/state"', "log_dir": f'"{tmp_path}/log"'} | keys
    return "[daemon]\n" + "".join(f"{key} = {value}\n" for key, value in chosen.items())


def test_two_servers_cannot_have_one_port(problems: Problems) -> None:
    text = '[server.a]\ncommand = ["e"]\nport = 30000\n[server.b]\ncommand = ["e", "--port", "30000"]'
    assert problems(text) == ("server.b.port: 30000 is already taken by server a",)


def test_two_servers_cannot_have_one_device(problems: Problems) -> None:
    text = '[server.a]\ncommand = ["e"]\ngpus = [0, 1]\n[server.b]\ncommand = ["e"]\ngpus = [1, 2]'
    assert problems(text) == ("server.b.gpus: device 1 is already taken by server a",)


def test_a_collision_across_files_blames_the_later_one(problems: Problems, tmp_path: Path) -> None:
    (line,) = problems('[server.a]\ncommand = ["e"]\ngpus = [0]', x='[server.b]\ncommand = ["e"]\ngpus = [0]')
    assert line == f"cannot use {tmp_path}/conf.d/x.toml: server.b.gpus: device 0 is already taken by server a"


def test_servers_without_leases_share_what_they_like(loaded: Callable[..., object]) -> None:
    assert loaded('[server.a]\ncommand = ["e"]\ngpus = []\n[server.b]\ncommand = ["e"]\ngpus = []')


def test_a_device_is_named_once(problems: Problems) -> None:
    assert problems('[server.a]\ncommand = ["e"]\ngpus = [1, 1]') == ("server.a.gpus: names a device twice",)


@pytest.mark.parametrize("command", ["", "command = []"])
def test_a_missing_command_is_told(problems: Problems, command: str) -> None:
    assert problems(f"[server.a]\n{command}") == (
        'server.a.command: expected a list such as ["python", "-m", "module"], got none',
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('before_start = [""]', "before_start[0]: expected the program to run, got an empty text"),
        ('on_change = ["e", "\\u0000"]', "on_change: contains a NUL byte, which no argument can carry"),
        ('webhook = "hooks.example/SECRET"', 'webhook: expected an address such as "https://host/path"'),
        ('timeout = "0s"', "timeout: expected more than no time"),
        (
            'headers = {"X Y" = "z"}',
            'headers."X Y": expected a header\'s name and a value of printable ASCII characters',
        ),
    ],
)
def test_hooks_are_checked_for_all_servers_and_for_one(
    problems: Problems, tmp_path: Path, text: str, line: str
) -> None:
    server = '[server.a]\ncommand = ["e"]\n'
    assert problems(f"{server}hooks = {{{text}}}") == (f"server.a.hooks.{line}",)
    (told,) = problems(daemon(tmp_path) + f"hooks = {{{text}}}\n{server}")
    assert told.endswith(f"daemon.hooks.{line}")


def test_hooks_are_told_of_known_events_only(problems: Problems) -> None:
    (told,) = problems('[server.a]\ncommand = ["e"]\nhooks = {events = ["running", "exploded"]}')
    assert "server.a.hooks.events" in told
    assert "exploded" in told


def test_the_daemons_log_file_has_a_full_path(problems: Problems, tmp_path: Path) -> None:
    (told,) = problems(daemon(tmp_path, log_file='"daemon.log"') + '[server.a]\ncommand = ["e"]')
    assert "daemon.log_file: expected a path that begins with" in told


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('command = [""]', "server.a.command[0]: expected the program to run, got an empty text"),
        ('command = ["e", "\\u0000"]', "server.a.command[1]: contains a NUL byte, which no argument can carry"),
        (
            'command = ["e"]\nenvironment = {"1A" = "x"}',
            "server.a.environment.1A: expected the name of an environment variable",
        ),
        (
            'command = ["e"]\nenvironment = {A = "\\u0000"}',
            "server.a.environment.A: contains a NUL byte, which no variable can carry",
        ),
        ('command = ["e"]\nenv_file = "x.env"', 'server.a.env_file: expected a path that begins with "/", got "x.env"'),
        ('command = ["e"]\ndirectory = "~"', 'server.a.directory: expected a path that begins with "/", got "~"'),
        (
            'command = ["e"]\nreadiness = {path = "health"}',
            'server.a.readiness.path: expected a path that begins with "/", got "health"',
        ),
        ('command = ["e"]\nuser = "no-such-user"', 'server.a.user: this host has no user "no-such-user"'),
        ('command = ["e"]\ngroup = "no-such-group"', 'server.a.group: this host has no group "no-such-group"'),
        (
            'command = ["e"]\nstop = {signal = "NOPE"}',
            'server.a.stop.signal: expected a signal such as "TERM", got "NOPE"',
        ),
        (
            'command = ["e"]\nrestart = {backoff = "1h"}',
            "server.a.restart.backoff_max: is shorter than restart.backoff",
        ),
        (
            'command = ["e"]\ndeadlines = {weights = {stall = "2m", limit = "1m"}}',
            "server.a.deadlines.weights.limit: is shorter than stall",
        ),
    ],
)
def test_what_cannot_work_is_told_with_its_path(problems: Problems, text: str, line: str) -> None:
    assert problems(f"[server.a]\n{text}") == (line,)


@pytest.mark.parametrize("name", ["a/b", "g:a", "", "all", "-a", "a b", "ä", "a" * 65, "."])
def test_a_bad_name_is_refused(problems: Problems, name: str) -> None:
    (line,) = problems(f'[server."{name}"]\ncommand = ["e"]')
    assert "expected a name of 1-64 letters" in line


@pytest.mark.parametrize("name", ["a", "kimi-k2.5_fp8", "7b"])
def test_a_good_name_is_taken(loaded: Callable[..., object], name: str) -> None:
    assert loaded(f'[server."{name}"]\ncommand = ["e"]')


def test_a_socket_path_that_the_kernel_refuses_is_told(problems: Problems, tmp_path: Path) -> None:
    path = "/" + "x" * 107
    (line,) = problems(daemon(tmp_path, socket=f'"{path}"'))
    assert line == "daemon.socket: path is 108 bytes long, the kernel takes 107"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("socket", '"run/s"', 'expected a path that begins with "/"'),
        ("listen", '"9877"', 'expected "HOST:PORT" or ""'),
        ("listen", '"host:99999"', 'expected "HOST:PORT" or ""'),
        ("socket_group", '"no-such-group"', "this host has no group"),
        ("admins", '["no-such-user"]', "this host has no user"),
        ("operators", '["@no-such-group"]', "this host has no group"),
        ("socket_mode", "660", "expected an octal mode in quotes"),
    ],
)
def test_a_wrong_daemon_key_is_told(problems: Problems, tmp_path: Path, key: str, value: str, words: str) -> None:
    (line,) = problems(daemon(tmp_path, **{key: value}))
    assert line.startswith(f"daemon.{key}: {words}")


def test_a_log_directory_that_is_a_file_is_told(problems: Problems, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (line,) = problems(daemon(tmp_path, log_dir=f'"{tmp_path}/file/log"'))
    assert line == f'daemon.log_dir: cannot use "{tmp_path}/file/log": "{tmp_path}/file" is not a directory'


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user to be refused")
def test_a_log_directory_that_may_not_be_used_is_told_to_an_ordinary_user(tmp_path: Path) -> None:
    script = (
        "import os, sys; sys.path.insert(0, os.getcwd()); from supervisor.config import load, ConfigError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from supervisor.config.checks import check_daemon; from supervisor.config import DaemonConfig\n"
        f"print(check_daemon(DaemonConfig(log_dir='{tmp_path}/log', state_dir='/tmp')))"
    )
    tmp_path.chmod(0o700)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert f'cannot use "{tmp_path}/log": ' in ran.stdout, ran.stderr


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gpu-oom-kvpool", 'did you mean "gpu-oom-kv-pool"?'),
        ("healthy-", 'did you mean "healthy"?'),
        ("quantization", 'did you mean "quantization-mismatch"?'),
        ("zzz", "known are checkpoint-corrupt, cuda-kernel-fault"),
    ],
)
def test_a_cause_that_no_class_has_is_refused_with_the_nearest_one(problems: Problems, name: str, hint: str) -> None:
    (line,) = problems(f'[server.a]\ncommand = ["e"]\n[server.a.restart]\ncauses = {{ {name} = "retry" }}')
    assert line.startswith(f"server.a.restart.causes.{name}: there is no such cause, {hint}")


def test_one_word_of_several_causes_names_them_all(problems: Problems) -> None:
    (line,) = problems('[server.a]\ncommand = ["e"]\n[server.a.restart]\ncauses = { oom = "retry" }')
    assert '"gpu-oom-kv-pool" or "gpu-oom-runtime" or' in line
    assert '"host-oom-killed"?' in line


def test_every_class_of_the_engines_is_a_cause(loaded: Callable[..., object]) -> None:
    for engine in profile_names():
        causes = ", ".join(f'{cause.name} = "fatal"' for cause in load_profile(engine).causes)
        text = f'[server.a]\ncommand = ["e"]\nengine = "{engine}"\n[server.a.restart]\ncauses = {{ {causes} }}'
        assert loaded(text)


def server(name: str, port: int, keys: str) -> str:
    return f'[server.{name}]\ncommand = ["e"]\nport = {port}\n{keys}\n'


def test_two_servers_collide_once_on_however_many_devices(problems: Problems) -> None:
    text = server("a", 1, "gpus = [0, 1, 2, 3]") + server("b", 2, "gpus = [3]") + server("c", 3, "gpus = [2, 1, 3, 4]")
    assert problems(text) == (
        "server.b.gpus: device 3 is already taken by server a",
        "server.c.gpus: devices 2, 1, 3 are already taken by server a",
    )


def test_collisions_are_told_beside_whatever_else_is_wrong(problems: Problems) -> None:
    """What is mended first must not bring up more of the same."""
    text = server("a", 1, "gpus = [0]") + server("b", 2, "gpus = [0]") + server("c", 3, "nice = 99\nafter = ['nobody']")
    found = problems(text)
    assert "server.b.gpus: device 0 is already taken by server a" in found
    assert any(line.startswith("server.c.nice") for line in found)
    assert not any("nobody" in line for line in found), "c cannot be read, so its names are not looked up"
