"""Tries the code that an upgrade would execute, in a child: does it load, does it take our arguments and our file?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from supervisor.api.control import UpgradeRefusedError
from supervisor.threads import Threads

TRY = "--try"
LIMIT_S = 30.0
_TOLD_LINES = 3
_trials = Threads("the file system")
# It has nothing to tell in our name, and nobody has left anything to it.
_NOT_FOR_IT = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def own_command(
    original: Sequence[str] = sys.orig_argv, words: Sequence[str] = sys.argv, interpreter: str = sys.executable
) -> tuple[str, ...]:
    """What to execute in order to be started as we were.

    A script is executed itself: the new one may name another interpreter. `python -m supervisor.main` keeps ours.
    """
    before = list(original[1 : len(original) - len(words[1:])])
    if before == [words[0]] and os.access(words[0], os.X_OK):
        return (os.path.abspath(words[0]), *words[1:])
    return (interpreter, *before, *words[1:])


async def tried(command: Sequence[str], environment: Mapping[str, str], limit_s: float = LIMIT_S) -> str:
    """The version of what would be executed. UpgradeRefusedError when it does not come up or refuses the file."""
    words = [*command, TRY]
    clean = {name: text for name, text in environment.items() if name not in _NOT_FOR_IT}
    try:
        return await _trials.run(_try, words, clean, limit_s, limit_s=limit_s + 1.0)
    except TimeoutError as problem:
        raise UpgradeRefusedError(_refusal(f"it cannot even be started: {problem.strerror}")) from None


def _try(words: Sequence[str], environment: Mapping[str, str], limit_s: float) -> str:
    try:
        done = subprocess.run(
            words,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
        )
    except OSError as problem:
        raise UpgradeRefusedError(_refusal(f"cannot execute {words[0]}: {problem.strerror}")) from None
    except subprocess.TimeoutExpired:
        raise UpgradeRefusedError(_refusal(f"it was not ready within {limit_s:g} s")) from None
    version = done.stdout.strip()
    if done.returncode != 0 or not version or len(version.split()) != 1:
        raise UpgradeRefusedError(_refusal(_said(done)))
    return version


def _refusal(why: str) -> str:
    return f"cannot upgrade: {why}; the old code goes on"


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """A traceback's last line tells most; what refuses a configuration tells it in its first."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    if not lines:
        return f"the new code ended with status {done.returncode} and without a word"
    told = lines[-1:] if lines[0].startswith("Traceback") else lines[:_TOLD_LINES]
    return f"the new code says: {'; '.join(told)}"
