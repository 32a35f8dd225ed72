"""Does to processes what SGLang does through setproctitle, prctl and psutil, with the standard library alone."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_COMM_BYTES = 15  # the kernel cuts a thread name to 15 bytes
_SPAWN_MAIN = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle={pipe})"
_SPAWN = f"-c\0{_SPAWN_MAIN}\0--multiprocessing-fork"
_TRACKER = "-c\0from multiprocessing.resource_tracker import main;main(5)"


class ArgumentArea:
    """The memory that /proc/PID/cmdline shows; every forked child has its own copy to write on.

    setproctitle also moves into the environment's memory when a title is long. We do not: a supervisor may look for
    its marker in /proc/PID/environ. A title longer than the command line is cut.
    """

    def __init__(self) -> None:
        fields = _stat("self")
        # proc(5): arg_start and arg_end are fields 48 and 49; the list starts at field 3.
        self._start, self._end = int(fields[45]), int(fields[46])

    def write_command(self, arguments: str) -> None:
        """The interpreter and its NUL-separated arguments; without the interpreter's folder where room is short."""
        fits = len(sys.executable) + len(arguments) + 2 <= self._end - self._start
        interpreter = sys.executable if fits else sys.executable.rpartition("/")[2]
        self.write(f"{interpreter}\0{arguments}")

    def write(self, title: str) -> None:
        """The last byte stays NUL, else the kernel reads on into the environment (fs/proc/base.c)."""
        room = self._end - self._start
        if self._start == 0 or room < 2:
            return
        data = title.encode()[: room - 1]
        ctypes.memmove(self._start, data + b"\0" * (room - len(data)), room)


_libc = ctypes.CDLL(None, use_errno=True)


def look_like_spawned(area: ArgumentArea, pipe: int) -> None:
    """What a child of multiprocessing's spawn is called until its imports are over."""
    area.write_command(_SPAWN.format(pipe=pipe))


def look_like_resource_tracker(area: ArgumentArea) -> None:
    area.write_command(_TRACKER)


def set_title(area: ArgumentArea, title: str) -> None:
    """Like setproctitle, the real titles end in blanks; `comm` is cut by the kernel."""
    area.write(title.ljust(64))
    _libc.prctl(_PR_SET_NAME, title.encode()[:_COMM_BYTES], 0, 0, 0)


def die_with_parent() -> None:
    """kill_itself_when_parent_died(): set only after the imports and without a look at the parent (common.py:2440)."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def forbid_core_dumps() -> None:
    """SIGQUIT and the simulated native crashes must not litter the working directory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def fork(body: Callable[[], int]) -> int:
    """Run body in a child and leave it with body's status; the parent gets the child's pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        status = body()
    except Exception:  # noqa: BLE001 -- any bug must be seen, and a child may not return into its parent's frames
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def leave_orphan(area: ArgumentArea, life_s: float) -> None:
    """Double-fork a process into a session of its own that ignores TERM; it ends by itself after life_s."""

    def grandchild() -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # All pipes of the run: their end of file must tell of the others' death, whoever escaped.
        os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        set_title(area, "sglang::compile_worker")
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, life_s)
        while True:
            signal.pause()

    def child() -> int:
        os.setsid()
        fork(grandchild)
        return 0

    os.waitpid(fork(child), 0)


def kill_descendants(root: int) -> None:
    """kill_process_tree(include_parent=False): walks parent-child links, so it misses whoever was re-parented."""
    for pid in _descendants(root):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended between the listing and now


def _descendants(root: int) -> list[int]:
    parents = _parents()
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found[1:]


def _parents() -> dict[int, int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                parents[int(name)] = int(_stat(name)[1])
            except OSError:
                continue  # it ended between the listing and now
    return parents


def _stat(pid: str) -> list[str]:
    """Fields of /proc/PID/stat from the state on; the name before may contain anything, even a parenthesis."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
