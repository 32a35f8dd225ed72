"""The demo as a visitor meets it: it tells the whole story, and leaves nothing behind however it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.demo.keeper import MARK
from supervisor.edge.process import scan

COMMAND = [sys.executable, "-m", "supervisor.main", "demo", "--speed", "60"]
GONE_LIMIT_S = 20.0


class Demo:
    """A demo under way, its standard output read line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.directory = Path()

    def until(self, words: str) -> str:
        """The first line with the words. Bounded by the test's own time limit."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if found := re.search(r"everything is in (\S+)", line):
                self.directory = Path(found[1])
            if words in line:
                return line
        raise AssertionError(f"the demo ended without saying {words!r}: {self.lines} {self.errors()}")

    def finish(self) -> int:
        assert self.process.stdout is not None
        self.lines += self.process.stdout.read().splitlines()
        return self.process.wait()

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def text(self) -> str:
        return "\n".join(self.lines)


def marked(directory: Path) -> list[int]:
    mark = f"{MARK}={directory}".encode()
    return [process.pid for process in scan.all_processes() if process.alive and scan.carries_marker(process.pid, mark)]


def nothing_is_left(directory: Path) -> bool:
    return not directory.exists() and not marked(directory)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    process = subprocess.Popen(
        COMMAND,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    with process:
        yield Demo(process)
        if process.poll() is None:
            process.kill()


def test_the_story_is_told_to_its_good_end(demo: Demo) -> None:
    demo.until("kimi   stalled in draft-graph")
    evidence = re.search(r"evidence kept before the kill: .* in (\S+)$", demo.until("evidence kept before the kill"))
    assert evidence is not None
    assert Path(evidence[1]).is_relative_to(demo.directory)
    assert (demo.finish(), demo.errors()) == (0, "")
    story = demo.text()
    for words in (
        "llama  healthy",
        "none of its 8 ranks has left draft-graph; the bar stands at",
        "4 s are allowed in this demo, 10 m unless configured",
        "kimi   killed, proven empty",
        "kimi   starts again (attempt 2)",
        "All as expected",
    ):
        assert words in story
    assert (
        story.index("stalled in") < story.index("none of its 8") < story.index("killed, proven") < story.index("again")
    )
    assert "\x1b" not in story
    assert nothing_is_left(demo.directory)


def test_ctrl_c_leaves_nothing(demo: Demo) -> None:
    demo.until("kimi   phase weights")
    assert marked(demo.directory)
    demo.process.send_signal(signal.SIGINT)
    assert demo.finish() == 130
    assert "everything that the demo started is gone" in demo.lines[-1]
    assert nothing_is_left(demo.directory)


def test_sigterm_leaves_nothing(demo: Demo) -> None:
    demo.until("kimi   starts")
    demo.process.send_signal(signal.SIGTERM)
    assert demo.finish() == 128 + signal.SIGTERM
    assert nothing_is_left(demo.directory)


def test_the_keeper_cleans_up_after_a_demo_that_was_killed(demo: Demo) -> None:
    demo.until("kimi   phase")
    demo.process.kill()
    until = time.monotonic() + GONE_LIMIT_S
    while not nothing_is_left(demo.directory) and time.monotonic() < until:
        time.sleep(0.05)  # nobody tells when a stranger's clean-up is done
    assert nothing_is_left(demo.directory)


def test_a_daemon_that_dies_is_the_demos_failure_and_its_servers_go_too(demo: Demo) -> None:
    demo.until("kimi   phase")
    os.kill(int((demo.directory / "state/daemon.lock").read_text()), signal.SIGKILL)
    assert demo.finish() == 1
    (line,) = demo.errors().splitlines()
    assert line.startswith("sglsup demo: failed: the daemon ended by itself with status -9")
    assert "had to be killed" in line
    assert nothing_is_left(demo.directory)


def test_on_a_terminal_the_view_is_painted_in_place_and_ctrl_c_gives_the_cursor_back(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(COMMAND[0], COMMAND, os.environ | {"TERM": "xterm-256color", "TMPDIR": str(tmp_path)})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    seen = read_until(terminal, "▸ weights")
    os.write(terminal, b"\x03")
    seen += read_until(terminal, None)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert seen.index("\x1b[?25l") < seen.index("▸ weights") < seen.rindex("\x1b[?25h")
    assert "\x1b[2K" not in seen, "a line that is erased before it is painted flickers"
    assert list(tmp_path.iterdir()) == []


def read_until(terminal: int, words: str | None) -> str:
    """What the terminal shows up to the words, or to its end. Bounded by the test's own time limit."""
    seen = b""
    while words is None or words.encode() not in seen:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # EIO: the other end is closed
            break
        if not piece:
            break
        seen += piece
    return seen.decode(errors="replace")


def test_help_tells_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    from supervisor.demo import main

    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "130 on Ctrl-C" in " ".join(capsys.readouterr().out.split())
