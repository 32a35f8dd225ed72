"""What the daemon says of itself: for machines, for journald, for people, without repeating itself."""

import io
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from supervisor.shell import logs
from supervisor.shell.logs import Repeats


@pytest.fixture(autouse=True)
def _own_configuration() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# --- forms ----------------------------------------------------------------------------------------------------------


def test_machines_get_one_json_object_a_line() -> None:
    out = io.StringIO()
    logs.configure(out)

    structlog.get_logger().info("lifecycle", server="kimi", reason="two\nlines")

    (line,) = lines(out.getvalue())
    assert (line["event"], line["server"], line["reason"], line["level"]) == ("lifecycle", "kimi", "two\nlines", "info")
    assert "timestamp" in line


def test_a_traceback_is_part_of_its_line_and_shows_no_values() -> None:
    out = io.StringIO()
    logs.configure(out)
    secret = "hf_verysecret"  # a local variable of a frame in the traceback

    try:
        raise ValueError("broken")
    except ValueError as bug:
        structlog.get_logger().error("bug", exc_info=bug)

    (line,) = lines(out.getvalue())
    assert line["exception"][0]["exc_type"] == "ValueError"
    assert secret not in out.getvalue()


def test_people_get_text() -> None:
    out = io.StringIO()
    logs.configure(out, pretty=True)

    structlog.get_logger().info("lifecycle", server="kimi")

    assert "lifecycle" in out.getvalue()
    assert not out.getvalue().startswith("{")


def test_little_is_said_at_a_higher_level() -> None:
    out = io.StringIO()
    logs.configure(out, level=logging.WARNING)

    structlog.get_logger().info("lifecycle")

    assert out.getvalue() == ""


def test_journald_gets_the_priority_in_front(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    status = os.fstat(ours.fileno())
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    with ours, theirs, ours.makefile("w") as out:
        logs.configure(out)
        for say in (structlog.get_logger().info, structlog.get_logger().warning, structlog.get_logger().error):
            say("x")
        said = theirs.recv(65536).decode().splitlines()

    assert [line[:3] for line in said] == ["<6>", "<4>", "<3>"]
    assert json.loads(said[0][3:])["event"] == "x"


def test_another_stream_than_the_journals_gets_no_priority(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`sglsup daemon 2>file` in a shell that systemd started: the variable is there, the stream is another."""
    monkeypatch.setenv("JOURNAL_STREAM", "8:1234")
    with (tmp_path / "log").open("w") as out:
        logs.configure(out)
        structlog.get_logger().info("x")

    assert (tmp_path / "log").read_text().startswith("{")


# --- repeats --------------------------------------------------------------------------------------------------------


class Log:
    """The rendering step alone; time passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        render = lambda _logger, _method, event: json.dumps(dict(event), default=str)  # noqa: E731
        self.repeats = Repeats(render, period_s=60.0, monotonic=lambda: self.now)
        self.said: list[dict[str, Any]] = []

    def say(self, level: str, event: str, **fields: object) -> None:
        try:
            text = self.repeats(None, level, {"level": level, "event": event, "timestamp": len(self.said), **fields})
        except structlog.DropEvent:
            return
        self.said += lines(text)

    def events(self) -> list[tuple[str, int]]:
        return [(line["event"], line.get("repeated", 0)) for line in self.said]


def test_a_warning_that_says_the_same_is_counted() -> None:
    log = Log()
    for _ in range(38):
        log.say("warning", "log archive", server="kimi", problem="no space")

    assert log.events() == [("log archive", 0)]


def test_the_count_is_told_once_the_time_is_over() -> None:
    log = Log()
    for _ in range(38):
        log.say("warning", "log archive", problem="no space")
    log.now += 60.0

    log.say("info", "lifecycle")

    assert log.events() == [("log archive", 0), ("log archive", 37), ("lifecycle", 0)]
    assert log.said[1]["problem"] == "no space"


def test_a_warning_about_something_else_is_written() -> None:
    log = Log()
    log.say("warning", "hook failed", server="a")
    log.say("warning", "hook failed", server="b")
    log.say("error", "hook failed", server="a")

    assert len(log.said) == 3


def test_decisions_are_never_held_back() -> None:
    log = Log()
    for _ in range(5):
        log.say("info", "lifecycle", server="kimi", to="backoff")

    assert len(log.said) == 5


def test_bugs_with_one_message_and_different_causes_are_different() -> None:
    log = Log()
    log.say("error", "bug", exc_info=ValueError("a"))
    log.say("error", "bug", exc_info=ValueError("b"))
    log.say("error", "bug", exc_info=ValueError("b"))

    assert len(log.said) == 2


def test_without_end_of_new_warnings_memory_stays_bounded() -> None:
    log = Log()
    for number in range(1000):
        log.say("warning", "odd", number=number)

    assert len(log.said) == 1000
    assert log.repeats.remembered == 256


# --- a file beside --------------------------------------------------------------------------------------------------


def test_the_file_gets_json_also_where_people_get_text(tmp_path: Path) -> None:
    import subprocess

    program = (
        "import structlog; from supervisor.shell import logs\n"
        f"logs.configure(pretty=True, file={str(tmp_path / 'daemon.log')!r})\n"
        "structlog.get_logger().info('ready', servers=2)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)

    assert done.returncode == 0, done.stderr
    assert "ready" in done.stderr
    (line,) = lines((tmp_path / "daemon.log").read_text())  # written although the program ended at once
    assert (line["event"], line["servers"]) == ("ready", 2)
