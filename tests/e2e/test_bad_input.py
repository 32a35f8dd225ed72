"""Every wrong input an operator can give: one clear line naming file and key, exit 2, nothing started, no traceback."""

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import toml
from tests.e2e.host import Host, until

SLEEPER = [sys.executable, "-c", "import signal; signal.pause()"]
MIB = 2**20


def assert_refused(host: Host, *fragments: str) -> None:
    """One line on stderr that has all fragments; exit 2; no process, no socket."""
    done = host.refused()
    said = done.stderr.splitlines()
    assert done.returncode == 2, done
    assert len(said) == 1, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for fragment in fragments:
        assert fragment in said[0]
    assert not Path(host.socket).is_socket(), "nothing may have been started"


WRONG_TABLES: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown key": ({"comand": ["x"]}, "server.a.comand", "unknown key"),
    "unknown key two levels deep": ({"stop": {"graze": "9s"}}, "server.a.stop.graze", "unknown key"),
    "wrong type": ({"port": "30000"}, "server.a.port", "expected"),
    "wrong type in a list": ({"command": ["x", 7]}, "server.a.command[1]", "expected"),
    "wrong duration": ({"restart": {"backoff": "5 parsecs"}}, "server.a.restart.backoff", "expected"),
    "port out of range": ({"port": 70000}, "server.a.port", "65535"),
    "missing command": ({"command": []}, "server.a.command", "expected"),
    "unknown engine": ({"engine": "warp-drive"}, "server.a.engine", "warp-drive"),
    "unknown phase": ({"deadlines": {"wieghts": {"stall": "5m"}}}, "server.a.deadlines.wieghts", "no such phase"),
    "unknown user": ({"user": "nobody-of-that-name"}, "server.a.user", "no user"),
    "device twice": ({"gpus": [1, 1]}, "server.a.gpus", "twice"),
}


@pytest.mark.parametrize("case", WRONG_TABLES)
def test_a_wrong_server_table_is_refused(host: Host, case: str) -> None:
    table, key, fragment = WRONG_TABLES[case]
    host.add("a", **{"command": SLEEPER, **table})
    host.write_config()
    assert_refused(host, str(host.config), key, fragment)


@pytest.mark.parametrize(
    ("first", "second", "key"),
    [
        ({"port": 30000}, {"port": 30000}, "server.b.port"),
        ({"gpus": [0, 1]}, {"gpus": [1, 2]}, "server.b.gpus"),
    ],
)
def test_what_two_servers_want_for_themselves_is_refused(
    host: Host, first: dict[str, Any], second: dict[str, Any], key: str
) -> None:
    host.add("a", SLEEPER, **first)
    host.add("b", SLEEPER, **second)
    host.write_config()
    assert_refused(host, str(host.config), key, "already taken by server a")


def test_a_port_in_two_commands_is_refused(host: Host) -> None:
    for name in ("a", "b"):
        host.add(name, [*SLEEPER, "--port", "30001"])
        del host.servers[name]["port"]
    host.write_config()
    assert_refused(host, "server.b.port", "30001")


def test_a_missing_command_key_is_refused(host: Host) -> None:
    host.config.write_text(toml.document(host.settings, {"a": {"port": 30000}}))
    assert_refused(host, str(host.config), "server.a.command")


def test_an_unknown_daemon_key_is_refused(host: Host) -> None:
    host.settings["sokket"] = "/x"
    host.write_config()
    assert_refused(host, str(host.config), "daemon.sokket", "unknown key")


def test_a_file_that_is_no_toml_is_refused(host: Host) -> None:
    host.config.write_text("[daemon\nsocket = ")
    assert_refused(host, str(host.config))


def test_a_missing_file_is_refused(host: Host) -> None:
    assert_refused(host, str(host.config), "No such file")


