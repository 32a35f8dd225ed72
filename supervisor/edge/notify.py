"""Tells systemd how we are: one datagram a message, nothing at all where no systemd listens (sd_notify(3))."""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections.abc import Mapping


class Notifier:
    """Made from the environment that systemd gave us."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._watchdog_usec = environment.get("WATCHDOG_USEC", "")
        self._for_us = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())

    @property
    def active(self) -> bool:
        """Whether anybody listens."""
        return bool(self._address)

    @property
    def watchdog_s(self) -> float | None:
        """How often at least systemd wants to hear from us; None when it does not watch."""
        if not (self._for_us and self._watchdog_usec.isdecimal()):
            return None
        return int(self._watchdog_usec) / 1e6 or None

    def send(self, *descriptors: int, **fields: str) -> None:
        """Send `READY="1"`, `STATUS="…"` and the like, with descriptors for `FDSTORE`. A lost message is no failure."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        data = "\n".join(f"{name}={' '.join(value.splitlines())}" for name, value in fields.items()).encode()
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.setblocking(False)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            out.sendmsg([data], rights, 0, address)
