"""The page of a made-up daemon, served in a thread so that a browser can be driven beside it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from tests.api.fake import FakeControl, served_on_tcp


class Site:
    """Where it is, and how to change what it shows."""

    def __init__(self, control: FakeControl, loop: asyncio.AbstractEventLoop, port: int) -> None:
        self.control = control
        self.url = f"http://127.0.0.1:{port}/"
        self._loop = loop

    def do(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run something in the daemon's loop."""
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(20)


@contextlib.contextmanager
def site(make: Callable[[], FakeControl]) -> Iterator[Site]:
    """Served until the context ends. The daemon is made inside its own loop."""
    started, found = threading.Event(), list[Site]()
    ends: list[Callable[[], object]] = []

    async def serve() -> None:
        control, ended = make(), asyncio.Event()
        loop = asyncio.get_running_loop()
        async with served_on_tcp(control) as port:
            found.append(Site(control, loop, port))
            ends.append(lambda: loop.call_soon_threadsafe(ended.set))
            started.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield found[0]
    finally:
        ends[0]()
        thread.join(20)
        assert not thread.is_alive()
