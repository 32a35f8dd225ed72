"""An event loop in virtual time: what awaits in the shell runs here as it is, and a timer is one of the fleet's deeds."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

Later = Callable[[float, Callable[[], None]], None]  # at that moment, this


class VirtualLoop(asyncio.AbstractEventLoop):
    """One for each daemon's life. Nothing here waits, polls or starts a thread; `turn` runs whatever is ready."""

    def __init__(self, now: Callable[[], float], later: Later) -> None:
        self._now = now
        self._later = later
        self._ready: deque[asyncio.Handle] = deque()
        self._turning = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self.bugs: list[BaseException] = []

    # --- what the fleet does -----------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Run everybody who can go on at this moment."""
        if self._turning or not self._ready:
            return
        self._turning = True
        asyncio._set_running_loop(self)
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(None)
            self._turning = False
        if self.bugs:
            raise self.bugs[0]

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object, name: str = "") -> None:
        """As a task group's. What the task raises comes out of `turn`."""
        self.create_task(work(*arguments), name=name or work.__name__)

    def end(self) -> None:
        """The daemon is killed: nobody goes on. Whoever cleans up after himself finds a daemon that does nothing."""
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(Exception):  # what has gone wrong has been raised before
            self.turn()

    # --- what asyncio asks of a loop ---------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now()

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._later(when, lambda: self._ready.append(handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now() + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self.bugs.append(bug)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.bugs.append(context.get("exception") or AssertionError(context["message"]))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._turning

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Its moment passes without anybody."""
