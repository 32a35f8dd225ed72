"""A process tree made of bad manners, for the tests of whoever must kill it: standard library only.

    python tree.py SEED DEPTH MANNERS…

Every process writes "pid manner" to the file named by ZOO_REPORT, then makes its children and waits for two minutes (or
exits early, when that is its manner). The same seed makes the same tree. Nobody makes more than COUNT_LIMIT processes.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

COUNT_LIMIT = 12
GENERATIONS = 1000
LIFE_S = 120  # whoever escapes his test must not haunt the machine
MANNERS = (
    "plain", "double-fork", "setsid", "daemonize", "ignore-term", "exit-first", "close-files", "rename",
    "stopped", "new-group", "exec", "forking",
)  # fmt: skip
WIPING = "wipe-environment"  # leaves no marker: only cgroup, session or the kernel's adoption tell


class Chance:
    """The same numbers for the same seed; the module `random` would triple a tree's start."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, end: int) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self._state >> 33) % end


def main() -> None:
    seed, depth, manners = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or list(MANNERS)
    grow(Chance(seed), depth, manners, [COUNT_LIMIT])
    rest()


def grow(chance: Chance, depth: int, manners: list[str], left: list[int]) -> None:
    """Behave badly, then make one to three children that do the same."""
    manner = manners[chance.below(len(manners))]
    behave(manner, chance)
    report(manner)
    for _ in range(1 + chance.below(3) if depth else 0):
        if left[0] <= 0:
            return
        left[0] -= 1
        seed = chance.below(1 << 30)
        if os.fork() == 0:
            left[0] = left[0] // 3  # what a child may make is no longer ours to make
            grow(Chance(seed), depth - 1, manners, left)
            rest()
        left[0] -= left[0] // 3
    if manner == "exit-first":
        os._exit(0)


def behave(manner: str, chance: Chance) -> None:
    tricks: dict[str, Callable[[], object]] = {
        "plain": lambda: None,
        "exit-first": lambda: None,
        "double-fork": leave_parent,
        "daemonize": lambda: (leave_parent(), own_session(), leave_parent()),
        "setsid": own_session,
        "new-group": own_group,
        "ignore-term": ignore_signals,
        "close-files": lambda: os.closerange(0, 64),
        "rename": lambda: rename(f"zoo ({chance.below(9)}) )"),
        "stopped": stop_child,
        "exec": lambda: os.fork() or os.execv(*sleeper()),
        "forking": lambda: os.fork() or fork_on_and_on(),
        WIPING: wipe,
    }
    tricks[manner]()


def sleeper(*words: str) -> tuple[str, list[str]]:
    return sys.executable, [sys.executable, "-S", "-E", "-c", f"import time; time.sleep({LIFE_S})", *words]


def own_group() -> None:
    if os.getpid() != os.getsid(0):
        os.setpgid(0, 0)


def ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


def rename(name: str) -> None:
    with open("/proc/self/comm", "w") as file:
        file.write(name)


def leave_parent() -> None:
    """Fork and let the parent end: whoever remains is handed to init or the nearest subreaper."""
    if os.fork():
        os._exit(0)


def own_session() -> None:
    """A group leader cannot make a session: become a child first."""
    if os.getpid() == os.getpgid(0) and os.fork():
        rest()
    os.setsid()


def stop_child() -> None:
    if os.fork() == 0:
        report("stopped")
        os.kill(os.getpid(), signal.SIGSTOP)
        rest()


def fork_on_and_on() -> None:
    """A moving target: each generation lives for some milliseconds and is followed by another pid. Two at once."""
    for _ in range(GENERATIONS):
        if os.fork():
            time.sleep(0.02)
            os._exit(0)
        time.sleep(0.01)
    os._exit(0)


def wipe() -> None:
    """Leave the session, the parent and the marked environment behind, by exec."""
    leave_parent()
    os.setsid()
    leave_parent()
    report("wiped")
    os.execve(*sleeper("zoo-wiped", os.environ["ZOO_REPORT"]), {})


def report(manner: str) -> None:
    fd = os.open(os.environ["ZOO_REPORT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(fd, f"{os.getpid()} {manner}\n".encode())
    os.close(fd)


def rest() -> None:
    time.sleep(LIFE_S)
    os._exit(0)


if __name__ == "__main__":
    main()
