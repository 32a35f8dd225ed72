"""The daemon becomes the installed version in place: same process, same servers, nobody refused, nothing lost."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import supervisor
from tests.e2e import api
from tests.e2e.host import BIN, Host, until
from tests.e2e.router import configure
from tests.faults.volume import Volume, missing_freezer

both_ways = pytest.mark.parametrize("cgroups", ["auto", pytest.param("off", marks=pytest.mark.slow)], indirect=True)
NEW = "9.9.9"
CROWDED_S = 60.0


@pytest.fixture
def installed(host: Host, monkeypatch: pytest.MonkeyPatch) -> "Installed":
    """The daemon runs from a copy of the package, which can be replaced under it."""
    one = Installed(host.root / "site")
    monkeypatch.setenv("PYTHONPATH", str(one.place))
    return one


class Installed:
    """A folder with the package in it, as an installation has one."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._copies = 0
        self.put()

    def put(self, version: str = supervisor.__version__, *, broken: bool = False) -> None:
        """Install a version at once, as `make install` does."""
        self._copies += 1
        fresh = self.place.with_name(f"site-{self._copies}")
        fresh.mkdir()
        shutil.copytree(Path(supervisor.__file__).parent, fresh / "supervisor")
        init = fresh / "supervisor/__init__.py"
        init.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{version}"', init.read_text()))
        if broken:
            (fresh / "supervisor/core/server.py").write_text("import nothing_of_this_name\n")
        link = self.place.with_name("site.new")
        link.symlink_to(fresh)
        link.replace(self.place)


