"""A supervisord configuration becomes servers that start, stop and look the same; what cannot be carried over is told."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from supervisor.config import StopConfig
from supervisor.convert import main
from tests.convert.conftest import Convert, Losing, Refusing

ENGINE = "/opt/sglang/bin/python -m sglang.launch_server --model-path /models/a"


def program(options: str, name: str = "a", command: str = ENGINE) -> str:
    return f"[supervisord]\n[program:{name}]\ncommand={command} --port 30000\n{options}"


def test_a_program_becomes_a_server(converted: Convert) -> None:
    done = converted(
        program(
            "autostart=false\nstartretries=7\nstopsignal=INT\nstopwaitsecs=120\numask=027\ndirectory=/srv\n"
            f'user={getpass.getuser()}\nenvironment=HF_HOME="/models/hf",NCCL_DEBUG=WARN\n'
        )
    )

    assert (done.status, done.told) == (0, [])
    server = done.server
    assert server.command == (
        "/opt/sglang/bin/python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "/models/a",
        "--port",
        "30000",
    )
    assert (server.autostart, server.restart.budget, server.umask, server.directory) == (False, 7, 0o027, "/srv")
    assert (server.stop.signal, server.stop.grace_s) == ("INT", 120.0)
    assert server.environment == {"HF_HOME": "/models/hf", "NCCL_DEBUG": "WARN"}
    assert server.effective_port == 30000


def test_what_is_the_default_here_is_not_written(converted: Convert) -> None:
    done = converted(program(""))

    assert done.out.partition("[server.a]")[2].count("=") == 1, done.out
    assert done.server.stop == StopConfig()


def test_never_restarting_is_no_budget(converted: Convert) -> None:
    assert converted(program("autorestart=false\nstartretries=9")).server.restart.budget == 0
    assert converted(program("autorestart=unexpected")).server.restart.budget == 5


def test_processes_of_a_program_become_servers_and_a_group(converted: Convert) -> None:
    done = converted(
        f"[supervisord]\n[program:pair]\ncommand={ENGINE} --port 3100%(process_num)d\nnumprocs=2\nnumprocs_start=3\n"
        'process_name=%(program_name)s_%(process_num)02d\nenvironment=CUDA_VISIBLE_DEVICES="%(process_num)d"\n'
    )

    servers = done.config.servers
    assert {name: (server.effective_port, server.gpus.indices) for name, server in servers.items()} == {
        "pair_03": (31003, (3,)),
        "pair_04": (31004, (4,)),
    }
    assert done.config.groups["pair"].members == ("pair_03", "pair_04")


def test_a_group_keeps_its_name_and_members(converted: Convert) -> None:
    done = converted(
        f"[supervisord]\n[group:models]\nprograms=a,b\n[program:a]\ncommand={ENGINE} --port 1\n[program:b]\ncommand={ENGINE} --port 2\n"
    )

    assert done.status == 0
    assert done.config.groups["models"].members == ("a", "b")
    assert "# was models:b" in done.out


def test_a_program_in_two_groups_is_two_servers(converted: Convert) -> None:
    done = converted(
        "[supervisord]\n[group:1]\nprograms=a\n[group:2]\nprograms=a\n"
        "[program:a]\ncommand=/bin/x --port 700%(group_name)s\n"
    )

    assert [server.command[2] for server in done.config.servers.values()] == ["7001", "7002"]
    assert set(done.config.servers) == {"a", "2-a"}


def test_the_earlier_in_supervisords_order_is_the_higher_in_ours(converted: Convert) -> None:
    done = converted(
        f"[supervisord]\n[program:late]\ncommand={ENGINE} --port 1\n[program:soon]\ncommand={ENGINE} --port 2\npriority=5\n"
    )

    assert list(done.config.servers) == ["soon", "late"]
    assert done.config.servers["soon"].priority > done.config.servers["late"].priority == 0


def test_included_files_have_their_own_here(converted: Convert, tmp_path: Path) -> None:
    done = converted(
        "[supervisord]\n[include]\nfiles = conf.d/*.conf absent/*.conf\n",
        b=f"[program:b]\ncommand={ENGINE} --port 2 --config %(here)s/b.yaml\n",
        a=f"[program:a]\ncommand={ENGINE} --port 1\n",
    )

    assert list(done.config.servers) == ["a", "b"]
    assert done.config.servers["b"].command[-1] == f"{tmp_path}/conf.d/b.yaml"
    assert done.says("absent/*.conf matches no file")


def test_what_supervisord_gives_to_all_is_given_to_each(converted: Convert) -> None:
    done = converted(
        f"[supervisord]\nminfds=65536\numask=077\nenvironment=A=1,B=2\n[program:a]\ncommand={ENGINE} --port %(ENV_P)s\nenvironment=B=3,P=7\n"
    )

    assert done.server.environment == {"A": "1", "B": "3", "P": "7"}
    assert (done.server.limits.nofile, done.server.umask, done.server.effective_port) == (65536, 0o077, 7)


def test_the_environment_of_the_caller_can_be_named(converted: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", "/models/%s")
    assert converted(program("directory=%(ENV_MODEL)s")).server.directory == "/models/%s"


def test_the_socket_keeps_mode_and_group(converted: Convert) -> None:
    done = converted(program("[unix_http_server]\nfile=/run/s.sock\nchmod=0770\nchown=root:0\n"))

    assert (done.config.daemon.socket_mode, done.config.daemon.socket_group) == (0o770, "0")
    assert done.config.daemon.socket == "/run/sglang-supervisor/control.sock"
    assert "# [unix_http_server] file = /run/s.sock" in done.out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("[eventlistener:mem]\ncommand=memmon\nevents=TICK_60\n", "[eventlistener:mem]"),
        ("[inet_http_server]\nport=*:9001\n", "[inet_http_server]"),
        ("[unix_http_server]\nusername=u\npassword=p\n", "username, password"),
        ("[fcgi-program:x]\ncommand=x\n", "[fcgi-program:x]"),
        ("[rpcinterface:x]\n", "[rpcinterface:x]"),
        ("[strange]\n", "[strange]"),
        ("exitcodes=0,2\n", "exitcodes"),
        ("stdout_syslog=true\n", "stdout_syslog"),
        ("stdout_events_enabled=true\n", "events_enabled"),
        ("serverurl=http://x\n", "serverurl"),
        ("[unix_http_server]\nchown=root:nobody-knows-it\n", "no group"),
    ],
)
def test_what_is_not_carried_over_is_told_twice(loses: Losing, options: str, told: str) -> None:
    loses(program(options), told, "supervisord.conf")


def test_no_secret_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "supervisord.conf"
    file.write_text(program("[unix_http_server]\nusername=u\npassword=hunter2\n"))
    main([str(file)])
    assert "hunter2" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("options", "remark"),
    [
        ("startsecs=600\n", "startsecs: RUNNING"),
        ("stopasgroup=true\n", "stopasgroup"),
        ("killasgroup=false\n", "killasgroup"),
        ("stdout_logfile=/var/log/%(program_name)s.log\n", "stdout_logfile = /var/log/a.log"),
        ("stdout_logfile=NONE\n", "its output is kept"),
        ("stderr_logfile=/var/log/e.log\n", "both streams"),
        ("priority=3\n", "priority"),
    ],
)
def test_what_is_different_is_a_comment(converted: Convert, options: str, remark: str) -> None:
    done = converted(program(options))

    assert (done.status, done.told) == (0, [])
    assert remark in done.out


def test_rotation_keeps_as_much_as_before(converted: Convert) -> None:
    log = converted(program("stdout_logfile_maxbytes=100MB\nstdout_logfile_backups=4\n")).server.log
    assert (log.rotate_size_bytes, log.size_bytes) == (100 * 2**20, 500 * 2**20)
    unlimited = converted(program("stdout_logfile_maxbytes=0\n")).server.log
    assert unlimited.size_bytes == 10**10


def test_a_program_that_is_no_engine_waits_for_somebody_to_look(converted: Convert) -> None:
    done = converted(program("", command="/usr/bin/redis-server"))

    assert done.status == 1
    assert done.server.autostart is False
    assert done.says("a: autostart", "no profile recognises")


def test_another_engine_is_named(converted: Convert) -> None:
    assert converted(program("", command="vllm serve /models/a")).server.engine == "vllm"


def test_servers_that_share_devices_have_no_lease(converted: Convert) -> None:
    done = converted(
        f'[supervisord]\n[program:a]\ncommand={ENGINE} --port 1\nenvironment=CUDA_VISIBLE_DEVICES="0,1"\n'
        f'[program:b]\ncommand={ENGINE} --port 2\nenvironment=CUDA_VISIBLE_DEVICES="1"\n'
        f'[program:c]\ncommand={ENGINE} --port 3\nenvironment=CUDA_VISIBLE_DEVICES="2"\n'
    )

    servers = done.config.servers
    assert [servers[name].gpus.indices for name in "abc"] == [(), (), (2,)]
    assert servers["a"].environment == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert done.says("b: gpus", "shares devices with a")


def test_devices_that_are_no_numbers_stay_a_variable(converted: Convert) -> None:
    done = converted(program("environment=CUDA_VISIBLE_DEVICES=GPU-12ab\n"))
    assert done.server.environment == {"CUDA_VISIBLE_DEVICES": "GPU-12ab"}
    assert done.says("no list of device numbers")


def test_the_devices_that_a_command_implies_are_proposed(converted: Convert) -> None:
    assert "perhaps gpus = [0, 1, 2, 3]" in converted(program("", command=f"{ENGINE} --tp 4")).out


def test_of_two_servers_on_one_port_the_second_is_out_of_force(converted: Convert) -> None:
    done = converted(
        f"[supervisord]\n[program:a]\ncommand={ENGINE} --port 1\n[program:b]\ncommand={ENGINE} --port 1\nautostart=false\n"
    )

    assert list(done.config.servers) == ["a"]
    assert "\n# [server.b]\n" in done.out
    assert done.says(
        "b: the whole server", "port 1 is already taken by server a, which starts by itself: give it a port of its own"
    )
    assert "# has port 1; out of force for the same port: b\n" in done.out


@pytest.mark.parametrize(
    ("first", "second", "keeper", "why"),
    [
        (ENGINE, f"{ENGINE} --port 30000", "b", "b, which names it"),
        ("/usr/sbin/nginx", ENGINE, "b", "b, which is an engine that is known"),
        (f"{ENGINE}\nautostart=false", ENGINE, "b", "b, which starts by itself"),
        (ENGINE, ENGINE, "a", "a, which comes first"),
        (ENGINE, f"{ENGINE}\npriority=1", "b", "b, which comes first"),
    ],
)
def test_a_port_that_nobody_names_is_kept_by_whoever_has_the_better_title(
    converted: Convert, first: str, second: str, keeper: str, why: str
) -> None:
    """Not by whoever the file names first: a program that is no engine may be, and listens elsewhere."""
    done = converted(f"[supervisord]\n[program:a]\ncommand={first}\n[program:b]\ncommand={second}\n")

    assert list(done.config.servers) == [keeper]
    loser = "a" if keeper == "b" else "b"
    said = f"port 30000, which sglang takes when none is named, is already taken by server {why}"
    assert done.says(f"{loser}: the whole server", said)
    assert f"out of force for the same port: {loser}\n" in done.out


def test_three_servers_that_name_no_port_are_all_told(converted: Convert) -> None:
    done = converted("[supervisord]\n" + "".join(f"[program:{name}]\ncommand={ENGINE}\n" for name in "abc"))

    assert list(done.config.servers) == ["a"]
    kept = "# has port 30000, sglang's own since its command names none; out of force for the same port: b, c\n"
    assert kept in done.out
    assert [line for line in done.told if "already taken by server a, which comes first" in line] == done.told[-2:]


def test_names_become_such_as_the_daemon_takes(converted: Convert) -> None:
    done = converted(
        f"[supervisord]\n[program:all]\ncommand={ENGINE} --port 1\n[program:größe]\ncommand={ENGINE} --port 2\n[program:v1.5]\ncommand={ENGINE} --port 3\n"
    )

    assert set(done.config.servers) == {"all-all", "gr-e", "v1.5"}
    assert '[server."v1.5"]' in done.out
    assert "is called gr-e here" in done.out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[supervisord]\n[program:a]\n", "[program:a] command: the program has no command"),
        ("[supervisord]\n[program:a]\ncommand=x 'y\n", "no closing quotation"),
        ("[supervisord]\n[program:a]\ncommand=x %(ENV_ABSENT)s\n", "%(ENV_ABSENT)s is not set here"),
        ("[supervisord]\n[program:a]\ncommand=x %(absent)s\n", "not known to supervisord"),
        ("[supervisord]\n[program:a]\ncommand=x 50%\n", "a plain percent sign is written %%"),
        ("[supervisord]\n[program:a]\ncommand=x %(here)999999999s\n", "out of all measure"),
        ("[supervisord]\n[program:a]\ncommand=x\nstartretries=many\n", "startretries: expected a whole number"),
        ("[supervisord]\n[program:a]\ncommand=x\nautostart=perhaps\n", "autostart: expected true or false"),
        ("[supervisord]\n[program:a]\ncommand=x\nstopsignal=NOSIG\n", "is no signal"),
        ("[supervisord]\n[program:a]\ncommand=x\nenvironment=A\n", "expected KEY=value"),
        ("[supervisord]\n[program:a]\ncommand=x\nnumprocs=2\n", "%(process_num) must be in it"),
        ("[supervisord]\n[program:a b]\ncommand=x\n", "a name may hold no blank"),
        ("[supervisord]\n[group:g]\nprograms=absent\n", "there is no program absent"),
        ("[supervisord]\n[include]\n", "[include] has no files"),
        ("command=x\n", "line 1 is in no section: command=x; expected supervisord"),
        ("[supervisord]\nnonsense\n", "line 2 is no name=value: nonsense\n"),
        ("evil\x1b[2J\n", "line 1 is in no section: evil\\x1b[2J; "),
    ],
)
def test_a_file_that_supervisord_refuses_is_refused(refused: Refusing, text: str, problem: str) -> None:
    assert problem in refused(text, "supervisord.conf")


def test_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "latin").write_bytes(b"[supervisord]\nidentifier=gr\xfc\xdfe\n")

    assert [main([str(tmp_path / name)]) for name in ("absent", "latin", ".")] == [2, 2, 2]
    assert main(["/dev/zero"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"sglsup convert: cannot convert {tmp_path}/absent: No such file or directory",
        f"sglsup convert: cannot convert {tmp_path}/latin: byte 27 is not UTF-8",
        f"sglsup convert: cannot convert {tmp_path}: Is a directory",
        "sglsup convert: cannot convert /dev/zero: is no regular file",
    ]


def test_a_thousand_servers_take_no_time_to_speak_of(converted: Convert) -> None:
    done = converted(
        f"[supervisord]\n[program:a]\ncommand={ENGINE} --port %(process_num)d\nnumprocs=1000\nnumprocs_start=1\n"
        "process_name=a%(process_num)d\ndirectory=~nobody-knows-me\n"
    )
    assert len(done.config.servers) == 1000


def test_a_file_without_programs_says_so(converted: Convert) -> None:
    assert converted("[supervisord]\n").told == ["sglsup convert: nothing to convert: the file has no program"]
