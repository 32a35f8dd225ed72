"""Runs what may hang in threads that can be left behind: of each kind so many at most, counted until they come back.

anyio's limiter takes its token back as soon as whoever waits has left, although the thread still hangs: a look every
few seconds at a disk that hangs all night would leave thousands of them. Here a thread that was left keeps its place,
and whoever asks for the same thing meanwhile is told so at once instead of sending another one after it.
"""

from __future__ import annotations

import errno
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.to_thread
import msgspec

Arguments = TypeVarTuple("Arguments")
Found = TypeVar("Found")

HANGS_S = 1.0  # a call that was left hangs when it has taken so long; before that it may be about to come back
_LOOK_S = 0.02
_uncounted = anyio.CapacityLimiter(math.inf)  # we count ourselves
_lock = threading.Lock()  # around what the loop and the threads share; nobody holds it while work is done


class Hanging(msgspec.Struct, frozen=True):
    """A call that was given up, or whose asker has left, and that has not come back."""

    what: str
    since: float  # CLOCK_MONOTONIC: when it began


class _Call:
    """One piece of work on its way. `left`: nobody waits for it any more."""

    def __init__(self, who: str, thing: str) -> None:
        self.who = who
        self.thing = thing
        self.since = time.monotonic()
        self.begun = False
        self.over = False
        self.left = False

    @property
    def lingers(self) -> bool:
        return self.left and self.begun and not self.over

    @property
    def hangs(self) -> bool:
        return self.lingers and time.monotonic() - self.since >= HANGS_S


_calls: set[_Call] = set()


def hanging() -> tuple[Hanging, ...]:
    """All threads of this process that hang, the oldest first."""
    with _lock:
        left = [Hanging(f"{one.who} ({one.thing})" if one.thing else one.who, one.since) for one in _calls if one.hangs]
    return tuple(sorted(left, key=lambda one: one.since))


class Threads:
    """One kind of work. `who` is what may not answer ("the disk"): messages begin with it."""

    def __init__(self, who: str, at_most: int = 1) -> None:
        self._who = who
        self._at_most = at_most
        self._out: set[_Call] = set()
        self._waiting: list[anyio.Event] = []

    def hang(self, thing: str = "") -> bool:
        """Whether whoever asks now is refused at once."""
        with _lock:
            return bool(self._in_the_way(thing))

    async def run(
        self,
        work: Callable[[*Arguments], Found],
        *arguments: *Arguments,
        limit_s: float = math.inf,
        thing: str = "",
        unwanted: Callable[[Found], None] = lambda _: None,
    ) -> Found:
        """What the work answers. TimeoutError (an OSError) when it has not within `limit_s`; whoever cancels leaves it.

        TimeoutError at once while an earlier call for the same `thing` hangs, or as many as there may be threads.
        `unwanted` gets what was found when nobody waited for it any more, to close it.
        """
        with anyio.move_on_after(limit_s):
            call = await self._place(thing)
            return await self._carried(call, partial(work, *arguments), unwanted)
        raise TimeoutError(errno.ETIMEDOUT, f"{self._who} has not answered within {limit_s:g} s")

    async def _place(self, thing: str) -> _Call:
        while True:
            with _lock:
                self._refuse(thing)
                lingering = [call for call in self._out if call.lingers]
                if len(self._out) < self._at_most and not any(thing and call.thing == thing for call in lingering):
                    return self._begun(thing)
            if lingering:  # it tells nobody when it comes back, and hangs in a moment
                await anyio.sleep(_LOOK_S)
            else:  # for those that somebody waits for
                free = anyio.Event()
                self._waiting.append(free)
                await free.wait()

    def _begun(self, thing: str) -> _Call:
        call = _Call(self._who, thing)
        self._out.add(call)
        _calls.add(call)
        return call

    def _refuse(self, thing: str) -> None:
        if in_the_way := self._in_the_way(thing):
            hung_s = time.monotonic() - min(call.since for call in in_the_way)
            raise TimeoutError(errno.ETIMEDOUT, f"{self._who} has not answered for {hung_s:.0f} s")

    def _in_the_way(self, thing: str) -> list[_Call]:
        left = [call for call in self._out if call.hangs]
        same = [call for call in left if thing and call.thing == thing]
        return left if len(left) >= self._at_most else same

    async def _carried(self, call: _Call, work: Callable[[], Found], unwanted: Callable[[Found], None]) -> Found:
        found: list[Found] = []
        try:
            carry = partial(self._carry, call, work, found, unwanted)
            await anyio.to_thread.run_sync(carry, abandon_on_cancel=True, limiter=_uncounted)
            return found.pop()
        finally:
            with _lock:
                call.left = True
                self._settle(call)
            for one in found:  # cancelled in the moment in which it was there
                unwanted(one)
            for free in self._waiting:
                free.set()
            self._waiting.clear()

    def _carry(
        self, call: _Call, work: Callable[[], Found], found: list[Found], unwanted: Callable[[Found], None]
    ) -> None:
        """In a thread."""
        if not self._begins(call):
            return
        late: list[Found] = []
        try:
            made = work()
            with _lock:
                (late if call.left else found).append(made)
        finally:
            with _lock:
                call.over = True
                self._settle(call)
        for one in late:
            unwanted(one)

    def _begins(self, call: _Call) -> bool:
        """Not when it was left before it could."""
        with _lock:
            call.begun = not call.left
            return call.begun

    def _settle(self, call: _Call) -> None:
        """It gives its place back when nobody waits for it and no thread is in it."""
        if call.left and (call.over or not call.begun):
            self._out.discard(call)
            _calls.discard(call)
