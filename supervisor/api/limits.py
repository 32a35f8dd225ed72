"""How long and how much the control socket puts up with."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """Bounds of one connection and of all of one listener. Tests shorten the times."""

    connections: int = 512
    admin_connections: int = 32  # more of them for root and the daemon's own user: whoever must stop the flood gets in
    tcp_connections: int = 256  # on each TCP port, which every local user reaches
    refused_connections: int = 16  # beyond all of these: told 503; further ones are cut, since each is a descriptor
    head_bytes: int = 64 * 1024
    body_bytes: int = 2**20
    head_timeout_s: float = 10.0  # a client that connects, or has had its answer, and sends no whole head
    body_timeout_s: float = 10.0  # a client that names a length and then sends nothing
    send_timeout_s: float = 30.0  # a reader who takes nothing
    keep_alive_s: int = 5  # between two requests
    goodbye_s: float = 1.0  # for answers under way when the daemon ends; followers are cut then


DEFAULTS = Limits()
