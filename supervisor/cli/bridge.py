"""Joins standard input and output to the daemon's socket: the far end of `sglctl -H`."""

from __future__ import annotations

import os
import selectors
import socket
import sys

from supervisor.cli import codes
from supervisor.cli.connection import Client, advise, connected, reason
from supervisor.cli.text import complain

CHUNK_BYTES = 65536


def connect(client: Client) -> int:
    """Until either side ends. The other end of ours is an sglctl, which speaks HTTP."""
    try:
        connection = connected(client.path)
    except (OSError, ValueError) as error:
        complain(f"cannot reach the daemon at {client.path}: {reason(error)}{advise(client.path, error)}")
        return codes.UNKNOWN
    with connection, selectors.DefaultSelector() as selector:
        connection.settimeout(None)  # both ends have time-outs of their own
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ, True)
        selector.register(connection, selectors.EVENT_READ, False)
        while all(_pump(connection, from_stdin=key.data) for key, _ in selector.select()):
            pass
    return codes.OK


def _pump(connection: socket.socket, *, from_stdin: bool) -> bool:
    """Carry what has come; False at the end, which either side may also make by going away."""
    try:
        if from_stdin:
            data = os.read(sys.stdin.fileno(), CHUNK_BYTES)
            connection.sendall(data, socket.MSG_NOSIGNAL)
        else:
            data = connection.recv(CHUNK_BYTES)
            _write_all(sys.stdout.fileno(), data)
    except ConnectionError:
        return False
    return bool(data)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
