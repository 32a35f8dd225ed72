"""A real SGLang on the CPU under the daemon: started, watched, crippled, restarted, stopped without a trace."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.real.setup_sglang_cpu import Install, default_root

BIN = Path(sys.executable).parent
NAME = "tiny"
START_LIMIT_S = 300  # 20-50 s on a quiet machine, 137 s seen on a crowded one
NOTICE_LIMIT_S = 120  # a parent without its scheduler hangs for 5 s and then ends itself
STOP_LIMIT_S = 60
# Phases that SGLang 0.5.23 prints on a CPU: no graphs, no draft model.
EXPECTED_PHASES = {"weights", "memory-pool"}

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def install() -> Install:
    found = Install(default_root())
    if not found.complete:
        pytest.skip(found.refusal or "the real SGLang is not installed: `make real` does it")
    return found


class Site:
    """A daemon with one real server, and the client's view of it."""

    def __init__(self, folder: Path, install: Install) -> None:
        self.socket = folder / "control.sock"
        self.logs = folder / "log"
        self.logs.mkdir()
        self.config = folder / "supervisor.toml"
        self.config.write_text(configuration(folder, install, free_port()))
        self.output = folder / "daemon.out"
        self.daemon: subprocess.Popen[bytes] | None = None

    def start_daemon(self) -> None:
        with self.output.open("wb") as output:
            command = [BIN / "sglsup", "daemon", "-c", self.config]
            self.daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        eventually(
            lambda: self.ctl("version").returncode == 0, 30, f"an answer of the daemon: {self.output.read_text()}"
        )

    def stop_daemon(self) -> int:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGTERM)
        return self.daemon.wait(STOP_LIMIT_S)

    def ctl(self, *arguments: str, limit_s: float = 30) -> subprocess.CompletedProcess[str]:
        command = [BIN / "sglctl", "-s", self.socket, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)

    def status(self) -> dict[str, Any]:
        done = self.ctl("status", "--json", NAME)
        (server,) = json.loads(done.stdout)["servers"]
        assert isinstance(server, dict)
        return server

    def lifecycle(self) -> str:
        return str(self.status()["lifecycle"]["value"])

    def phases(self) -> set[str]:
        return {span["phase"] for span in self.status()["start"]["timeline"]}

    def wait_healthy(self) -> None:
        done = self.ctl("wait", NAME, "--timeout", f"{START_LIMIT_S}s", limit_s=START_LIMIT_S + 30)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}{self.ctl('why', NAME).stdout}"

    def log_text(self) -> str:
        return Path(self.status()["log_path"]).read_text(errors="replace")


class Identity(NamedTuple):
    """A process that cannot be mistaken for a later one of the same pid."""

    pid: int
    create_time: float

    @property
    def alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.create_time and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def configuration(folder: Path, install: Install, port: int) -> str:
    """TOML strings are JSON strings here: nothing in them needs another escape."""
    environment = ", ".join(f"{key} = {json.dumps(value)}" for key, value in install.environment().items())
    return f"""
[daemon]
socket = "{folder}/control.sock"
state_dir = "{folder}/state"
log_dir = "{folder}/log"
listen = ""

[server.{NAME}]
command = {json.dumps(install.command("--port", str(port)))}
gpus = []
autostart = false
environment = {{ {environment} }}
stop = {{ grace = "20s" }}
restart = {{ backoff = "1s" }}
readiness = {{ interval = "500ms" }}
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@pytest.fixture
def site(tmp_path: Path, install: Install) -> Iterator[Site]:
    made = Site(tmp_path, install)
    try:
        made.start_daemon()
        yield made
    finally:
        clean_up(made)


def test_a_server_is_started_watched_restarted_and_stopped(site: Site) -> None:
    assert site.ctl("start", NAME).returncode == 0
    site.wait_healthy()
    first = tree_of(site)
    assert site.phases() >= EXPECTED_PHASES, site.status()
    assert refused_while_warming(site.log_text()), "503 was answered before 200"

    scheduler(site).kill()
    eventually(lambda: site.status()["attempt"] == 2, NOTICE_LIMIT_S, "a second attempt")
    assert [identity for identity in first if identity.alive] == [], "the old tree is gone before the next start"
    site.wait_healthy()
    second = tree_of(site)
    assert not {one.pid for one in first} & {one.pid for one in second}

    assert site.ctl("stop", NAME, limit_s=STOP_LIMIT_S).returncode == 0
    eventually(lambda: site.lifecycle() == "stopped", STOP_LIMIT_S, "the lifecycle 'stopped'")
    assert [identity for identity in second if identity.alive] == []
    assert site.stop_daemon() == 0


def refused_while_warming(log: str) -> bool:
    """The engine's own access lines: our probes got 503 first and 200 at the end."""
    answers = re.findall(r'"GET /health\S* HTTP/1\.1" (\d+)', log)
    return "503" in answers and answers[-1] == "200" and answers.index("503") < answers.index("200")


def tree_of(site: Site) -> list[Identity]:
    parent = psutil.Process(site.status()["pid"])
    return [Identity(one.pid, one.create_time()) for one in (parent, *parent.children(recursive=True))]


def scheduler(site: Site) -> psutil.Process:
    children = psutil.Process(site.status()["pid"]).children(recursive=True)
    return next(child for child in children if "sglang::scheduler" in " ".join(child.cmdline()))


def eventually(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    give_up = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > give_up:
            pytest.fail(f"waited {limit_s} s in vain for {what}")
        time.sleep(0.1)


def clean_up(site: Site) -> None:
    """After a failure: end the daemon and all below it; after a success there is nothing to end."""
    if site.daemon is None or site.daemon.poll() is not None:
        return
    family = psutil.Process(site.daemon.pid).children(recursive=True)
    site.daemon.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        site.daemon.wait(STOP_LIMIT_S)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    site.daemon.kill()
    site.daemon.wait(STOP_LIMIT_S)
