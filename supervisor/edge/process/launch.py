"""Becomes the server: joins its cgroup, drops privileges, sets limits and execs the command.

Run as a script by `spawn` (`python -I -S launch.py`), never imported: a fresh small interpreter can do every
step in the right order (the cgroup needs root, the directory must be entered as the user) and can tell the daemon the
errno of the step that failed, which `sh -c 'exec …'` cannot (it answers 127, and so may a server). It costs about
8 ms; only modules without an import price are used (`signal` and `contextlib` would double it).

Descriptor 3 brings the order (marshal: same interpreter on both ends). Descriptor 4 takes "+" just before the exec,
then "step\\0errno\\0subject" when a step fails, and closes by itself when the exec succeeds: "+" alone means that it
did, and nothing at all that this program was killed on its way.

On a kernel that tells an exit status to the parent alone, the order says "record": then a child becomes the server (it
says "=PID\\0" before its "+"), and this program stays as its parent until it ends, writes how to descriptor 5, and ends
alike. The server leads a session of its own, as ever; nobody but the daemon knows of its parent.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the C half of `signal`: no `enum` to import
import errno
import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

ORDER, ANSWER, RECORD = 3, 4, 5


def main() -> None:
    order = read_order()
    done = ("read the order", "")
    try:
        for step, subject, work in steps(order):
            done = (step, subject)
            work()
        done = ("stay as recorder", "")
        if order["record"]:
            record_child()
        done = ("execute", order["command"][0])
        os.write(ANSWER, b"+")
        execute(order["command"], order["environment"])
    except (OSError, ValueError, OverflowError) as problem:
        number = problem.errno if isinstance(problem, OSError) and problem.errno else errno.EINVAL
        os.write(ANSWER, f"{done[0]}\0{number}\0{done[1]}".encode("utf-8", "surrogateescape"))
    os._exit(127)


def read_order() -> dict[str, Any]:
    os.set_inheritable(ORDER, False)
    os.set_inheritable(ANSWER, False)
    with open(ORDER, "rb") as file:
        order: dict[str, Any] = marshal.loads(file.read())  # noqa: S302 - written by the daemon, into anonymous memory
    return order


def steps(order: dict[str, Any]) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """What must be done, in this order, as (step, subject, work)."""
    if order["cgroup"]:
        yield "join the cgroup", order["cgroup"], lambda: write(order["cgroup"] + "/cgroup.procs", "0")
    yield "set oom_score_adj", str(order["oom_score_adj"]), lambda: protect(order["oom_score_adj"])
    if order["nice"] is not None:
        yield "set nice", str(order["nice"]), lambda: os.setpriority(os.PRIO_PROCESS, 0, order["nice"])
    for number, name, soft, hard in order["limits"]:
        yield f"set limit {name}", f"{soft}:{hard}", limiter(number, soft, hard)
    if order["uid"] is not None:
        yield "become user", str(order["uid"]), lambda: become(order["uid"], order["gid"], order["groups"])
    yield "enter the directory", order["directory"], lambda: os.chdir(order["directory"])
    yield "set umask", oct(order["umask"]), lambda: os.umask(order["umask"])
    yield "close descriptors", "", lambda: close_inherited(RECORD if order["record"] else ANSWER)
    # The interpreter ignores SIGPIPE and SIGXFSZ, and what is ignored stays ignored across exec.
    yield "reset signals", "", lambda: [_signal.signal(number, _signal.SIG_DFL) for number in (13, 25)]


def close_inherited(last: int) -> None:
    """What the daemon itself inherited without close-on-exec (a shell's pipe) must not be held open by a server."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > last:
            try:  # noqa: SIM105 - contextlib has an import price
                os.close(int(name))
            except OSError:  # the listing's own descriptor
                pass


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def protect(wanted: int | None) -> None:
    with open("/proc/self/oom_score_adj", "rb") as file:
        current = int(file.read())
    score = server_score(wanted, current)
    if score != current:
        write("/proc/self/oom_score_adj", str(score))


def server_score(wanted: int | None, current: int) -> int:
    """None means: give back the kernel's default where the daemon protected itself, and change nothing otherwise."""
    return max(0, current) if wanted is None else wanted


def limiter(number: int, soft: int, hard: int | None) -> Callable[[], None]:
    import resource  # an extension module: loaded only by servers that have limits

    present = resource.getrlimit(number)[1]
    return lambda: resource.setrlimit(number, (soft, present if hard is None else hard))


def become(uid: int, gid: int, groups: list[int]) -> None:
    if os.geteuid() == 0:
        os.setgroups(groups)
    if gid != os.getegid():
        os.setresgid(gid, gid, gid)
    if uid != os.geteuid():
        os.setresuid(uid, uid, uid)


def record_child() -> None:
    """Return in a child that is to become the server, see `recorder.py`: read only where there is one, to save time."""
    names: dict[str, Any] = {}
    with open(os.path.join(os.path.dirname(__file__), "recorder.py"), "rb") as file:
        exec(file.read(), names)  # noqa: S102 - a part of this program
    names["stay_behind"](ORDER, ANSWER, RECORD)


def execute(command: list[str], environment: dict[str, str]) -> None:
    """Search the server's own PATH, as its user, and exec. Returns only by raising the most telling OSError."""
    name = command[0]
    if "/" in name:
        os.execve(name, command, environment)
    told = None
    for place in environment.get("PATH", os.defpath).split(":"):
        try:
            os.execve(os.path.join(place or ".", name), command, environment)
        except OSError as problem:
            if problem.errno not in (errno.ENOENT, errno.ENOTDIR):
                told = problem
    raise told or OSError(errno.ENOENT, os.strerror(errno.ENOENT))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main()
