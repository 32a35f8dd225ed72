"""`sglsup run` as containers, batch jobs and people meet it: what it prints, how it ends, what it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import pwd
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.edge.process import scan
from supervisor.run import main, other_port

RUN = [sys.executable, "-m", "supervisor.main", "run"]
ENGINE = [
    sys.executable,
    "-m",
    "supervisor.simulator",
    "--model-path",
    "/models/Tiny-7B",
    "--tp",
    "2",
    "--speed",
    "200",
]
MARK = "SGLSUP_TEST_OF_RUN"


class Running:
    """One run, its JSON lines read as they come."""

    def __init__(self, process: subprocess.Popen[str], state: Path) -> None:
        self.process = process
        self.state = state
        self.changes: list[dict[str, object]] = []

    def until(self, facet: str, to: str) -> dict[str, object]:
        """The first change of the facet to the value. Bounded by the test's own time limit."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            change = json.loads(line)
            self.changes.append(change)
            if (change["facet"], change["to"]) == (facet, to):
                return change
        raise AssertionError(f"the run ended without {facet} {to}: {self.changes} {self.errors()}")

    def finish(self) -> int:
        assert self.process.stdout is not None
        self.changes += [json.loads(line) for line in self.process.stdout]
        return self.process.wait()

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def lifecycle(self) -> list[object]:
        return [change["to"] for change in self.changes if change["facet"] == "lifecycle"]


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts runs in a directory of the test, and proves at the end that none of their processes is left."""
    started: list[subprocess.Popen[str]] = []
    environment = os.environ | {MARK: str(tmp_path)}

    def begin(*command: str, options: tuple[str, ...] = (), state: str = "s", **more: object) -> Running:
        words = [*RUN, "--state-dir", str(tmp_path / state), *options, "--", *command]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | more
        process = subprocess.Popen(words, text=True, env=environment, cwd=tmp_path, **pipes)
        started.append(process)
        return Running(process, tmp_path / state)

    yield begin
    left = marked(tmp_path)
    for process in started:
        with process:
            process.kill()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def marked(tmp_path: Path) -> list[int]:
    mark = f"{MARK}={tmp_path}".encode()
    return [process.pid for process in scan.all_processes() if process.alive and scan.carries_marker(process.pid, mark)]


@pytest.fixture
def engine() -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return [*ENGINE, "--port", str(probe.getsockname()[1])]


# --- stopped ---------------------------------------------------------------------------------------------------------


def test_a_healthy_server_stopped_by_sigterm_ends_with_nought(start: Start, engine: list[str]) -> None:
    run = start(*engine)
    log = run.until("log", str(run.state / "log/Tiny-7B/current.log"))
    assert log["server"] == "Tiny-7B", "named after its model"
    healthy = run.until("lifecycle", "running")
    assert healthy["from"] == "starting"
    assert "healthy" in str(healthy["reason"])
    assert b"server_args" in Path(str(log["to"])).read_bytes()
    run.process.send_signal(signal.SIGTERM)
    assert (run.finish(), run.errors()) == (0, "")
    assert run.lifecycle()[-3:] == ["stopping", "reclaiming", "stopped"]
    assert all({"time", "server", "facet", "from", "to", "reason"} <= set(change) for change in run.changes)
    assert [change["to"] for change in run.changes].count(log["to"]) == 1


def test_a_stop_while_it_starts_is_no_failure_either(start: Start, engine: list[str]) -> None:
    run = start(*engine, "--speed", "5")
    run.until("phase", "launch")
    run.process.send_signal(signal.SIGINT)
    assert (run.finish(), run.errors()) == (0, "")
    assert "running" not in run.lifecycle()


def test_a_second_ctrl_c_kills_what_does_not_end(start: Start, engine: list[str]) -> None:
    run = start(*engine, "--scenario", "ignore-term")
    run.until("lifecycle", "running")
    run.process.send_signal(signal.SIGINT)
    run.until("lifecycle", "draining")
    began = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    assert run.finish() == 0
    assert time.monotonic() - began < 20, "the grace period of a drain is 90 s"


def test_sglctl_works_on_its_socket_and_a_stop_there_ends_the_run(start: Start, engine: list[str]) -> None:
    run = start(*engine)
    run.until("lifecycle", "running")
    control = [sys.executable, "-m", "supervisor.cli.main", "-s", str(run.state / "control.sock")]
    status = subprocess.run([*control, "status"], capture_output=True, text=True, timeout=30)
    assert "Tiny-7B" in status.stdout
    assert "RUNNING" in status.stdout
    subprocess.run([*control, "stop", "--no-wait", "Tiny-7B"], check=True, capture_output=True, timeout=30)
    assert run.finish() == 0


def test_once_stops_as_soon_as_it_is_healthy(start: Start, engine: list[str]) -> None:
    run = start(*engine, options=("--once",))
    assert run.finish() == 0
    assert run.errors().startswith("sglsup run: Tiny-7B works: healthy ")
    assert "running" in run.lifecycle()
    assert run.lifecycle()[-1] == "stopped"
    said = [change["reason"] for change in run.changes if change["facet"] == "lifecycle"]
    assert any(str(reason).startswith("ended as asked") for reason in said)
    assert not any(str(reason).startswith(("ended by", "exited")) for reason in said), "nothing has failed"


@pytest.fixture
def held_port() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_once_does_not_wait_for_a_port_in_other_hands(start: Start, held_port: int) -> None:
    run = start(*ENGINE, "--port", str(held_port), options=("--once",))
    assert run.finish() == 1
    assert run.errors().startswith(
        f"sglsup run: Tiny-7B could not be tried: port {held_port} is held by pid {os.getpid()}"
    )
    assert "starting" not in run.lifecycle()


def test_who_holds_the_port_is_told_while_it_is_waited_for(start: Start, held_port: int) -> None:
    run = start(*ENGINE, "--port", str(held_port))
    told = str(run.until("start", "waiting")["reason"])
    assert told.startswith(f"port {held_port} is held by pid {os.getpid()} ")
    assert told.endswith("; it starts when that is free, without a limit: end what is in the way, or stop this server")
    run.process.send_signal(signal.SIGTERM)
    assert run.finish() == 0


# --- given up --------------------------------------------------------------------------------------------------------


def test_a_failure_that_no_restart_mends_ends_it_with_cause_and_remedy_last(start: Start, engine: list[str]) -> None:
    run = start(*engine, "--scenario", "exit-on-config")
    assert run.finish() == 1
    last = run.errors().splitlines()[-1]
    assert last.startswith("sglsup run: Tiny-7B was given up: server-args-invalid")
    assert "invalid int value: 'eight'" in last
    assert "correct what the evidence names" in last
    assert run.lifecycle().count("starting") == 1, "no restart loop"


BEFORE = "preflight: the program cannot be started: "
ADVICE = "; correct the first word of command, or install it for the server's user"
EXECUTED = "; cause: cannot-execute; what to change: Correct the server's command, directory or user."


@pytest.mark.parametrize(
    ("command", "starts", "why"),
    [
        ("/nope/engine", 0, f"{BEFORE}/nope/engine: No such file or directory{ADVICE}"),
        ("./not-executable", 0, f"{BEFORE}{{here}}/./not-executable may not be executed by user {{me}}{ADVICE}"),
        ("./no-program", 1, f"cannot execute ./no-program: Exec format error{EXECUTED}"),
    ],
)
def test_a_command_that_cannot_be_executed_is_given_up_at_once(
    start: Start, tmp_path: Path, command: str, starts: int, why: str
) -> None:
    """What a look can tell is told before a start; the rest by the start. Each is told once, in one line."""
    (tmp_path / "not-executable").write_text("true")
    (tmp_path / "no-program").write_text("true")
    (tmp_path / "no-program").chmod(0o755)
    run = start(command)
    assert run.finish() == 1
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert run.errors() == f"sglsup run: server was given up: {why.format(here=tmp_path, me=me)}\n"
    assert run.lifecycle().count("starting") == starts


def test_without_restarts_the_first_failure_ends_it(start: Start) -> None:
    run = start("sh", "-c", "exit 7", options=("--no-restart",))
    assert run.finish() == 1
    (line,) = run.errors().splitlines()
    assert "exited with status 7; restarts are switched off" in line
    assert str(run.state / "log/server/000001.log") in line
    assert run.lifecycle().count("starting") == 1


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--gpus", "7-0", "--", "true"), 'expected devices such as "0-7"'),
        (("--port", "70000", "--", "true"), "expected a port between 1 and 65535"),
        (("--grace", "soon", "--", "true"), 'expected a duration such as "90s"'),
        (("--bogus", "--", "true"), "unrecognized arguments: --bogus"),
        (("--listen", "nowhere", "--", "true"), '--listen: expected "HOST:PORT"'),
        (("--name", "a/b", "--", "true"), "--name: expected a name"),
        (("--state-dir", "/dev/null/x", "--", "true"), "--state-dir: cannot use"),
        ((), "the following arguments are required: CMD"),
    ],
)
def test_bad_options_start_nothing(
    options: tuple[str, ...], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = list(options) if "--state-dir" in options else ["--state-dir", str(tmp_path / "s"), *options]
    try:
        status: object = main(words)
    except SystemExit as ended:
        status = ended.code
    told = capsys.readouterr()
    assert (status, told.out) == (2, "")
    assert why in told.err.splitlines()[-1]
    assert not (tmp_path / "s").exists()


def test_a_second_run_of_the_same_name_is_refused_and_the_first_goes_on(start: Start, engine: list[str]) -> None:
    first = start(*engine)
    first.until("lifecycle", "running")
    second = start(*engine)
    assert second.finish() == 2
    (line,) = second.errors().splitlines()
    assert f"the daemon with pid {first.process.pid} uses it; nothing was started" in line
    assert first.process.poll() is None
    first.process.send_signal(signal.SIGTERM)
    assert first.finish() == 0


# --- its surroundings ------------------------------------------------------------------------------------------------


def test_a_reader_that_stops_reading_holds_nothing_up(start: Start, engine: list[str]) -> None:
    reading, writing = os.pipe()
    fill(writing)
    run = start(*engine, options=("--once",), stdout=writing)
    os.close(writing)
    assert run.process.wait(30) == 0
    os.close(reading)


def fill(pipe: int) -> None:
    """Until nothing more can be written."""
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * 4096)
    os.set_blocking(pipe, True)


def test_a_reader_that_goes_away_is_no_reason_to_stop_a_server(start: Start, engine: list[str]) -> None:
    run = start(*engine)
    run.until("phase", "launch")
    assert run.process.stdout is not None
    run.process.stdout.close()
    control = [sys.executable, "-m", "supervisor.cli.main", "-s", str(run.state / "control.sock")]
    waited = subprocess.run(
        [*control, "wait", "Tiny-7B", "--timeout", "30s"], capture_output=True, text=True, timeout=40
    )
    assert (waited.returncode, waited.stdout) == (0, "Tiny-7B: healthy\n")
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(30) == 0


def test_relative_commands_mean_what_they_mean_to_the_caller(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("#!/bin/sh\npwd > where\nexit 3\n")
    script.chmod(0o755)
    run = start("./serve.sh", options=("--no-restart",))
    assert run.finish() == 1
    assert (tmp_path / "where").read_text().strip() == str(tmp_path)


def test_on_a_terminal_it_shows_phases_and_a_hang_up_stops_the_server(tmp_path: Path, engine: list[str]) -> None:
    words = [*RUN, "--state-dir", str(tmp_path / "s"), "--", *engine, "--speed", "20"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(words[0], words, os.environ | {"TERM": "xterm-256color", MARK: str(tmp_path)})
    seen = read_until(terminal, "▸ weights")
    assert "Tiny-7B: log " in seen
    assert "STARTING" in seen
    os.close(terminal)  # the terminal is gone: SIGHUP
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert marked(tmp_path) == []


def read_until(terminal: int, words: str) -> str:
    seen, until = b"", time.monotonic() + 30
    while words.encode() not in seen and select.select([terminal], [], [], until - time.monotonic())[0]:
        seen += os.read(terminal, 65536)
    return seen.decode(errors="replace")


def test_a_command_without_the_dashes_is_told_where_they_belong(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["python", "-m", "x"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(
        "sglsup run: error: unrecognized arguments: -m x; the command and its options stand behind --\n"
    )


@pytest.mark.parametrize(
    ("asked", "command", "told"),
    [
        (
            31999,
            ("serve", "--port", "31998"),
            "warning: --port 31999 is where it is asked whether it is ready, and its",
        ),
        (31999, ("serve", "--port=31999"), ""),
        (31999, ("serve.sh",), ""),
        (0, ("serve", "--port", "31998"), ""),
    ],
)
def test_another_port_than_the_commands_is_warned_of(asked: int, command: tuple[str, ...], told: str) -> None:
    found = other_port(asked, command)
    assert found.startswith(told)
    assert bool(found) is bool(told)


def test_help_documents_every_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert [word for word in rows if word.isdigit()] == ["0", "1", "2", "3", "130"]
