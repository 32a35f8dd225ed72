"""Records what a real SGLang does in a few scenarios, as fixtures for tests that have none.

    .venv/bin/python -m tests.real.record [SCENARIO ...]

Each scenario writes NAME.log (stdout and stderr on one file, as under the daemon, paths made neutral) and NAME.json
(what was seen from outside, in seconds since the start) below tests/data/sglang/real-0.5.23-cpu/.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from bench.site import free_ports
from tests.real.setup_sglang_cpu import VERSION, Install, default_root

TARGET = Path(__file__).resolve().parents[1] / "data" / "sglang" / f"real-{VERSION}-cpu"
START_LIMIT_S = 300
STOP_LIMIT_S = 60
PROBE_TIMEOUT_S = 30  # a good /health takes 1 s, one of a hung server 20 s
PROBE_PERIOD_S = 0.2


class Recording:
    """One server, its timeline and the way to end it."""

    def __init__(self, install: Install, log: Path, ranks: int = 1) -> None:
        self.port = free_ports(1)[0]
        self.timeline: list[dict[str, object]] = []
        self._begin = time.monotonic()
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                install.command("--port", str(self.port), "--tp", str(ranks)),
                env=os.environ | install.environment(ranks),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.note("started")

    def note(self, what: str) -> None:
        self.timeline.append({"at_s": round(time.monotonic() - self._begin, 2), "what": what})
        print(f"{self.timeline[-1]['at_s']:>8} {what}", file=sys.stderr, flush=True)

    def wait_healthy(self) -> None:
        last = ""
        while self.process.poll() is None and time.monotonic() < self._begin + START_LIMIT_S:
            answer = probe(self.port)
            if answer != last:
                self.note(f"/health {answer}")
            if answer == "200":
                return
            last = answer
            time.sleep(PROBE_PERIOD_S)
        raise SystemExit(f"cannot record: the server did not become healthy in {START_LIMIT_S} s")

    def signal(self, process: psutil.Process | subprocess.Popen[bytes], number: signal.Signals, who: str) -> None:
        self.note(f"{number.name} to {who}")
        process.send_signal(number)

    def child(self, title: str) -> psutil.Process:
        """The engine's child whose title begins with TITLE (SGLang pads titles with blanks)."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next(child for child in children if " ".join(child.cmdline()).startswith(title))

    def wait_exit(self) -> None:
        status = self.process.wait(STOP_LIMIT_S)
        self.note(f"exit {status}")

    def sweep(self) -> None:
        """End whatever is left of the session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_LIMIT_S)


def healthy_start(install: Install, log: Path) -> Recording:
    with swept(Recording(install, log)) as recording:
        recording.wait_healthy()
        recording.signal(recording.process, signal.SIGTERM, "the parent")
        recording.wait_exit()
    return recording


def killed_scheduler(install: Install, log: Path) -> Recording:
    with swept(Recording(install, log)) as recording:
        recording.wait_healthy()
        recording.signal(recording.child("sglang::scheduler"), signal.SIGKILL, "the scheduler")
        recording.wait_exit()
    return recording


def two_ranks(install: Install, log: Path) -> Recording:
    with swept(Recording(install, log, ranks=2)) as recording:
        recording.wait_healthy()
        recording.signal(recording.process, signal.SIGTERM, "the parent")
        recording.wait_exit()
    return recording


SCENARIOS: dict[str, Callable[[Install, Path], Recording]] = {
    "healthy-start-tp1": healthy_start,
    "killed-scheduler-tp1": killed_scheduler,
    "healthy-start-tp2": two_ranks,
}


def main(names: list[str]) -> None:
    install = Install(default_root())
    install.build()
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in names or SCENARIOS:
        print(name, file=sys.stderr)
        with tempfile.TemporaryDirectory() as scratch:
            log = Path(scratch) / "log"
            recording = SCENARIOS[name](install, log)
            (TARGET / f"{name}.log").write_bytes(neutral(log.read_bytes(), install))
        (TARGET / f"{name}.json").write_text(json.dumps(recording.timeline, indent=1) + "\n")


def neutral(log: bytes, install: Install) -> bytes:
    """The log with the machine's own paths replaced."""
    replaced = {
        str(install.model): "/models/tiny",
        str(install.python.parents[1]): "/venv",
        str(install.root): "/cache",
        os.path.realpath(sys.base_prefix): "/usr",
        str(Path.home()): "/home/user",
    }
    for original, neutral_name in replaced.items():
        log = log.replace(original.encode(), neutral_name.encode())
    return log


@contextlib.contextmanager
def swept(recording: Recording) -> Iterator[Recording]:
    try:
        yield recording
    finally:
        recording.sweep()


def probe(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=PROBE_TIMEOUT_S) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except (ConnectionError, TimeoutError, urllib.error.URLError) as error:
        return type(getattr(error, "reason", error)).__name__


if __name__ == "__main__":
    main(sys.argv[1:])
