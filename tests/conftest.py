"""Ends a test run red when a process that it started, however far it has detached itself, is still alive.

Every process inherits the run's mark in its environment, so that double-forked ones are found as well.
"""

import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from supervisor.edge.process import HELPER_NAME

# A crowded machine is slow, and no example of ours is a measurement; the limit of a test's own time remains.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

pytest_plugins = ("tests.nvml",)  # the fixture `fake_nvml`: GPUs that are not there
MARK = "SGLSUP_TEST_RUN"
LEFT_OVER_STATUS = 1
LINGER_S = 2.0


def pytest_configure(config: pytest.Config) -> None:
    os.environ[MARK] = uuid.uuid4().hex
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Of a run in the background of a script, and inherited by every child: no Ctrl-C would reach any of them.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_helper() -> Iterator[None]:
    """A household marks its process, that is us, as a daemon's: what a later test starts would be taken for its helper."""
    yield
    os.environ.pop(HELPER_NAME, None)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    found = {pid: command_line(pid) for pid in lasting_processes(os.environ[MARK])}
    for pid in found:
        kill(pid)
    survivors = session.config.stash.setdefault(SURVIVORS, {})
    survivors.update(found)
    if survivors:
        session.exitstatus = LEFT_OVER_STATUS
    if hasattr(session.config, "workeroutput"):  # of several workers: who sums up must hear of it
        session.config.workeroutput["survivors"] = {str(pid): command for pid, command in found.items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker has ended; one that crashed has left nothing to read."""
    told = getattr(node, "workeroutput", {}).get("survivors", {})
    node.config.stash.setdefault(SURVIVORS, {}).update({int(pid): command for pid, command in told.items()})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    survivors = config.stash.get(SURVIVORS, {})
    if survivors:
        terminalreporter.section("processes that outlived the tests (killed now)", red=True)
    for pid, command in survivors.items():
        terminalreporter.line(f"{pid}: {command}")


SURVIVORS = pytest.StashKey[dict[int, str]]()


def lasting_processes(mark: str) -> list[int]:
    """Those still there after a moment: a process killed by the last test may need one to go."""
    give_up_s = time.monotonic() + LINGER_S
    while (pids := marked_processes(mark)) and time.monotonic() < give_up_s:
        time.sleep(0.05)
    return pids


def marked_processes(mark: str) -> list[int]:
    wanted = f"{MARK}={mark}".encode()
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and wanted in environment(pid)]


def environment(pid: int) -> list[bytes]:
    """Empty for zombies and for processes that are gone or another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def command_line(pid: int) -> str:
    """With the test that has started it, which pytest leaves in the environment."""
    test = [entry for entry in environment(pid) if entry.startswith(b"PYTEST_CURRENT_TEST=")]
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 ").split(b"\0")
    except OSError:
        return "(gone)"
    return b" ".join([*words, *test]).decode(errors="replace")[:400]


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
