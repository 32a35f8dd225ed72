"""A connection to the daemon's socket is waited for while many want one."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from supervisor.cli.connection import connected


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[socket.socket]:
    """A listener that takes nobody, and before which as many stand as may."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(tmp_path / "socket"))
        listener.listen(1)
        for _ in itertools.count():
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            try:
                waiting.connect(str(tmp_path / "socket"))
            except BlockingIOError:
                break
        yield listener


def test_who_comes_while_many_connect_waits_for_his_turn(crowded: socket.socket) -> None:
    taken: list[socket.socket] = []
    later = threading.Timer(0.2, lambda: taken.append(crowded.accept()[0]))
    later.start()
    with connected(crowded.getsockname()):
        later.join()
    for one in taken:
        one.close()
    assert taken


def test_the_wait_has_an_end(crowded: socket.socket) -> None:
    with pytest.raises(TimeoutError):
        connected(crowded.getsockname(), 0.05)
