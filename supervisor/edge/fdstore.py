"""Leaves descriptors with systemd, by name, for whoever runs the service after us (FDSTORE of sd_notify(3)).

systemd holds a duplicate of each while the unit is restarted, however we end, and passes them to the next process
beside the sockets of the socket unit. Where none listens, or the unit has no FileDescriptorStoreMax, nothing is held.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Protocol

_FIRST_PASSED = 3  # SD_LISTEN_FDS_START
_OURS = "leader/"  # sockets have their unit's name


class Sender(Protocol):
    """Tells systemd something, with descriptors (`edge.notify.Notifier.send` is one)."""

    def __call__(self, *descriptors: int, **fields: str) -> None: ...


class DescriptorStore:
    """What systemd holds of ours, by keys that nobody else has, such as a tree's marker."""

    def __init__(self, send: Sender, received: Mapping[str, int] | None = None) -> None:
        self._send = send
        self._received = dict(received or {})
        self._held = set(self._received)

    def received(self, key: str) -> int | None:
        """The descriptor that was left under this key; ours until `settle`."""
        return self._received.get(key)

    def settle(self, wanted: Iterable[str]) -> None:
        """Close what was received; systemd goes on holding what is wanted, and nothing else."""
        for key in self._received.keys() - set(wanted):
            self.forget(key)
        for descriptor in self._received.values():
            os.close(descriptor)
        self._received.clear()

    def keep(self, key: str, descriptor: int) -> None:
        """Have it held until `forget`."""
        if key in self._held:
            return
        self._held.add(key)
        # The code before an upgrade in place may have left it there, which nobody tells us: systemd would hold both.
        self._send(FDSTOREREMOVE="1", FDNAME=_name(key))
        # A pidfd hangs up when its process is over, which is when it is of use: without FDPOLL=0 it would be dropped.
        self._send(descriptor, FDSTORE="1", FDNAME=_name(key), FDPOLL="0")

    def forget(self, key: str) -> None:
        """Have it dropped; nothing happens where it is not held."""
        self._held.discard(key)
        self._send(FDSTOREREMOVE="1", FDNAME=_name(key))


def left_behind(environment: Mapping[str, str], pid: int) -> dict[str, int]:
    """What whoever ran before us has left to this process. No child of ours inherits it."""
    found: dict[str, int] = {}
    for descriptor, key in passed(environment, pid).items():
        with contextlib.suppress(OSError):  # it is not open: somebody has made up the environment
            os.set_inheritable(descriptor, False)
            _put(found, key, descriptor)
    return found


def passed(environment: Mapping[str, str], pid: int) -> dict[int, str]:
    """The keys of those among the descriptors that systemd passed to this process; the others are its sockets."""
    if environment.get("LISTEN_PID") != str(pid):
        return {}
    names = enumerate(environment.get("LISTEN_FDNAMES", "").split(":"), _FIRST_PASSED)
    return {descriptor: _key(name) for descriptor, name in names if name.startswith(_OURS)}


def _put(found: dict[str, int], key: str, descriptor: int) -> None:
    """One a key: a message to systemd can be lost, so that it holds two of the same leader."""
    if key in found:
        os.close(found[key])
    found[key] = descriptor


def _name(key: str) -> str:
    """systemd separates names by colons."""
    return _OURS + key.replace(":", "/")


def _key(name: str) -> str:
    return name.removeprefix(_OURS).replace("/", ":")