def test_a_file_in_conf_d_is_blamed_by_its_own_name(host: Host) -> None:
    host.add("a", SLEEPER)
    host.write_config()
    extra = host.root / "conf.d" / "more.toml"
    extra.parent.mkdir()
    extra.write_text('[server.b]\ncommand = ["x"]\nprot = 1\n')
    assert_refused(host, str(extra), "server.b.prot")


def test_a_log_directory_that_cannot_be_used_is_refused(host: Host) -> None:
    host.log_dir.write_text("a file, not a directory")
    host.add("a", SLEEPER)
    host.write_config()
    assert_refused(host, str(host.config), "daemon.log_dir", str(host.log_dir))


# The interpreter may lie in a directory that only root can enter: everything is imported before the user changes.
BECOME_NOBODY = """
import os, sys
from supervisor.daemon import main
from supervisor.profile import load_profile, profile_names
for name in profile_names():
    load_profile(name)
os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes somebody who may not read it")
def test_a_log_directory_that_cannot_be_read_is_refused(host: Host) -> None:
    host.log_dir.mkdir(mode=0o700)
    host.add("a", SLEEPER)
    host.write_config()
    host.root.chmod(0o755)
    command = [sys.executable, "-c", BECOME_NOBODY, "-c", str(host.config)]
    done = subprocess.run(command, env=host.environment, capture_output=True, text=True, timeout=20)
    said = done.stderr.splitlines()
    assert done.returncode == 2, done
    assert any("daemon.log_dir" in line and "65534" in line for line in said), said
    assert "Traceback" not in done.stderr


def test_a_socket_path_that_is_too_long_is_refused(host: Host) -> None:
    host.settings["socket"] = str(host.root / ("s" * 120))
    host.add("a", SLEEPER)
    host.write_config()
    assert_refused(host, str(host.config), "daemon.socket", "107")


def test_a_listen_address_in_use_is_refused(host: Host) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        host.settings["listen"] = f"127.0.0.1:{taken.getsockname()[1]}"
        host.add("a", SLEEPER)
        host.write_config()
        assert_refused(host, "cannot listen", "nothing was started")


def test_a_socket_in_use_by_a_living_daemon_is_refused(host: Host) -> None:
    host.add("a", SLEEPER, autostart=False)
    host.start()
    host.settings["state_dir"] = str(host.root / "other-state")
    host.write_config()
    done = host.refused()
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done
    assert host.socket in done.stderr
    assert host.ctl("version").returncode == 0, "the living daemon keeps its socket"


def test_a_second_daemon_on_the_same_state_directory_is_refused(host: Host) -> None:
    host.add("a", SLEEPER, autostart=False)
    first = host.start()
    host.settings["socket"] = str(host.root / "other")
    host.write_config()
    done = host.refused()
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done
    assert f"the daemon with pid {first.pid} uses it" in done.stderr
    assert not (host.root / "other").exists()


def test_a_stale_socket_of_a_dead_daemon_is_replaced(host: Host) -> None:
    host.add("a", SLEEPER, autostart=False)
    host.start().kill()
    assert stat.S_ISSOCK(Path(host.socket).stat().st_mode), "SIGKILL leaves it behind"
    host.start()
    assert host.ctl("version").returncode == 0


def test_a_file_in_the_place_of_the_socket_is_not_removed(host: Host) -> None:
    Path(host.socket).write_text("somebody's work")
    host.add("a", SLEEPER)
    host.write_config()
    assert_refused(host, host.socket)
    assert Path(host.socket).read_text() == "somebody's work"


@pytest.mark.parametrize(
    ("content", "mode", "starts", "said"),
    [
        ("#!/bin/sh\n", 0o644, 0, "preflight: the program cannot be started: {program} may not be executed by user"),
        ("#!/no/such/interpreter\n", 0o755, 1, "cannot execute {program}: its interpreter (the first line"),
        ("no program at all\n", 0o755, 1, "cannot execute {program}: Exec format error"),
        (None, 0, 0, "preflight: the program cannot be started: {program}: No such file"),
    ],
    ids=["not executable", "no interpreter", "no program", "no file"],
)
def test_a_command_that_cannot_be_executed_is_fatal_at_once(
    host: Host, content: str | None, mode: int, starts: int, said: str
) -> None:
    """What a look can tell is told before a start; the rest by the one start that there is."""
    program = host.root / "program"
    if content is not None:
        program.write_text(content)
        program.chmod(mode)
    host.add("a", [str(program)])
    host.start()
    waited = host.ctl("wait", "a", "--timeout", "20s")
    assert waited.returncode == 1, waited
    assert host.lifecycle("a").count("starting") == starts
    story = host.why("a")
    assert "a is FATAL" in story
    assert said.format(program=program) in story


HOSTILE = """
import os, signal, sys
out = sys.stdout.buffer
out.write(b"[2026-11-29 10:00:00] " + b"x" * (10 * 2**20) + b"\\n")
out.write(b"\\0" * 300_000 + b"\\n")
out.write(bytes(range(256)) * 2000 + b"\\n")
out.write(b"\\xff\\xfe\\xc3\\x28 [2026-11-29 10:00:00 TP0] Load weight begin. avail mem=1.0 GB\\r" * 2000)
out.write(b"\\x1b]0;title\\x07" * 20_000)
out.write(b"[2026-11-29 10:00:00 TP0] Load weight begin. avail mem=78.00 GB\\n")
out.write(b"y" * (30 * 2**20))
out.flush()
signal.pause()
"""


def test_a_hostile_log_neither_stops_the_daemon_nor_fills_its_memory(host: Host) -> None:
    """10 MB in one line, NUL, invalid UTF-8, escape sequences, 30 MB without any end of line."""
    host.add("quiet", SLEEPER)
    daemon = host.start()
    host.wait_for("quiet", "phase", "launch")
    before = daemon.memory_bytes("VmRSS")
    host.add("loud", [sys.executable, "-c", HOSTILE])
    host.config.write_text(toml.document(host.settings, host.servers))
    daemon.end()
    again = host.start()
    host.wait_for("loud", "phase", "weights")
    log = host.log_dir / "loud" / "000001.log"
    until(lambda: log.stat().st_size > 40 * MIB, 20, "the log is written")
    assert host.ctl("status").returncode == 0
    tail = host.ctl("tail", "loud", "-n", "3")
    assert tail.returncode == 0
    assert "\x1b" not in tail.stdout
    host.ctl("stop", "loud")
    assert again.memory_bytes() - before < 24 * MIB, "a 10 MB line must not be held whole"
    assert again.process.poll() is None


@pytest.mark.parametrize("words", [["daemon", "--confg", "x"], ["deamon"], []])
def test_a_wrong_command_line_is_a_usage_error(host: Host, words: list[str]) -> None:
    command = [str(Path(sys.executable).parent / "sglsup"), *words]
    done = subprocess.run(command, env=host.environment, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_client_without_a_daemon_says_so(host: Host) -> None:
    done = host.ctl("status")
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert host.socket in done.stderr


def test_a_client_asking_for_an_unknown_server_says_so(host: Host) -> None:
    host.add("a", SLEEPER, autostart=False)
    host.start()
    for words in (["status", "b"], ["start", "b"], ["stop", "b"], ["why", "b"], ["wait", "b"], ["tail", "b"]):
        done = host.ctl(*words)
        assert done.returncode == 4, words
        assert "Traceback" not in done.stderr


def test_signals_end_the_daemon_in_order(host: Host) -> None:
    """SIGHUP is no reason to die with servers running; SIGINT and SIGTERM end it with status 0."""
    host.add("a", SLEEPER)
    daemon = host.start()
    host.wait_for("a", "phase", "launch")
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.ended() == 0
    assert not host.processes("a")
    assert not Path(host.socket).exists()
