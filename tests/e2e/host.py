"""A host for one test: a daemon as a real process on a generated configuration, with fake servers and the real client.

Everything lies below one short temporary directory whose path is in the environment of every process, so that the end
of a test can prove by a look into /proc that nothing is left.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from bench.site import free_ports
from tests.e2e import api, marks, toml

BIN = Path(sys.executable).parent
MARK = "SGLSUP_E2E"
READY_LIMIT_S = 20.0
END_LIMIT_S = 20.0
NEVER_ENDED = 1000
SPEED = 200  # the fake engine's four minutes in about a second
SOLE = str(Path(__file__).with_name("sole.py"))


class Host:
    """Use as a context manager. Add servers, then `start()`."""

    def __init__(self, *, cgroups: str = "auto") -> None:
        self.root = Path(tempfile.mkdtemp(prefix="se-", dir="/tmp"))
        self.socket = str(self.root / "s")
        self.state_dir = self.root / "state"
        self.log_dir = self.root / "log"
        self.config = self.root / "supervisor.toml"
        self.servers: dict[str, dict[str, Any]] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self.settings: dict[str, Any] = {
            "socket": self.socket,
            "state_dir": str(self.state_dir),
            "log_dir": str(self.log_dir),
            "listen": "",
            "cgroups": cgroups,
        }
        self.prefix: list[str] = []  # what the daemon is started by, such as `nsenter`
        self.daemon: Daemon | None = None
        self._daemons: list[Daemon] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        statuses = [daemon.end() for daemon in self._daemons]
        cgroup = self.cgroup()
        left = marks.gone(self.mark)
        marks.kill(left)
        assert not marks.gone(self.mark), "what SIGKILL does not end"
        _remove_cgroup(cgroup)
        shutil.rmtree(self.root, ignore_errors=True)
        if kind is None:
            assert not left, f"left behind: {left}"
            assert statuses[-1:] in ([], [0]) or statuses[-1] == -signal.SIGKILL, (
                f"ended with {statuses}: {self.said()}"
            )

    # --- what is set up ------------------------------------------------------------------------------------------

    @property
    def mark(self) -> bytes:
        return str(self.root).encode()

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: text for name, text in os.environ.items() if not name.startswith("SGLSUP_S")}
        return clean | {MARK: str(self.root)}

    def fake(self, name: str, *arguments: str, speed: float = SPEED, sole: bool = False, **table: Any) -> int:
        """Add a server of the fake engine; its port. `sole` has it watched for a second copy."""
        port = free_ports(1)[0]
        command = [sys.executable, "-m", "supervisor.simulator", "--port", str(port), "--speed", str(speed), *arguments]
        if sole:
            command = [sys.executable, SOLE, str(self.root / f"{name}.lock"), *command]
        self.add(name, command, port=port, **table)
        return port

    def add(self, name: str, command: Sequence[str], **table: Any) -> None:
        """Add any server; with a port of its own, since two that name none share the engine's default one."""
        quick = {"restart": {"backoff": "100ms", "backoff_max": "1s", "jitter": 0.0}}
        self.servers[name] = {"command": list(command), "gpus": [], "port": free_ports(1)[0], **quick, **table}

    def write_config(self) -> Path:
        self.config.write_text(toml.document(self.settings, self.servers, self.groups))
        return self.config

    @property
    def bin(self) -> Path:
        return BIN

    # --- the daemon ----------------------------------------------------------------------------------------------

    def start(self, *arguments: str) -> "Daemon":
        """Start a daemon and wait until it is ready."""
        daemon = self.launch(*arguments)
        daemon.wait_until_said("ready")
        return daemon

    def launch(self, *arguments: str) -> "Daemon":
        """Start a daemon and do not wait."""
        command = [*self.prefix, str(BIN / "sglsup"), "daemon", "-c", str(self.write_config()), *arguments]
        self.daemon = Daemon(command, self.environment)
        self._daemons.append(self.daemon)
        return self.daemon

    def start_with(self, command: Sequence[str]) -> "Daemon":
        """Start a daemon by another command than the usual one, and wait until it is ready."""
        self.daemon = Daemon(command, self.environment)
        self._daemons.append(self.daemon)
        self.daemon.wait_until_said("ready")
        return self.daemon

    def refused(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a daemon that must not come up."""
        command = [*self.prefix, str(BIN / "sglsup"), "daemon", "-c", str(self.config), *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=READY_LIMIT_S)

    def said(self) -> str:
        return "\n".join(line for daemon in self._daemons for line in daemon.lines)

    # --- what an operator does and sees --------------------------------------------------------------------------

    def ctl(self, *words: str, limit_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """The real client."""
        return subprocess.run(
            self.client(*words), env=self.environment, capture_output=True, text=True, timeout=limit_s
        )

    def client(self, *words: str) -> list[str]:
        return [str(BIN / "sglctl"), "-s", self.socket, *words]

    def show(self, name: str) -> dict[str, Any]:
        """One server's facets."""
        answer: dict[str, Any] = api.get(self.socket, f"/v1/servers/{name}")
        return answer

    def why(self, name: str) -> str:
        done = self.ctl("why", name)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait_for(self, name: str, facet: str, value: str, limit_s: float = 20.0, since: int = 0) -> dict[str, Any]:
        """The first event after `since` by which the server's facet got the value; AssertionError when none comes."""
        seen = []
        try:
            for event in api.follow(self.socket, since, limit_s):
                if event["server"] == name:
                    seen.append(
                        f"{event['at']} {event['facet']} {event['before']} -> {event['after']}: {event['reason']}"
                    )
                    if (event["facet"], event["after"]) == (facet, value):
                        return event
        except TimeoutError:
            pass
        raise AssertionError(
            f"{name}: {facet} did not become {value} within {limit_s} s\n"
            + "\n".join(seen[-40:])
            + "\n"
            + self.said()[-3000:]
        )

    def events(self, name: str, facet: str) -> list[dict[str, Any]]:
        """What happened to a facet so far, oldest first."""
        answer = api.get(self.socket, f"/v1/events?since=0&limit=1000&server={name}")
        return [event for event in answer["events"] if event["facet"] == facet]

    def lifecycle(self, name: str) -> list[str]:
        return [event["after"] for event in self.events(name, "lifecycle")]

    # --- what is on the host -------------------------------------------------------------------------------------

    def processes(self, name: str, attempt: int | None = None) -> dict[int, str]:
        """Processes of a server (of one attempt) that carry the daemon's mark."""
        prefix = f"SGLSUP_TREE={name}:" + (f"{attempt}:" if attempt is not None else "")
        return marks.marked(prefix.encode(), self.mark)

    def collisions(self, name: str) -> str:
        path = self.root / f"{name}.lock.collisions"
        return path.read_text() if path.exists() else ""

    def starts(self, name: str) -> int:
        path = self.root / f"{name}.lock.starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def cgroup(self) -> Path | None:
        """Where the daemon puts its servers' cgroups, when it has any."""
        for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            path = Path(mount, f"sglang-supervisor-{str(self.state_dir).strip('/').replace('/', '-')}")
            if path.is_dir():
                return path
        return None


class Daemon:
    """The daemon's process, and what it says on stderr, line by line."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._over = False
        self._quit = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stderr is not None
        rest = b""
        while not self._quit.is_set():
            if not select.select([self.process.stderr], [], [], 0.1)[0]:
                continue
            data = os.read(self.process.stderr.fileno(), 65536)
            *lines, rest = (rest + data).split(b"\n")
            with self._news:
                self.lines += [line.decode(errors="replace") for line in lines]
                self._news.notify_all()
            if not data:
                break
        with self._news:
            self._over = True
            self._news.notify_all()

    def wait_until_said(self, event: str, limit_s: float = READY_LIMIT_S, **fields: Any) -> dict[str, Any]:
        """The first JSON line with this event and these fields."""
        until = time.monotonic() + limit_s
        with self._news:
            while True:
                for line in self.lines:
                    said = json.loads(line) if line.startswith("{") else {}
                    if said.get("event") == event and fields.items() <= said.items():
                        return said
                if self._over or not self._news.wait(until - time.monotonic()):
                    raise AssertionError(f"the daemon never said {event} {fields}, but:\n" + "\n".join(self.lines))

    def stop_reading(self) -> None:
        """Close the pipe that it writes its log to."""
        self._quit.set()
        self._reader.join(END_LIMIT_S)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def kill(self) -> None:
        """As the OOM killer does."""
        self.process.kill()
        self.process.wait(END_LIMIT_S)

    def ended(self, limit_s: float = END_LIMIT_S) -> int:
        """The exit status, once it has ended by itself."""
        status = self.process.wait(limit_s)
        self._reader.join(limit_s)
        return status

    def end(self) -> int:
        """Ask it to end, as systemd does; its exit status, 1000 when it had to be killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            status = self.ended()
        except subprocess.TimeoutExpired:
            self.kill()
            status = NEVER_ENDED
        self._reader.join(END_LIMIT_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status

    def memory_bytes(self, key: str = "VmHWM") -> int:
        """Of /proc/PID/status, by default the largest resident size so far."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
        raise LookupError(key)


def catches(process: Path, number: int) -> bool:
    """Whether what stands below /proc handles the signal: a shell dies of one that comes before its trap."""
    status = (process / "status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


def until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    """For what sends no event (files, /proc): look again and again, for a bounded time."""
    end = time.monotonic() + limit_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, f"not within {limit_s} s: {what}"
        pause.wait(0.02)


def _remove_cgroup(path: Path | None) -> None:
    """What a killed daemon could not remove itself."""
    if path is None:
        return
    for inner in sorted((one for one in path.rglob("*") if one.is_dir()), reverse=True):
        inner.rmdir()
    path.rmdir()
