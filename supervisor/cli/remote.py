"""Reaches another host's daemon through ssh, which knows who we are there: no port, no password of our own."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from collections.abc import Callable

from supervisor.cli.connection import Client

SSH_END_TIMEOUT_S = 5.0


def remote_client(host: str, socket_option: str | None) -> Client:
    """A client of ssh://USER@HOST[:PORT]. $SGLCTL_SSH names another ssh; `sglctl` must be on the host's PATH."""
    words = ["sglctl", *(["-s", socket_option] if socket_option else []), "connect"]
    # "--": a host that begins with "-" is no option of ssh.
    command = [
        *shlex.split(os.environ.get("SGLCTL_SSH", "ssh")),
        "-T",
        "-o",
        "BatchMode=yes",
        "--",
        host,
        shlex.join(words),
    ]
    return Client(host, lambda: _dial(command))


def _dial(command: list[str]) -> tuple[socket.socket, Callable[[], None]]:
    """ssh with one end of a socket pair as its standard input and output; its complaints go to ours."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno())
        except BaseException:
            ours.close()
            raise
    return ours, lambda: _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Its input has ended, so it ends by itself; one that does not is stopped."""
    try:
        process.wait(SSH_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
