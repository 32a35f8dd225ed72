"""Owns the demo's daemon and directory, so that nothing is left of them however the demo itself ends.

The demo holds the writing end of this process's standard input: when it closes (the demo is done, was interrupted,
crashed, was killed) the daemon is asked to stop its servers, and whatever carries the demo's mark afterwards is killed.
Run as `python -m supervisor.demo.keeper DIRECTORY [--keep]`; exit status 0 when the daemon ended as asked with nothing
left to kill, else 1 with a line each on standard error.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "SGLSUP_DEMO"  # in the environment of the daemon and, inherited, of everything that it starts
STOP_LIMIT_S = 20.0
SWEEP_LIMIT_S = 5.0
_PR_SET_PDEATHSIG = 1
_LAST_WORDS_MAX = 500
_TOLD_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: list[str]) -> int:
    """Keep the daemon until the demo ends."""
    directory, keep = arguments[0], "--keep" in arguments
    wake, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told)
    for number in _TOLD_TO_END:
        signal.signal(number, lambda *_: None)
    problems = list(_attend(_start_daemon(directory), wake, directory))
    problems += _sweep(f"{MARK}={directory}".encode())
    if not keep:
        shutil.rmtree(directory, ignore_errors=True)
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


def _start_daemon(directory: str) -> subprocess.Popen[bytes]:
    place = Path(directory)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SGLSUP_")}
    with (place / "daemon.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "supervisor.main", "daemon", "-c", str(place / "demo.toml")],
            env=environment | {MARK: directory},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_keeper,  # noqa: PLW1509 - this process has one thread
        )


def _die_with_keeper() -> None:
    """SIGTERM to the daemon when we are killed: it stops its servers by itself."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def _attend(daemon: subprocess.Popen[bytes], wake: int, directory: str) -> Iterator[str]:
    """Wait for the end of the demo or of the daemon, whichever comes first; end the daemon."""
    pidfd = os.pidfd_open(daemon.pid)
    ready, _, _ = select.select([sys.stdin.fileno(), wake, pidfd], [], [])  # as long as the demo lasts
    os.close(pidfd)
    if pidfd in ready:
        yield f"the daemon ended by itself with status {daemon.wait()}; its last words: {_last_words(directory)}"
        return
    daemon.send_signal(signal.SIGTERM)
    try:
        status = daemon.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()  # bounded by the kernel
        yield f"the daemon did not end within {STOP_LIMIT_S:.0f} s and was killed"
    else:
        if status != 0:
            yield f"the daemon ended with status {status}"


def _last_words(directory: str) -> str:
    lines = (Path(directory) / "daemon.log").read_text(errors="replace").splitlines()
    words = [line.strip(" |+-") for line in lines]  # the frame that a traceback of a group has around it
    return next((line[:_LAST_WORDS_MAX] for line in reversed(words) if line), "none")


def _sweep(mark: bytes) -> Iterator[str]:
    """Kill what carries the mark: nothing, unless the daemon was killed or has a bug."""
    left: set[int] = set()
    until = time.monotonic() + SWEEP_LIMIT_S
    while (alive := _marked(mark)) and time.monotonic() < until:
        left.update(alive)
        for pid in alive:
            _kill(pid)
        time.sleep(0.02)  # SIGKILL needs a moment; bounded by the limit above
    if alive:
        yield f"processes that cannot be killed: {', '.join(map(str, alive))}"
    elif left:
        yield f"{len(left)} processes were left and had to be killed"


def _marked(mark: bytes) -> list[int]:
    from supervisor.edge.process import scan  # anyio comes with it: not before the daemon has been started

    pids = [process.pid for process in scan.all_processes() if process.alive and process.pid != os.getpid()]
    return [pid for pid in pids if scan.carries_marker(pid, mark)]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
