"""The process itself: imports, CPU time, usage, unreachable and strange daemons, signals."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor import __version__
from supervisor.cli import duration
from supervisor.cli.connection import DEFAULT_SOCKET, socket_path
from supervisor.cli.main import _MEANT
from supervisor.cli.text import as_json, clean
from supervisor.cli.verbs import VERBS
from supervisor.config import DEFAULT_SOCKET as DAEMON_SOCKET
from supervisor.units import parse_duration
from tests.api.fake import FakeControl, snapshot
from tests.cli.conftest import Sglctl

START = (
    "; is it running (systemctl status sglang-supervisor)? Another socket than this is named with -s or SGLSUP_SOCKET"
)
LEFT = "; it has ended, and its socket is left: systemctl status sglang-supervisor"
COMMAND = [sys.executable, "-m", "supervisor.cli.main"]


def test_the_client_imports_the_standard_library_alone() -> None:
    script = (
        "import sys; before = set(sys.modules); import supervisor.cli.main\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "ours = {name for name in sys.modules if name.startswith('supervisor.')}\n"
        "print(sorted(loaded - sys.stdlib_module_names - {'supervisor'}), "
        "sorted(name for name in ours if not name.startswith('supervisor.cli')))\n"
        "print(sorted(loaded & {'asyncio', 'email', 'http', 'ssl', 'logging', 'subprocess'}))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert ran.stdout == "[] []\n[]\n", ran.stderr


def test_client_and_daemon_agree_on_the_default_socket() -> None:
    assert DEFAULT_SOCKET == DAEMON_SOCKET


@pytest.mark.parametrize(
    ("option", "environment", "path"),
    [
        (None, None, DEFAULT_SOCKET),
        (None, "/run/other", "/run/other"),
        ("/run/chosen", "/run/other", "/run/chosen"),
        ("unix:///run/chosen", None, "/run/chosen"),
    ],
)
def test_the_socket_is_chosen_by_option_then_environment(
    monkeypatch: pytest.MonkeyPatch, option: str | None, environment: str | None, path: str
) -> None:
    monkeypatch.delenv("SGLSUP_SOCKET", raising=False)
    if environment is not None:
        monkeypatch.setenv("SGLSUP_SOCKET", environment)
    assert socket_path(option) == path


@pytest.mark.parametrize("verb", [["status"], ["start", "kimi"], ["wait", "kimi"], ["tail", "kimi"], ["events", "-f"]])
async def test_no_daemon_is_one_line_and_4(sglctl: Sglctl, tmp_path: Path, verb: list[str]) -> None:
    missing = str(tmp_path / "none")
    outcome = await sglctl(*verb, socket=missing)
    assert outcome == (4, "", f"cannot reach the daemon at {missing}: No such file or directory{START}\n")


async def test_a_stale_socket_is_one_line_and_4(sglctl: Sglctl, tmp_path: Path) -> None:
    path = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    outcome = await sglctl("status", socket=str(path))
    assert outcome == (4, "", f"cannot reach the daemon at {path}: Connection refused{LEFT}\n")


def _told_by_nobody(path: Path) -> str:
    """What the user `nobody` is told: root may enter everywhere."""
    script = (
        "import grp, os, sys; from supervisor.cli.connection import Client, UnreachableError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"  # the interpreter's files may be out of reach now
        "try: Client(sys.argv[1]).get('/v1/info')\nexcept UnreachableError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=30)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_who_may_not_connect_is_told_who_may() -> None:
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        path = Path(directory) / "s"
        listener.bind(str(path))
        listener.listen()
        assert f"; you may not enter {directory}: use sudo" in _told_by_nobody(path)
        Path(directory).chmod(0o755)
        path.chmod(0o660)
        assert "; it is for the group root (daemon.socket_group), become a member, or use sudo" in _told_by_nobody(path)
        path.chmod(0o600)
        assert "; it is for its owner alone (daemon.socket_mode): use sudo" in _told_by_nobody(path)


async def test_an_impossible_path_is_one_line_and_4(sglctl: Sglctl) -> None:
    outcome = await sglctl("status", socket="/" + "x" * 200)
    assert outcome.code == 4
    assert outcome.err.count("\n") == 1


@contextmanager
def answering(path: Path, data: bytes) -> Iterator[None]:
    """Something on the socket that answers every request with `data`."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(10)

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(data)

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join(10)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 \r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: zz\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\n\x1b[2J",
    ],
)
async def test_what_is_no_daemon_gets_one_line_and_no_traceback(sglctl: Sglctl, tmp_path: Path, data: bytes) -> None:
    with answering(tmp_path / "strange", data):
        outcome = await sglctl("status", socket=str(tmp_path / "strange"))
    assert outcome.code in (1, 4)
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert outcome.err.strip().isprintable()


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["start"],
        ["wait"],
        ["wait", "--timeout", "soon", "kimi"],
        ["tail", "kimi", "stdin"],
        ["signal", "HUP"],
        ["signal", "FOO", "kimi"],
        ["signal", "0", "kimi"],
        ["events", "--since", "x"],
        ["events", "-n", "0"],
        ["events", "-n", "1001"],
        ["status", "--jso"],
    ],
)
async def test_wrong_usage_is_2(sglctl: Sglctl, arguments: list[str]) -> None:
    outcome = await sglctl(*arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("usage: sglctl")


@pytest.mark.parametrize(
    ("word", "end"),
    [
        ("statsu", ', did you mean "status"? `sglctl help` lists them'),
        ("restrat", ', did you mean "restart"? `sglctl help` lists them'),
        ("logs", ', did you mean "tail"? `sglctl help` lists them'),
        ("kill", ', did you mean "stop"? `sglctl help` lists them'),
        ("list", ', did you mean "status"? `sglctl help` lists them'),
        ("dead", "; `sglctl help` lists them"),
        ("xyzzy", "; `sglctl help` lists them"),
    ],
)
async def test_the_nearest_verb_is_guessed(sglctl: Sglctl, word: str, end: str) -> None:
    outcome = await sglctl(word, "kimi")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.splitlines()[1] == f'sglctl: error: there is no verb "{word}"{end}'


def test_what_other_tools_call_it_is_no_verb_and_means_one() -> None:
    assert not set(_MEANT) & set(VERBS)
    assert set(_MEANT.values()) <= set(VERBS)


async def test_its_own_version_needs_no_daemon(sglctl: Sglctl) -> None:
    outcome = await sglctl("-s", "/no/such/socket", "--version")
    assert (outcome.code, outcome.out) == (0, f"sglctl {__version__}\n")


async def test_help(sglctl: Sglctl) -> None:
    assert "exit codes: 0 done, 1 error" in (await sglctl("help")).out
    assert "--for" in (await sglctl("help", "wait")).out
    assert (await sglctl("help", "nonsense")).code == 2
    assert (await sglctl("-h")).code == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("0.5s", 0.5), ("1d", 86400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration.seconds(text) == pytest.approx(seconds)
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "5x", "-5s", "1..5s", "5 s", "٣s", "nan", "12", "0.5", "1m1h", "1m1m"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - argparse makes the message
        duration.seconds(text)
    with pytest.raises(ValueError, match="duration"):  # the configuration takes the same
        parse_duration(text)


def test_clean_leaves_ordinary_text_alone() -> None:
    assert clean("größe 50 % █ 日本") == "größe 50 % █ 日本"
    assert clean("a\x1b[0m\n\u202e\x7f\ud800") == "a?[0m????"
    assert as_json({"a": "\x1b\u202e\x7f"}) == '{"a": "\\u001b\\u202e\\u007f"}'


async def test_a_call_costs_little(control: FakeControl, socket_path: str) -> None:
    """Target 100 ms for 64 servers; the bound is loose because test machines are busy and slow."""
    for number in range(64):
        await control.put(snapshot(f"server-{number}", "running"))
    script = (
        "import os, subprocess, sys\n"
        f"subprocess.run({[*COMMAND, '-s', socket_path, 'status']!r}, stdout=subprocess.DEVNULL)\n"
        "times = os.times(); print(times.children_user + times.children_system)"
    )
    costs_s = []
    for _ in range(3):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
        costs_s.append(float(out))
    assert min(costs_s) < 0.25, costs_s


async def started(socket_path: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *COMMAND, "-s", socket_path, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


async def test_the_exit_status_of_the_process(control: FakeControl, socket_path: str) -> None:
    process = await started(socket_path, "status")
    out, err = await process.communicate()
    assert (process.returncode, out.count(b"\n"), err) == (3, 2, b"")


async def test_ctrl_c_ends_a_wait_without_a_traceback(control: FakeControl, socket_path: str) -> None:
    process = await started(socket_path, "wait", "draft")
    await control.waiters(1)
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"")
    await control.waiters(0)


async def test_ctrl_c_ends_a_followed_log_well(control: FakeControl, socket_path: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("first\n")
    await control.put(snapshot("kimi", "running", log_path=str(tmp_path / "log")))
    process = await started(socket_path, "tail", "-f", "kimi")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"first\n"
    with (tmp_path / "log").open("a") as writer:
        writer.write("second\n")
    assert await process.stdout.readline() == b"second\n"
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"==> Press Ctrl-C to exit <==\n")


async def test_a_closed_pipe_ends_silently(control: FakeControl, socket_path: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"line\n" * 400_000)
    await control.put(snapshot("kimi", "running", log_path=str(tmp_path / "log")))
    command = f"{' '.join(COMMAND)} -s {socket_path} tail -n 400000 kimi | head -n 1"
    process = await asyncio.create_subprocess_shell(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert await process.communicate() == (b"line\n", b"")


async def test_raw_bytes_are_passed_as_they_are(control: FakeControl, socket_path: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(bytes(range(256)))
    await control.put(snapshot("kimi", "running", log_path=str(tmp_path / "log")))
    process = await started(socket_path, "tail", "--raw", "kimi")
    out, _ = await process.communicate()
    assert out == bytes(range(256))


async def test_names_that_the_terminal_cannot_show_are_no_error(control: FakeControl, socket_path: str) -> None:
    await control.put(snapshot("kimi", "running"))
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "-s", socket_path, "status", "größe", stdout=subprocess.PIPE, env=environment
    )
    out, _ = await process.communicate()
    assert (process.returncode, out) == (4, b"gr\\xf6\\xdfe: ERROR (no such process)\n")


async def test_colour_is_for_terminals(control: FakeControl, socket_path: str) -> None:
    import pty

    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "-s", socket_path, "status", stdout=theirs, env={**os.environ, "NO_COLOR": ""}
    )
    os.close(theirs)
    await process.wait()
    shown = os.read(ours, 65536)
    os.close(ours)
    assert b"kimi   \x1b[32mRUNNING   \x1b[0mpid 4242" in shown, "the name's column is as wide as the longest name"
    assert b"draft  STOPPED  " in shown
