"""A real SGLang on the CPU under the daemon: started, watched, crippled, restarted, stopped without a trace."""

import contextlib
import http.client
import itertools
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from bench.site import free_ports
from tests.real.setup_sglang_cpu import Install, default_root

BIN = Path(sys.executable).parent
NAME = "tiny"
START_LIMIT_S = 300  # 20-50 s on a quiet machine, 137 s seen on a crowded one
NOTICE_LIMIT_S = 120  # a parent without its scheduler hangs for 5 s and then ends itself
STOP_LIMIT_S = 60
WAIT_LAG_LIMIT_S = 1.0  # 100 ms are promised and tested with virtual time; here two Pythons start on a busy machine
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

    def __init__(self, folder: Path, install: Install, ranks: int = 1) -> None:
        self.socket = folder / "control.sock"
        self.logs = folder / "log"
        self.logs.mkdir()
        self.config = folder / "supervisor.toml"
        self.config.write_text(configuration(folder, install, free_ports(1)[0], ranks))
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

    def status_of_record(self) -> int:
        """The attempt that the daemon has written down, read while there is no daemon."""
        record = json.loads((self.config.parent / "state" / "servers" / f"{NAME}.json").read_text())
        return int(record["number"])

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


def configuration(folder: Path, install: Install, port: int, ranks: int) -> str:
    """TOML strings are JSON strings here: nothing in them needs another escape."""
    environment = ", ".join(f"{key} = {json.dumps(value)}" for key, value in install.environment(ranks).items())
    command = install.command("--port", str(port), "--tp", str(ranks))
    return f"""
[daemon]
socket = "{folder}/control.sock"
state_dir = "{folder}/state"
log_dir = "{folder}/log"
listen = ""

[server.{NAME}]
command = {json.dumps(command)}
gpus = []
autostart = false
environment = {{ {environment} }}
stop = {{ grace = "20s" }}
restart = {{ backoff = "1s" }}
readiness = {{ interval = "500ms" }}
serving = {{ stopped = "8s" }}
"""


@pytest.fixture
def site(tmp_path: Path, install: Install) -> Iterator[Site]:
    yield from living(Site(tmp_path, install))


@pytest.fixture
def site_of_two(tmp_path: Path, install: Install) -> Iterator[Site]:
    yield from living(Site(tmp_path, install, ranks=2))


def living(site: Site) -> Iterator[Site]:
    try:
        site.start_daemon()
        yield site
    finally:
        clean_up(site)


def test_a_server_is_started_watched_restarted_and_stopped(site: Site) -> None:
    tell = Teller()
    assert site.ctl("start", NAME).returncode == 0
    eventually(lambda: site.status()["verdict"]["value"] == "warming", NOTICE_LIMIT_S, "checked, spawned and warming")
    site.wait_healthy()
    lag_s = seconds_since(site.status()["ready_since"])
    tell(f"healthy; `wait` was back {lag_s:.2f} s after that, client and a status call included")
    assert lag_s < WAIT_LAG_LIMIT_S
    first = tree_of(site)
    tell(f"{len(first)} processes; phases seen in the log: {', '.join(sorted(site.phases()))}")
    assert site.phases() >= EXPECTED_PHASES, site.status()
    assert refused_while_warming(site.log_text()), "503 was answered before 200"

    scheduler(site).kill()
    tell("scheduler killed")
    eventually(lambda: site.status()["exit"] is not None, NOTICE_LIMIT_S, "the end of the first attempt")
    ended = site.status()
    tell(f"{ended['lifecycle']['value']}: exit {ended['exit']['code']}, {ended['lifecycle']['reason']}")
    tell(f"cause: {ended['diagnosis'] and ended['diagnosis']['cause']}")
    eventually(lambda: site.status()["attempt"] == 2, NOTICE_LIMIT_S, "a second attempt")
    assert [identity for identity in first if identity.alive] == [], "the old tree is gone before the next start"
    site.wait_healthy()
    tell("healthy again")
    second = tree_of(site)
    assert not {one.pid for one in first} & {one.pid for one in second}
    assert site.status()["restarts"] == 1

    stopped = scheduler(site)
    stopped.send_signal(signal.SIGSTOP)
    tell("scheduler stopped (SIGSTOP): /health will answer nothing for 20 s, /model_info goes on")
    eventually(lambda: "is stopped (T)" in str(site.status()["verdict"]), NOTICE_LIMIT_S, "the stall's name")
    tell(f"named: {site.status()['verdict']['reason']}")
    eventually(lambda: site.status()["attempt"] == 3, NOTICE_LIMIT_S, "a third attempt")
    assert [identity for identity in second if identity.alive] == [], "the stalled tree is gone before the next start"
    tell("killed, proven empty, started again")
    print(site.ctl("why", NAME).stdout)
    site.wait_healthy()
    tell("healthy again")
    third = tree_of(site)

    assert site.daemon is not None
    site.daemon.kill()
    site.daemon.wait(STOP_LIMIT_S)
    assert [identity for identity in third if not identity.alive] == [], "the servers live on without their daemon"
    before = site.status_of_record()
    site.start_daemon()
    eventually(lambda: site.lifecycle() == "running", NOTICE_LIMIT_S, "the adopted server is running")
    assert site.status()["pid"] == third[0].pid
    assert site.status()["attempt"] == before == 3
    tell("daemon killed (SIGKILL) and back: the server was adopted")
    second = third

    assert site.ctl("stop", NAME, limit_s=STOP_LIMIT_S).returncode == 0
    eventually(lambda: site.lifecycle() == "stopped", STOP_LIMIT_S, "the lifecycle 'stopped'")
    tell("stopped")
    assert [identity for identity in second if identity.alive] == []
    assert site.ctl("wait", NAME, "--timeout", "1s").returncode != 0, "nobody waits for a stopped server in vain"
    assert site.stop_daemon() == 0
    tell("daemon ended")


