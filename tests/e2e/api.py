"""Talks to the daemon's socket as any HTTP client would: requests, and events as they happen, with bounded waits."""

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

from supervisor.cli.connection import connected


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("daemon", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = connected(self._path)
        self.sock.settimeout(self.timeout)


def get(path: str, target: str, timeout_s: float = 10.0) -> Any:
    """The JSON answer of a GET."""
    connection = UnixConnection(path, timeout_s)
    try:
        connection.request("GET", target)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def follow(path: str, since: int, limit_s: float) -> Iterator[dict[str, Any]]:
    """Events after `since`, first those that have been, then as they come; TimeoutError when `limit_s` is over."""
    until = time.monotonic() + limit_s
    connection = UnixConnection(path, limit_s)
    try:
        connection.request("GET", f"/v1/events?since={since}&follow=true")
        answer = connection.getresponse()
        while (left_s := until - time.monotonic()) > 0:
            assert connection.sock is not None
            connection.sock.settimeout(left_s)
            line = answer.readline()
            if not line:
                raise ConnectionError("the daemon ended the stream")
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
        raise TimeoutError
    finally:
        connection.close()
