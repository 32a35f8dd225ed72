"""The verb that replaces the daemon's code in place, and sees what becomes of it."""

from __future__ import annotations

import time

from supervisor.cli import codes
from supervisor.cli.connection import UnreachableError
from supervisor.cli.text import clean, complain, complain_each, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from supervisor.cli.connection import Client

TRIAL_LIMIT_S = 60.0  # the daemon itself gives the new code half a minute
_PAUSE_S = 0.1


class EndedError(Exception):
    """The daemon's process is not there any more; the text says what has come of it."""


def upgrade(client: Client, options: Namespace) -> int:
    """`upgraded: 0.1.0 -> 0.2.0` when the new code answers; 1 when the old one goes on or the daemon has ended in it.

    5 when nobody answers.
    """
    pid = client.get("/v1/info")["pid"]
    begun = client.post("/v1/upgrade", timeout_s=TRIAL_LIMIT_S)
    try:
        info = _successor(client, begun["upgrades"], pid, options.timeout)
    except EndedError as problem:
        complain(f"ERROR (the daemon, pid {pid}, has ended in the upgrade: {problem})")
        return codes.ERROR
    if info is None:
        complain(f"ERROR (the new code, {begun['after']}, does not answer within {options.timeout:g} s)")
        return codes.TIMED_OUT
    if info["upgrade_problem"]:
        complain_each("ERROR (", info["upgrade_problem"], ")")
        return codes.ERROR
    say(f"upgraded: {clean(begun['before'])} -> {clean(info['version'])}")
    return codes.OK


def _successor(client: Client, before: int, pid: int, limit_s: float) -> Any:
    """What the code says that came after so many upgrades; None when none does in time. EndedError.

    The socket stays open all the while, but an answer under way may be cut.
    """
    until = time.monotonic() + limit_s
    seen = client.local and _lives(pid)  # not in a container of its own
    while (left_s := until - time.monotonic()) > 0:
        try:
            info = client.get("/v1/info", max(1.0, left_s))
            if info["pid"] != pid:
                raise EndedError(f"another one has been started, pid {info['pid']}; see the log for why")
            if info["upgrades"] > before:
                return info
        except UnreachableError:
            if seen and not _lives(pid):
                raise EndedError("its servers go on alone until one is started; see its log for why") from None
        time.sleep(_PAUSE_S)
    return None


def _lives(pid: int) -> bool:
    """Whether this host shows such a process. One that nobody has waited for yet is over as well."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False
