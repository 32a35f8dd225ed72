"""What the kernel says of real processes: whole ones, dead ones, and such as live on without their first thread."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.procstat import Process, parse, read

NOBODY = 2**22 + 1  # above the highest pid that there can be

# Its second thread sees the first one end, says so, and waits for a signal.
BEHEADED = """
import ctypes, signal, threading
def stay():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        pass
    print("alone", flush=True)
    signal.pause()
threading.Thread(target=stay).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def beheaded() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose first thread has called pthread_exit while another one lives."""
    with subprocess.Popen([sys.executable, "-c", BEHEADED], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"alone\n"
        yield process
        process.kill()


def seen(pid: int) -> Process:
    process = read(pid)
    assert process is not None
    return process


def test_our_own_process() -> None:
    process = seen(os.getpid())
    assert (process.pid, process.parent) == (os.getpid(), os.getppid())
    assert (process.group, process.session) == (os.getpgid(0), os.getsid(0))
    assert process.name == Path("/proc/self/comm").read_text().rstrip("\n")
    assert process.alive
    assert process.first_thread_alive
    assert not process.headless
    assert process.identity == (os.getpid(), process.start_ticks)
    assert process.identity == seen(os.getpid()).identity, "as long as it lives"
    used_s = sum(os.times()[:2])
    assert abs(seen(os.getpid()).cpu_ticks / os.sysconf("SC_CLK_TCK") - used_s) < 1


def test_threads_are_counted() -> None:
    before = seen(os.getpid()).threads
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert seen(os.getpid()).threads == before + 1
    over.set()
    thread.join()


def test_a_thread_has_a_line_of_its_own() -> None:
    name = b"third) R 1 (x"
    found: list[bytes] = []

    def say() -> None:
        ctypes.CDLL(None).prctl(15, name, 0, 0, 0)  # PR_SET_NAME, of this thread
        found.append(Path(f"/proc/self/task/{threading.get_native_id()}/stat").read_bytes())

    thread = threading.Thread(target=say)
    thread.start()
    thread.join()
    process = parse(1, found[0])
    assert (process.name, process.parent, process.state) == (name.decode(), os.getppid(), "R")


@pytest.mark.parametrize(("end", "status"), [("exit 3", 3 << 8), ("kill -9 $$", 9)])
def test_a_zombie_is_dead_and_tells_its_parent_how_it_ended(end: str, status: int) -> None:
    with subprocess.Popen(["sh", "-c", end]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
        zombie = seen(process.pid)
        assert (zombie.state, zombie.wait_status) == ("Z", status)
        assert not zombie.alive
        assert not zombie.first_thread_alive
        assert not zombie.headless


def test_a_process_whose_first_thread_has_ended_lives_as_long_as_another(beheaded: subprocess.Popen[bytes]) -> None:
    process = seen(beheaded.pid)
    assert process.state == "Z", "the state is the first thread's"
    assert process.alive
    assert process.headless
    assert not process.first_thread_alive
    assert Path(f"/proc/{beheaded.pid}/cmdline").read_bytes() == b""
    beheaded.kill()
    os.waitid(os.P_PID, beheaded.pid, os.WEXITED | os.WNOWAIT)
    dead = seen(beheaded.pid)
    assert dead.identity == process.identity
    assert (dead.alive, dead.headless, dead.wait_status) == (False, False, signal.SIGKILL)


@pytest.mark.parametrize("pid", [0, -1, NOBODY])
def test_there_is_no_such_process(pid: int) -> None:
    assert read(pid) is None


def test_not_being_able_to_look_is_no_answer() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            read(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_kernel_that_tells_less_of_the_dead_leaves_the_status_open() -> None:
    fields = ["Z", "1", *["0"] * 15, "1", "0", "4711", *["0"] * 20]
    assert parse(7, f"7 (a b) {' '.join(fields)}\n".encode()) == Process(7, 4711, 1, 0, 0, "Z", "a b", threads=1)


def test_a_name_that_is_no_text_is_shown_all_the_same() -> None:
    fields = ["S", "1", *["0"] * 15, "1", "0", "4711", *["0"] * 30]
    assert parse(7, b"7 (a\xff) " + " ".join(fields).encode()).name == "a\\xff"