class Asker:
    """Asks again and again over new connections until it is told to stop; keeps what went wrong."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._enough = threading.Event()
        self.answers = 0
        self.problems: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._enough.wait(0.02):
            try:
                self._ask()
                self.answers += 1
            except (OSError, http.client.HTTPException, ValueError) as problem:
                self.problems.append(repr(problem))

    def stop(self) -> None:
        self._enough.set()
        self._thread.join(20)


class Stream(threading.Thread):
    """One request to a server, whose answer flows slowly, since it is read slowly, until it is let go."""

    def __init__(self, port: int, tokens: int) -> None:
        super().__init__(daemon=True)
        self._port, self._tokens = port, tokens
        self.begun, self.let_go = threading.Event(), threading.Event()
        self.body = b""
        self.start()
        assert self.begun.wait(20), "the answer begins"

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        asked = {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": self._tokens}}
        connection.request("POST", "/generate", json.dumps(asked))
        answer = connection.getresponse()
        while piece := answer.read1(65536):
            self.body += piece
            self.begun.set()
            self.let_go.wait(0.2)
        connection.close()

    def events(self) -> list[bytes]:
        self.let_go.set()
        self.join(60)
        assert not self.is_alive()
        return [line for line in self.body.split(b"\n\n") if line]


def info(host: Host) -> dict[str, Any]:
    answer: dict[str, Any] = api.get(host.socket, "/v1/info")
    return answer


@both_ways
def test_the_new_version_takes_over_and_no_client_and_no_server_notices(host: Host, installed: Installed) -> None:
    port = host.fake("kimi", sole=True)
    daemon = host.start()
    host.wait_for("kimi", "lifecycle", "running")
    before, told = host.show("kimi"), host.events("kimi", "lifecycle")
    stream = Stream(port, tokens=12_000)
    asker = Asker(lambda: api.get(host.socket, "/v1/status"))

    installed.put(NEW)
    done = host.ctl("upgrade")
    asker.stop()

    assert (done.returncode, done.stdout) == (0, f"upgraded: {supervisor.__version__} -> {NEW}\n"), done.stderr
    assert stream.is_alive(), "the request outlasted the upgrade"
    events = stream.events()
    assert events[-1] == b"data: [DONE]"
    assert json.loads(events[-2][6:])["meta_info"]["completion_tokens"] == 12_000, "no byte is missing"
    assert asker.problems == []
    assert asker.answers > 0
    after = host.show("kimi")
    kept = ("pid", "attempt", "ready_since", "restarts", "state", "log_path")
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert (info(host)["pid"], info(host)["version"], info(host)["upgrades"]) == (daemon.pid, NEW, 1)
    assert host.events("kimi", "lifecycle")[: len(told)] == told, "what has happened is still told"
    assert host.ctl("version").stdout == f"{NEW}\n"
    assert zombies(daemon.pid) == []
    assert host.ctl("stop", "kimi").returncode == 0
    assert not host.processes("kimi")
    assert host.collisions("kimi") == ""


def zombies(parent: int) -> list[str]:
    """Dead children that nobody has asked for."""
    found = []
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        status = Path(f"/proc/{pid}/status").read_text()
        if "State:\tZ" in status:
            found.append(status.splitlines()[0])
    return found


def test_what_does_not_come_up_never_takes_over(host: Host, installed: Installed) -> None:
    host.add("kimi", ["sleep", "1000"])
    host.start()
    pid = spawned(host, "kimi")

    installed.put(NEW, broken=True)
    assert refusal(host) == "the new code says: ModuleNotFoundError: No module named 'nothing_of_this_name'"
    installed.put(NEW)
    good = host.config.read_text()
    host.config.write_text(good + "\nsize = 5\n")
    assert "server.kimi.size" in refusal(host)
    host.config.write_text(good.replace("1000", "2000"))
    assert refusal(host) == "the file wants kimi stopped or restarted; sglctl update first, or take that back"
    host.config.write_text(re.sub(r"state_dir = .*", f'state_dir = "{host.root}/other"', good, count=1))
    assert "the file names another state_dir" in refusal(host)
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        host.config.write_text(re.sub(r"listen = .*", f'listen = "{listen}"', good, count=1))
        assert f"cannot listen on {listen}" in refusal(host)
    host.config.write_text(good)

    assert (info(host)["version"], info(host)["upgrades"]) == (supervisor.__version__, 0)
    assert host.show("kimi")["pid"] == pid


def spawned(host: Host, name: str) -> int:
    """The pid of a server that is starting."""
    host.wait_for(name, "phase", "launch")
    return int(host.show(name)["pid"])


def refusal(host: Host) -> str:
    """Why an upgrade is refused: in one line, after which all is as before."""
    done = host.ctl("upgrade")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line.removeprefix("error: cannot upgrade: ").removesuffix("; the old code goes on")


@pytest.mark.slow
def test_nothing_is_executed_while_a_call_hangs_that_the_exec_would_wait_for(host: Host) -> None:
    upstream = host.root / "kimi.conf"
    os.mkfifo(new := host.root / f".{upstream.name}.new")  # whoever writes it waits for a reader
    configure(host, lb={"kind": "nginx", "file": str(upstream), "reload": ["true"], "period": "1s"})
    host.fake("kimi")
    host.start()
    until(lambda: "has not answered" in host.ctl("routers").stdout, 60, "the router's disk hangs")
    said = refusal(host)
    assert said.startswith(f"its disk ({upstream}) has not answered for "), said
    assert said.endswith(": the new code could not begin before that comes back")
    reader = os.open(new, os.O_RDONLY | os.O_NONBLOCK)
    until(lambda: host.ctl("upgrade").returncode == 0, 60, "the disk is back")
    os.close(reader)


@pytest.mark.slow
def test_when_the_exec_fails_the_old_code_goes_on(host: Host) -> None:
    """The trial is the last that comes up: it makes the script unusable."""
    script = host.root / "sglsup"
    text = (BIN / "sglsup").read_text()
    script.write_text(
        text.replace("import sys", "import os, sys\nif '--try' in sys.argv: os.chmod(__file__, 0o644)", 1)
    )
    script.chmod(0o755)
    server = "trap 'exit 7' USR1; while :; do sleep 0.05; done"
    host.add("kimi", ["sh", "-c", server])
    daemon = host.start_with([str(script), "daemon", "-c", str(host.write_config())])
    pid = spawned(host, "kimi")

    done = host.ctl("upgrade")

    assert done.returncode == 1
    assert done.stderr == f"ERROR (cannot execute {script}: Permission denied; the old code goes on)\n"
    assert host.show("kimi")["pid"] == pid
    assert info(host)["pid"] == daemon.pid
    os.kill(pid, signal.SIGUSR1)
    assert "status 7" in host.wait_for("kimi", "lifecycle", "stopping")["reason"], "it is still our child"


@pytest.mark.slow
def test_a_file_that_is_edited_during_the_exec_ends_no_server_and_no_daemon(host: Host) -> None:
    """The new code goes by what was tried; the file as it is now is told by the next look at it."""
    script = host.root / "sglsup"
    edit = f"import os, sys\nif 'SGLSUP_HANDOVER' in os.environ: open({str(host.config)!r}, 'w').write('[server.b')"
    script.write_text((BIN / "sglsup").read_text().replace("import sys", edit, 1))
    script.chmod(0o755)
    for name in ("a", "b"):
        host.add(name, ["sleep", "1000"])
    daemon = host.start_with([str(script), "daemon", "-c", str(host.write_config())])
    before = {name: spawned(host, name) for name in ("a", "b")}

    done = host.ctl("upgrade")

    assert done.returncode == 0, done.stderr
    assert host.config.read_text() == "[server.b"
    assert (info(host)["pid"], info(host)["upgrades"]) == (daemon.pid, 1)
    assert {name: host.show(name)["pid"] for name in before} == before
    assert "cannot use" in host.ctl("reread").stderr


@pytest.mark.slow
def test_the_new_code_serves_where_the_file_wants_it(host: Host) -> None:
    host.add("kimi", ["sleep", "1000"])
    host.start()
    pid = spawned(host, "kimi")
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    host.config.write_text(re.sub(r"listen = .*", f'listen = "127.0.0.1:{port}"', host.config.read_text(), count=1))

    assert host.ctl("upgrade").returncode == 0

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        assert answer.status == 200
    assert host.show("kimi")["pid"] == pid


@pytest.mark.slow
def test_who_waits_or_follows_goes_on_with_the_new_code(host: Host) -> None:
    host.fake("kimi", autostart=False)
    count = "trap 'exit 7' USR1; n=0; while :; do n=$((n+1)); echo line $n; sleep 0.02; done"
    host.add("odd", ["sh", "-c", count])
    host.start()
    spawned(host, "odd")
    with (
        client(host, "wait", "kimi", "--timeout", "60s") as waiting,
        client(host, "events", "-f", "--json", "kimi") as following,
        client(host, "tail", "-f", "odd") as reading,
    ):
        until(lambda: guests(host) == 3, CROWDED_S, "all have come")

        assert host.ctl("upgrade").returncode == 0
        assert host.ctl("start", "kimi").returncode == 0

        assert waiting.communicate(timeout=CROWDED_S) == ("kimi: healthy\n", None)
        assert following.stdout is not None
        assert any('"running"' in line for line in following.stdout), "the change after the upgrade is told"
        following.send_signal(signal.SIGINT)
        assert following.wait(CROWDED_S) == 0
        reading.send_signal(signal.SIGINT)
        numbers = [int(line.split()[1]) for line in reading.communicate(timeout=CROWDED_S)[0].splitlines()[1:-1]]
        assert numbers == list(range(numbers[0], numbers[-1] + 1)), "no line is missing, none came twice"
        assert reading.returncode == 0
    os.kill(host.show("odd")["pid"], signal.SIGUSR1)
    assert "status 7" in host.wait_for("odd", "lifecycle", "stopping")["reason"], "its parent is the same process"


def guests(host: Host) -> int:
    """Connections that the daemon has to its clients."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return sum(row[-1] == host.socket and row[5] == "03" for row in rows)


