"""Ends the launcher the way each dialect does: an exit code after a sweep, or SIGKILL of the tree and itself."""

from __future__ import annotations

import os
import signal
import time
from typing import NoReturn

from supervisor.simulator import texts
from supervisor.simulator.children import Child
from supervisor.simulator.clock import Log
from supervisor.simulator.plan import Plan
from supervisor.simulator.processes import kill_descendants


class ExitError(Exception):
    """The launcher ends with this code; raised so that the stack unwinds as after sys.exit."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit {code}")
        self.code = code


class Ending:
    """The ways out. From 0.5.13 each of them announces itself in the log."""

    def __init__(self, plan: Plan, log: Log) -> None:
        self._announces = plan.dialect.announces_kill
        self._log = log

    def announce_kill(self, include_parent: bool) -> None:
        if self._announces:
            self._log.record(texts.kill_process_tree(os.getpid(), include_parent))

    def leave(self, code: int) -> NoReturn:
        """launch_server's `finally: kill_process_tree(include_parent=False)`."""
        self.announce_kill(include_parent=False)
        kill_descendants(os.getpid())
        raise ExitError(code)

    def die_of(self, number: signal.Signals) -> NoReturn:
        """The signal's default action: whoever watches the parent dies with it, whoever does not stays."""
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(1.0)  # the signal is delivered before kill returns
        raise ExitError(1)

    def kill_tree_and_self(self) -> NoReturn:
        """kill_process_tree(include_parent=True): the engine's own way to die, exit code -9."""
        self.announce_kill(include_parent=True)
        kill_descendants(os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)
        raise ExitError(1)


def exit_code(child: Child) -> int | None:
    """None while it lives; -9 once it was collected before."""
    try:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
    except ChildProcessError:
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(status) if pid else None
