"""Rows: clients that flood the socket, hold it and never read; a configuration that is torn while it is read."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator

from tests.e2e import api
from tests.faults.row import Row
from tests.faults.scene import Scene

HELD = 400  # connections that say half a word
HAMMERS = 8
FLOOD_S = 6.0
HALF = b"GET /v1/servers HTT"
FOLLOW = b"GET /v1/events?since=0&follow=true HTTP/1.1\r\nHost: d\r\n\r\n"
GARBAGE = b"\x16\x03\x01\x00\xa5" * 2000 + b"\r\n\r\n"


def flood(scene: Scene) -> str:
    """Half-open connections, followers that never read, garbage, and eight clients that ask as fast as they can."""
    scene.bad("kimi")
    daemon = scene.start()
    pid = scene.is_running("kimi")["pid"]
    before = daemon.memory_bytes("VmRSS")
    asked = [0] * HAMMERS
    over = threading.Event()
    with held(scene, HELD) as connected:
        threads = [
            threading.Thread(target=hammer, args=(scene.socket, asked, number, over)) for number in range(HAMMERS)
        ]
        for thread in threads:
            thread.start()
        begun = time.monotonic()
        over.wait(FLOOD_S)
        stopped = scene.ctl("stop", "kimi").returncode
        started = scene.ctl("start", "kimi", "--wait", "--timeout", "30s").returncode
        took_s = time.monotonic() - begun - FLOOD_S
        over.set()
        for thread in threads:
            thread.join(30)
    assert (stopped, started) == (0, 0)
    assert scene.is_running("kimi")["pid"] != pid
    grown = daemon.memory_bytes() - before
    return (
        f"{connected} connections held, {sum(asked)} requests in {FLOOD_S + took_s:.0f} s, {grown / 2**20:.0f} MiB more;"
        f" a stop and a start took {took_s:.1f} s meanwhile"
    )


@contextlib.contextmanager
def held(scene: Scene, count: int) -> Iterator[int]:
    """How many of so many connections were taken; the others are refused or wait."""
    with contextlib.ExitStack() as stack:
        connected = 0
        for number in range(count):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(1.0)
            try:
                connection.connect(scene.socket)
                connection.sendall((HALF, FOLLOW, GARBAGE)[number % 3])
            except OSError:
                continue
            connected += 1
        yield connected


def hammer(path: str, asked: list[int], number: int, over: threading.Event) -> None:
    while not over.is_set():
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            api.get(path, ("/v1/servers", "/metrics", "/v1/events?since=0&limit=1000", "/nowhere")[number % 4])
        asked[number] += 1


def torn_configuration(scene: Scene) -> str:
    """Read again while it is half written, empty, a directory and gone; then whole."""
    scene.bad("kimi")
    scene.start()
    pid = scene.is_running("kimi")["pid"]
    whole = scene.config.read_bytes()
    torn = (whole[: len(whole) // 2], b"\xff\xfe", b"[server.kimi]\n")
    for text in torn:
        scene.config.write_bytes(text)
        assert scene.ctl("reread").returncode != 0
        assert scene.ctl("update").returncode != 0
    scene.config.unlink()
    assert scene.ctl("update").returncode != 0
    scene.config.mkdir()
    assert scene.ctl("update").returncode != 0
    scene.config.rmdir()
    scene.config.write_bytes(whole)
    assert scene.ctl("update").returncode == 0
    assert scene.is_running("kimi")["pid"] == pid
    return f"{len(torn) + 2} broken files refused, the server let be, the whole one read"


ROWS = (
    Row(
        "socket flood: half-open connections, followers that never read, garbage, and clients that ask without pause",
        "status, stop and start are answered all the same",
        flood,
    ),
    Row(
        "configuration read again while it is torn, binary, incomplete, gone and a directory",
        "refused, nothing stopped, the whole file read afterwards",
        torn_configuration,
        quick=True,
    ),
)