def client(host: Host, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(host.client(*words), env=host.environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_signal_that_comes_in_between_is_heeded(host: Host) -> None:
    host.fake("kimi", autostart=False)
    daemon = host.start()
    with client(host, "upgrade", "--timeout", "1s") as upgrading:
        daemon.wait_until_said("makes way for the new code", CROWDED_S)

        daemon.process.terminate()

        assert daemon.ended(CROWDED_S) == 0
        daemon.wait_until_said("asked to end", by="SIGTERM")
        upgrading.communicate(timeout=CROWDED_S)


@pytest.mark.slow
def test_no_upgrade_breaks_off_a_rolling_restart(host: Host) -> None:
    for name in ("a", "b"):
        host.fake(name)
    host.start()
    for name in ("a", "b"):
        assert host.ctl("wait", name, "--timeout", "30s").returncode == 0
    with client(host, "restart", "--rolling", "a", "b") as rolling:
        host.wait_for("a", "rolling", "under-way")

        said = refusal(host)

        assert "wait for it, or cancel it" in said, said
        rolling.communicate(timeout=CROWDED_S)
    assert rolling.returncode == 0


@pytest.mark.slow
def test_on_a_disk_that_hangs_the_old_code_goes_on(host: Host) -> None:
    """No exec ends before whoever waits for the disk in the kernel: nobody would decide anything until then."""
    if lacking := missing_freezer():
        pytest.skip(lacking)
    host.fake("kimi")
    host.state_dir.mkdir()
    with Volume.of_image(host.state_dir, host.root / "image", host.environment) as disk:
        host.prefix = disk.prefix
        daemon = host.start()
        assert host.ctl("wait", "kimi", "--timeout", "30s").returncode == 0
        disk.freeze()

        said = refusal(host)

        assert "the disk has not answered" in said, said
        assert host.show("kimi")["healthy"]
        disk.thaw()
        assert daemon.end() == 0


# When the upgrade begins: the facet and value to wait for, and the scenario that leads there.
MOMENTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "loading": ("phase", "weights", ()),
    "capturing": ("phase", "target-graph", ()),
    "killing": ("lifecycle", "stopping", ("--scenario", "stall:phase=weights", "--scenario", "ignore-term")),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_server_goes_on_whatever_it_was_at(host: Host, moment: str) -> None:
    """Slowly, so that the new code finds it where the old one left it."""
    facet, value, scenario = MOMENTS[moment]
    host.fake("kimi", "--tp", "2", *scenario, speed=40, sole=True, deadlines={"weights": {"stall": "3s"}})
    host.start()
    event = host.wait_for("kimi", facet, value, CROWDED_S)
    before = host.show("kimi")

    assert host.ctl("upgrade").returncode == 0

    if moment == "killing":
        host.wait_for("kimi", "lifecycle", "starting", CROWDED_S, since=event["id"])
        assert not host.processes("kimi", event["attempt"]), "nothing of the old tree is left when the new one starts"
    else:
        until(lambda: host.show("kimi")["lifecycle"]["value"] == "running", CROWDED_S, "it is healthy")
        after = host.show("kimi")
        kept = ("pid", "attempt", "restarts", "budget_remaining")
        assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
        ids = [one["id"] for one in host.events("kimi", "phase")]
        assert ids == sorted(set(ids)), "followers can resume"
    assert host.collisions("kimi") == ""
