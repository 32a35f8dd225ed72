"""A unit that somebody wrote for an engine becomes a server that starts, stops and is limited the same way."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from supervisor.config import UNLIMITED
from supervisor.convert import main
from supervisor.convert.draft import ConversionError
from supervisor.convert.unitfile import Unit, words
from tests.convert.conftest import Convert, Losing, Refusing

ENGINE = "ExecStart=/opt/v/bin/python -m sglang.launch_server --model-path /models/a --port 30000"


def unit(settings: str) -> str:
    return f"[Unit]\nDescription=x\n[Service]\n{ENGINE}\n{settings}\n[Install]\nWantedBy=multi-user.target\n"


def test_a_unit_becomes_a_server(converted: Convert) -> None:
    done = converted(
        unit(
            f"User={getpass.getuser()}\nGroup=0\nWorkingDirectory=/srv\nUMask=0077\nNice=-5\nOOMScoreAdjust=-500\n"
            'Environment="A=x y" B=2\nEnvironment=CUDA_VISIBLE_DEVICES=4,5\nEnvironmentFile=/etc/default/sglang\n'
            "LimitNOFILE=65536:131072\nLimitMEMLOCK=infinity\nTimeoutStopSec=2min 30s\nKillSignal=SIGINT\n"
            "Restart=on-failure\nRestartSec=500ms\n"
        ),
        name="my model@1.service",
    )

    assert (done.status, done.told) == (0, [])
    server = done.server
    assert server.name == "1"
    assert server.command[:3] == ("/opt/v/bin/python", "-m", "sglang.launch_server")
    assert (server.umask, server.nice, server.oom_score_adj, server.directory) == (0o077, -5, -500, "/srv")
    assert server.environment == {"A": "x y", "B": "2"}
    assert (server.gpus.indices, server.env_file) == ((4, 5), "/etc/default/sglang")
    assert (server.limits.nofile, server.limits.memlock) == (65536, UNLIMITED)
    assert (server.stop.signal, server.stop.grace_s, server.restart.backoff_s) == ("INT", 150.0, 0.5)


def test_a_unit_without_restart_is_never_restarted(converted: Convert) -> None:
    assert converted(unit("")).server.restart.budget == 0


def test_the_limit_of_starts_is_the_budget(converted: Convert) -> None:
    done = converted(
        unit("Restart=always\nStartLimitBurst=3\nStartLimitIntervalSec=10min\nRestartSec=10min"), name="a.service"
    )
    assert (done.server.restart.budget, done.server.restart.window_s) == (3, 600.0)
    assert done.server.restart.backoff_max_s == 600.0


def test_a_shell_in_the_unit_goes_too(converted: Convert) -> None:
    done = converted(
        "[Service]\nExecStart=/bin/bash -c 'cd /srv; \\\n  exec python -m sglang.launch_server --port ${P}'\nEnvironment=P=9\n"
    )

    assert done.server.command == ("python", "-m", "sglang.launch_server", "--port", "9")
    assert done.server.directory == "/srv"


def test_variables_are_written_out(converted: Convert, tmp_path: Path) -> None:
    (tmp_path / "env").write_text("PORT=31000\n# c\nMORE='--tp 2'\n")
    done = converted(
        f"[Service]\nEnvironmentFile={tmp_path}/env\nExecStart=/opt/v/bin/sglang serve --port ${{PORT}} $MORE --x=$$y\n"
    )

    assert done.server.command == ("/opt/v/bin/sglang", "serve", "--port", "31000", "--tp", "2", "--x=$y")
    assert "values of its variables are written out" in done.out


def test_the_names_that_a_unit_has_of_itself(converted: Convert) -> None:
    done = converted(f"[Service]\n{ENGINE} --name %p --instance %i --percent 5%%\n", name="sglang@kimi.service")

    assert done.server.name == "kimi"
    assert done.server.command[-6:] == ("--name", "sglang", "--instance", "kimi", "--percent", "5%")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("ExecStartPre=/usr/bin/nvidia-smi", "hooks.before_start"),
        ("ExecStop=/bin/kill $MAINPID", "stop.signal"),
        ("MemoryMax=200G", "MemoryMax: no server has it"),
        ("ProtectSystem=full", "ProtectSystem"),
        ("WatchdogSec=30", "WatchdogSec"),
        ("EnvironmentFile=/a\nEnvironmentFile=/b", "EnvironmentFile = /b"),
        ("EnvironmentFile=/a*", "EnvironmentFile = /a*"),
        ("WorkingDirectory=~", "WorkingDirectory = ~"),
        ("TimeoutStopSec=infinity", "a stop has an end"),
    ],
)
def test_what_is_not_carried_over_is_told_twice(loses: Losing, setting: str, told: str) -> None:
    loses(unit(setting), told, "sglang.service")


@pytest.mark.parametrize(
    ("setting", "remark"),
    [
        ("Type=notify", "Type: readiness"),
        ("KillMode=mixed", "KillMode"),
        ("TimeoutStartSec=infinity", "TimeoutStartSec: each phase"),
        ("EnvironmentFile=-/a", "must be there"),
        ("Restart=always", "what no restart can help"),
        ("[Unit]\nAfter=network-online.target", "After: the daemon's unit"),
        ("EnvironmentFile=/a\nEnvironment=A=1", "environment has the last word"),
    ],
)
def test_what_is_different_is_a_comment(converted: Convert, setting: str, remark: str) -> None:
    done = converted(unit(setting))
    assert (done.status, done.told) == (0, [])
    assert remark in done.out


@pytest.mark.parametrize("signal", ["INT", "SIGINT", "2"])
def test_a_signal_may_be_a_name_or_a_number(converted: Convert, signal: str) -> None:
    assert converted(unit(f"KillSignal={signal}")).server.stop.signal == "INT"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[Service]\n", "ExecStart: expected one command, got 0"),
        ("[Service]\nExecStart=/a\nExecStart=/b\n", "ExecStart: expected one command, got 2"),
        ("[Service]\nExecStart=/a ; /b\n", "ExecStart: expected one command"),
        ("[Service]\nExecStart=/a 'b\n", "ExecStart: a quote is not closed"),
        ("[Service]\nExecStart=/a ${ABSENT}\n", "${ABSENT} is set neither"),
        ("[Service]\nExecStart=/a %i\n", "%i is an instance's name"),
        ("[Service]\nExecStart=/a %H\n", "%H is only known to systemd"),
        ("[Service]\nExecStart=/a\nnonsense\n", "'nonsense' is no setting of a unit"),
        ("[Service]\nExecStart=/a\nEnvironment=A\n", "Environment: 'A' is no NAME=VALUE"),
        ("[Service]\nExecStart=/a\nTimeoutStopSec=soon\n", "TimeoutStopSec: 'soon' is no time span"),
        ("[Service]\nExecStart=/a\nLimitNOFILE=many\n", "LimitNOFILE: 'many' is no limit"),
        ("[Service]\nExecStart=/a\nNice=99\n", "Nice: expected -20 to 19"),
        ("[Service]\nExecStart=/a\nUMask=9\n", "UMask: expected an octal mode such as 022, got '9'"),
        ("[Service]\nExecStart=/a\nKillSignal=SIGNO\n", "KillSignal: 'SIGNO' is no signal"),
    ],
)
def test_a_unit_that_cannot_be_used_is_refused(refused: Refusing, text: str, problem: str) -> None:
    assert problem in refused(text, "x.service")


def test_drop_ins_beside_the_unit_are_read_with_it(converted: Convert, tmp_path: Path) -> None:
    folder = tmp_path / "a.service.d"
    folder.mkdir()
    (folder / "20-more.conf").write_text("[Service]\nNice=3\n")
    (folder / "10-other.conf").write_text("[Service]\nNice=2\nTimeoutStopSec=7\nExecStart=\nExecStart=vllm serve m\n")

    done = converted(unit("Nice=1"), name="a.service")

    assert (done.server.nice, done.server.stop.grace_s, done.server.command[0]) == (3, 7.0, "vllm")
    assert "10-other.conf" in done.out


def test_an_empty_value_takes_back_what_was_set(tmp_path: Path) -> None:
    file = tmp_path / "x.service"
    file.write_text("[Service]\nExecStart=/a\nExecStart=\nExecStart=/b\n")
    assert Unit(file).all("ExecStart") == ["/b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        ("'a b' \"c d\" e'f g'", ["a b", "c d", "ef g"]),
        (r"a\x20b \t \101 \u00e9 \\ \" '\''", ["a b", "\t", "A", "é", "\\", '"', "'"]),
        (r"\q \x00 \udfff", [r"\q", r"\x00", r"\udfff"]),
        ("'' \"\"", ["", ""]),
        ("", []),
    ],
)
def test_words_are_cut_as_systemd_cuts_them(text: str, expected: list[str]) -> None:
    assert words(text, "x") == expected


def test_a_quote_that_is_not_closed() -> None:
    with pytest.raises(ConversionError, match="not closed"):
        words("'a", "x")


def test_a_user_that_this_host_lacks_is_written_and_to_be_made_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sglang.service"
    file.write_text(unit("User=nobody-knows-me"))
    assert main([str(file)]) == 1
    out, told = capsys.readouterr()
    wanted = 'to be made first: {}user: this host has no user "nobody-knows-me", and the daemon refuses the file'
    assert 'user = "nobody-knows-me"' in out
    assert f"# {wanted.format('')}" in out
    assert wanted.format("sglang: ") in told
    assert "not carried over" not in out + told
