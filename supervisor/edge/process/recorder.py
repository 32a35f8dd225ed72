"""Stays behind as the server's parent, writes how the server ended, and ends alike.

A part of the launcher, which reads it into itself (`launch.py`) on kernels that tell an exit status to the parent
alone; never imported. As there, only modules without an import price are used: this program stays as long as the
server.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # as in launch.py
import os

PASSED_ON = (1, 2, 10, 12, 15)  # HUP INT USR1 USR2 TERM
SIGQUIT = 3


def stay_behind(order: int, answer: int, record: int) -> None:
    """Return in a child that is to become the server. The parent never returns. The arguments are descriptors."""
    child = os.fork()
    if child == 0:
        os.setsid()
        os.set_inheritable(record, False)
        os.write(answer, b"=%d\0" % os.getpid())
        return
    try:
        detach(child, (order, answer))
        code = wait_and_note(child, record)
        end_alike(code)
    finally:
        os._exit(127)


def detach(child: int, daemons: tuple[int, int]) -> None:
    """Hold nothing of the server's: not the daemon's pipe, not its log, not its directory. Pass signals on to it.

    SIGQUIT is how orphaned ranks tell their parent of a failure: the daemon ignores it, and so does who stands between.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2, *daemons):
        os.dup2(null, descriptor)
    os.chdir("/")
    with open("/proc/self/comm", "wb") as file:
        file.write(b"sglsup-record")
    _signal.signal(SIGQUIT, _signal.SIG_IGN)
    for number in PASSED_ON:
        _signal.signal(number, lambda number, _: os.kill(child, number))


def wait_and_note(child: int, record: int) -> int:
    """Wait as long as the server lives; write how it ended, as -signal or status, before it is reaped.

    Whoever kills us in between leaves it to our own parent, unreaped.
    """
    ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert ended is not None  # noqa: S101 - only WNOHANG answers None
    code: int = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    try:
        os.write(record, b"%d\n" % code)
        os.fsync(record)
    except OSError:  # a full disk: our own end still tells our parent
        pass
    for number in PASSED_ON:  # its pid is about to be anybody's
        _signal.signal(number, _signal.SIG_DFL)
    os.waitpid(child, 0)
    return code


def end_alike(code: int) -> None:
    if code >= 0:
        os._exit(code)
    import resource  # the server has left its core, if it was to: ours is worth nothing

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:  # noqa: SIM105
        _signal.signal(-code, _signal.SIG_DFL)
    except OSError:  # SIGKILL
        pass
    os.kill(os.getpid(), -code)
