"""Starts fake engines for tests and takes them, their children and their orphans down again."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.site import free_ports

PATIENCE_S = 30.0  # generous: the machine may be busy with other tests
READY = b"The server is fired up and ready to roll!"


class Process:
    """One line of the process table."""

    def __init__(self, pid: int) -> None:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        self.pid = pid
        self.state, self.parent, self.group, self.session = fields[0], int(fields[1]), int(fields[2]), int(fields[3])
        self.command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        self.comm = Path(f"/proc/{pid}/comm").read_text().strip()


class Engine:
    """A running fake engine; `mark` is in the environment of every process that belongs to it."""

    def __init__(self, mark: str, port: int, *arguments: str, speed: float = 500.0, **environment: str) -> None:
        self.mark = mark
        self.port = port
        self.log = b""
        command = [sys.executable, "-m", "supervisor.simulator", "--port", str(port), "--speed", str(speed), *arguments]
        command += [] if "--shards" in arguments else ["--shards", "4"]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"SIMULATOR_TEST": mark} | environment,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    def until(self, needle: bytes, patience_s: float = PATIENCE_S) -> bytes:
        """The whole log once it contains the needle; fails when it does not come in time."""
        end = time.monotonic() + patience_s
        while needle not in self.log:
            left = end - time.monotonic()
            if left <= 0 or not self.read(left):
                pytest.fail(f"{needle!r} did not come; the log ends with {self.log[-1500:].decode(errors='replace')}")
        return self.log

    def read(self, timeout_s: float) -> bool:
        """Take in what comes within the time; False at the end of the log."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        if select.select([descriptor], [], [], timeout_s)[0]:
            data = os.read(descriptor, 1 << 20)
            self.log += data
            return bool(data)
        return True

    def falls_silent(self, seconds: float = 0.5, patience_s: float = PATIENCE_S) -> bool:
        """True once a stretch of that length has passed without a byte."""
        end = time.monotonic() + patience_s
        while not (silent := self.silent_for(seconds)) and time.monotonic() < end:
            pass
        return silent

    def silent_for(self, seconds: float) -> bool:
        """True when not one byte comes in that time."""
        before = len(self.log)
        self.read(seconds)
        return len(self.log) == before

    def ended(self, patience_s: float = PATIENCE_S) -> int:
        """The exit status; the log is drained meanwhile, else a full pipe would hold the engine back."""
        end = time.monotonic() + patience_s
        while self.process.poll() is None:
            assert time.monotonic() < end, (
                f"still running; the log ends with {self.log[-1500:].decode(errors='replace')}"
            )
            self.read(0.02)
        while self.read(0.02) and not self.silent_for(0.05):
            pass
        return self.process.returncode

    def tree(self) -> list[Process]:
        return [Process(pid) for pid in marked(self.mark)]

    def child(self, title: str) -> int:
        return next(process.pid for process in self.tree() if process.command == title)

    def get(self, path: str, timeout_s: float = PATIENCE_S) -> int:
        return self.fetch(path, timeout_s=timeout_s)[0]

    def fetch(self, path: str, body: object = None, timeout_s: float = PATIENCE_S) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310 -- loopback
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def refuses(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) != 0

    def gone(self, patience_s: float = PATIENCE_S) -> bool:
        """True once no process of this engine is left, not even a double-forked one."""
        end = time.monotonic() + patience_s
        while marked(self.mark) and time.monotonic() < end:
            self.read(0.02)
        return not marked(self.mark)


def marked(mark: str) -> list[int]:
    """Living processes that carry the mark; a zombie has no environment any more."""
    wanted = f"SIMULATOR_TEST={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return sorted(found)


def end_all(engine: Engine) -> None:
    """Kill until two looks find nobody: one that starts up forks meanwhile, and in its exec it has no environment."""
    empty = 0
    while empty < 2:
        pids = {*marked(engine.mark), *in_session(engine.process.pid)}
        empty = 0 if pids else empty + 1
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def in_session(leader: int) -> list[int]:
    """Living processes of the leader's session; the leader is not reaped yet, so that the number is still its own."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            one = Process(int(entry.name))
            if one.session == leader and one.state != "Z":
                found.append(one.pid)
    return found


@pytest.fixture
def start() -> Iterator[Callable[..., Engine]]:
    """Starts an engine with the given arguments; every process of it is killed at the end of the test."""
    engines: list[Engine] = []

    def begin(*arguments: str, port: int = 0, speed: float = 500.0, **environment: str) -> Engine:
        mark = f"{os.getpid()}-{time.monotonic_ns()}"
        engine = Engine(mark, port or free_ports(1)[0], *arguments, speed=speed, **environment)
        engines.append(engine)
        return engine

    yield begin
    for engine in engines:
        end_all(engine)
        engine.process.wait(PATIENCE_S)
        assert engine.process.stdout is not None
        engine.process.stdout.close()