def test_two_ranks_are_followed_apart(site_of_two: Site) -> None:
    assert site_of_two.ctl("start", NAME).returncode == 0
    site_of_two.wait_healthy()

    spans = site_of_two.status()["start"]["timeline"]
    assert {"TP0", "TP1"} <= {span["rank"] for span in spans if span["phase"] == "weights"}
    tree = tree_of(site_of_two)
    # The daemon's own end is a stop of everything.
    assert site_of_two.stop_daemon() == 0
    assert [identity for identity in tree if identity.alive] == []


def test_an_upgrade_in_place_costs_a_streamed_answer_no_byte(site: Site) -> None:
    """Streams run without a pause while the daemon executes itself anew; each must say what it says undisturbed."""
    tell = Teller()
    assert site.ctl("start", NAME).returncode == 0
    site.wait_healthy()
    assert site.daemon is not None
    tree, port = tree_of(site), site.status()["port"]
    expected = Streamer.answer(port)
    assert len(expected.text) > 20, "random weights say little that can be shown, but something"
    streamer = Streamer(port)

    done = site.ctl("upgrade", limit_s=90)

    streamer.stop()
    assert done.returncode == 0, done.stderr
    assert streamer.problems == []
    at = moment_of(site, "makes way for the new code")
    across = [one for one in streamer.answers if one.began < at < one.ended]
    (took_s,) = (one.ended - one.began for one in across)
    tell(f"{done.stdout.strip()}; {len(streamer.answers)} streamed answers, one of {took_s:.1f} s across the exec")
    assert {one.text for one in streamer.answers} == {expected.text}, "no byte is missing, none is another"
    assert site.status()["pid"] == tree[0].pid
    assert site.status()["attempt"] == 1
    assert [one for one in tree if not one.alive] == []
    assert json.loads(site.ctl("version", "--json").stdout)["pid"] == site.daemon.pid
    assert site.lifecycle() == "running"
    assert site.ctl("stop", NAME, limit_s=STOP_LIMIT_S).returncode == 0
    assert [one for one in tree if one.alive] == []
    assert site.stop_daemon() == 0


class Answer(NamedTuple):
    """What was streamed, and when, by the wall clock."""

    text: str
    began: float
    ended: float


class Streamer:
    """One streamed request after another, until it is stopped: the last one is read to its end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._enough = threading.Event()
        self.answers: list[Answer] = []
        self.problems: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._enough.is_set():
            try:
                self.answers.append(self.answer(self._port))
            except (OSError, http.client.HTTPException, AssertionError) as problem:
                self.problems.append(repr(problem))
                return

    def stop(self) -> None:
        self._enough.set()
        self._thread.join(START_LIMIT_S)

    @staticmethod
    def answer(port: int) -> Answer:
        """The most probable words, so that every answer is the same; each event repeats what came before."""
        began = time.time()
        sampling = {"temperature": 0, "max_new_tokens": 500, "ignore_eos": True}
        asked = {"text": "a", "stream": True, "sampling_params": sampling}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_LIMIT_S)
        try:
            connection.request("POST", "/generate", json.dumps(asked), {"Content-Type": "application/json"})
            *events, last = connection.getresponse().read().strip().split(b"\n\n")
        finally:
            connection.close()
        assert last == b"data: [DONE]"
        texts = [str(json.loads(event[6:])["text"]) for event in events]
        assert all(longer.startswith(shorter) for shorter, longer in itertools.pairwise(texts))
        return Answer(texts[-1], began, time.time())


def moment_of(site: Site, event: str) -> float:
    """When the daemon said so; its stamps are local time."""
    lines = [json.loads(line) for line in site.output.read_text().splitlines() if line.startswith("{")]
    return next(datetime.fromisoformat(line["timestamp"]).timestamp() for line in lines if line["event"] == event)


class Teller:
    """Prints what happened and when; `make real` shows it."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def __call__(self, what: str) -> None:
        print(f"{time.monotonic() - self._begin:7.1f} s  {what}")


def seconds_since(moment: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()


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
