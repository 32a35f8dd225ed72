"""Weighs one look at a server's devices and ports: go on, wait, give up, or put the server aside."""

from __future__ import annotations

import enum

from supervisor.events import DevicesChecked

_OTHERS = frozenset({"foreign", "server"})


class Answer(enum.StrEnum):
    """What a look at the devices lets the server do."""

    PROCEED = "proceed"
    WAIT = "wait"  # what is in the way is our own affair: patience has an end
    WAIT_FOR_OTHERS = "wait for others"  # without an end, and without counting against the server's own patience
    GIVE_UP = "give up"
    ISOLATE = "isolate"


def weigh(seen: DevicesChecked, *, starting: bool, waited_long: bool) -> Answer:
    """`starting`: the devices are wanted for a start; else their memory is to be proven back after an end.

    To rest needs no port, no healthy device and nobody else's memory: only what was ours must be back.
    """
    if seen.clean is not False:
        return Answer.PROCEED  # also when nobody can tell: unknown is no reason to wait
    if seen.waiting:
        return Answer.WAIT_FOR_OTHERS
    if seen.refuse:
        return Answer.GIVE_UP if starting else Answer.PROCEED
    if seen.quarantined and starting:
        return Answer.ISOLATE
    if seen.ports or (seen.holders and all(holder.kind in _OTHERS for holder in seen.holders)):
        return Answer.WAIT_FOR_OTHERS if starting else Answer.PROCEED
    return Answer.ISOLATE if waited_long else Answer.WAIT
