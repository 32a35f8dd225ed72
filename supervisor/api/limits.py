"""How long and how much the control socket puts up with."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """Bounds of one connection and of all of them. Tests shorten the times."""

    connections: int = 512
    head_bytes: int = 64 * 1024
    body_bytes: int = 2**20
    head_timeout_s: float = 10.0  # a client that connects and says nothing
    body_timeout_s: float = 10.0  # a client that names a length and then sends nothing
    send_timeout_s: float = 30.0  # a reader who takes nothing
    keep_alive_s: int = 5  # between two requests
    goodbye_s: float = 1.0  # for answers under way when the daemon ends; followers are cut then


DEFAULTS = Limits()
