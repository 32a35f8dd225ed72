"""Changes the files of the state directory in threads of its own, so that a disk that hangs holds up no decision."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import structlog

from supervisor.shell import clock

LIMIT_S = 1.0  # for what has to be on disk before something is done
LEAST_S = 0.05  # of that, once the disk is known not to answer
FLUSH_LIMIT_S = 5.0
THREADS = 4  # all write to one disk: when it hangs, each of them does

log = structlog.get_logger()


class Change:
    """One change that was asked for. `settled` when it is on disk, or refused: then `problem` says why."""

    def __init__(self, path: Path, make: Callable[[], None], cost: str, since: float) -> None:
        self.path = path
        self.make = make
        self.cost = cost
        self.since = since
        self.settled = anyio.Event()
        self.problem: OSError | None = None


class StateWriter:
    """Changes of one file are made in the order in which they were asked for; of several that wait, only the newest.

    A change that the disk refuses is made again after the next one that it takes. `tell` is told of each new `problem`,
    and "" when there is none any more. Without threads each change is made at once by who asks for it: no disk that
    hangs is expected there.
    """

    def __init__(
        self,
        tell: Callable[[str], None] = lambda _: None,
        *,
        threads: int = 0,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._tell = tell
        self._threads_max = threads
        self._monotonic = monotonic
        self._told = ""
        self._refused: dict[Path, Change] = {}
        self._open: set[Change] = set()  # asked for, and not settled yet
        # What the loop and the threads share, and the lock around it; nobody holds it while the disk works.
        self._lock = threading.Condition()
        self._waiting: dict[Path, Change] = {}
        self._busy: set[Path] = set()
        self._threads = 0
        self._idle = 0
        self._closing = False

    # --- what is asked -------------------------------------------------------------------------------------------

    def ask(self, path: Path, make: Callable[[], None], cost: str) -> Change:
        """Have the file changed by `make`, which raises OSError where it cannot; `cost`: what people lose by that."""
        return self._at_once(path, make, cost) if not self._threads_max else self._queued(path, make, cost)

    def _at_once(self, path: Path, make: Callable[[], None], cost: str) -> Change:
        change = Change(path, make, cost, self._monotonic())
        _make(change)
        self._settle(change)
        return change

    def _queued(self, path: Path, make: Callable[[], None], cost: str) -> Change:
        with self._lock:
            change = self._waiting.get(path)
            if change is None:
                change = self._waiting[path] = Change(path, make, cost, self._monotonic())
                self._open.add(change)
            else:  # nobody has begun it: who waits for it is served by the newer one
                change.make, change.cost = make, cost
            self._have_hands()
            self._lock.notify()
        return change

    def _have_hands(self) -> None:
        """One more thread where none is idle; without processes to be had those that there are do, or the next one."""
        if self._idle >= len(self._waiting) or self._threads >= self._threads_max:
            return
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=self._work, args=(loop,), name="state writer", daemon=True)
        with contextlib.suppress(RuntimeError):
            thread.start()
            self._threads += 1

    async def made(self, change: Change, limit_s: float = LIMIT_S) -> None:
        """Return when it is on disk. OSError when the disk refuses, or does not answer: then it is made when it does.

        Once the disk has not answered anybody for `limit_s` nobody waits that long any more.
        """
        if not change.settled.is_set():
            with anyio.move_on_after(max(LEAST_S, limit_s - self._silent_s())):
                await change.settled.wait()
            self._review()
        if not change.settled.is_set():
            raise TimeoutError(errno.ETIMEDOUT, f"the disk has not answered within {limit_s:g} s", str(change.path))
        if change.problem is not None:
            raise change.problem

    async def tried(self, change: Change) -> None:
        """As `made`, for what is done all the same: `tell` has been told."""
        with contextlib.suppress(OSError):
            await self.made(change)

    async def flush(self, limit_s: float = FLUSH_LIMIT_S) -> bool:
        """Wait until nothing is under way; False when `limit_s` is over before."""
        with anyio.move_on_after(limit_s, shield=True):
            while (change := self._oldest()) is not None:
                await change.settled.wait()
            return True
        return False

    async def close(self, limit_s: float = FLUSH_LIMIT_S) -> None:
        """Flush, and end the threads. One that hangs in the kernel is left to the end of the process."""
        if not await self.flush(limit_s):
            left = ", ".join(sorted({str(change.path) for change in self._open}))
            log.warning("state", problem=f"the disk has not answered within {limit_s:g} s: not written: {left}")
        with self._lock:
            self._closing = True
            self._lock.notify_all()

    # --- what is wrong -------------------------------------------------------------------------------------------

    @property
    def problem(self) -> str:
        """Why the next daemon would not know all that it should; "" when it would, or will in a moment."""
        if self.hangs and (oldest := self._oldest()) is not None:
            return f"cannot write {oldest.path}: the disk has not answered within {LIMIT_S:g} s; {oldest.cost}"
        for change in self._refused.values():
            return f"cannot write {change.path}: {_why(change.problem)}; {change.cost}"
        return ""

    @property
    def hangs(self) -> bool:
        """Whether something has waited for the disk longer than anybody does who is in good health."""
        return self._silent_s() >= LIMIT_S

    def _oldest(self) -> Change | None:
        return min(self._open, key=lambda one: one.since, default=None)

    def _silent_s(self) -> float:
        oldest = self._oldest()
        return 0.0 if oldest is None else self._monotonic() - oldest.since

    def _review(self) -> None:
        """Tell what is new. A disk that hangs is one problem, whichever file it is that waits."""
        problem = self.problem
        kind = "it hangs" if self.hangs else problem
        if kind != self._told:
            self._told = kind
            self._tell(problem)

    # --- in a thread ---------------------------------------------------------------------------------------------

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (change := self._next()) is not None:
            _make(change)
            with self._lock:
                # Told before the file is anybody's again: a refusal heard of after a newer change would undo that one.
                with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile: nobody waits any more
                    loop.call_soon_threadsafe(self._settle, change)
                self._busy.discard(change.path)
                self._lock.notify()

    def _next(self) -> Change | None:
        """The next change whose file nobody is at; None at the end. Waits without limit: mostly nothing changes."""
        with self._lock:
            self._idle += 1
            self._lock.wait_for(lambda: self._closing or self._free() is not None)
            self._idle -= 1
            if (path := self._free()) is None:
                return None
            self._busy.add(path)
            return self._waiting.pop(path)

    def _free(self) -> Path | None:
        return next((path for path in self._waiting if path not in self._busy), None)

    # --- on the loop again ---------------------------------------------------------------------------------------

    def _settle(self, change: Change) -> None:
        self._open.discard(change)
        if change.problem is None:
            self._refused.pop(change.path, None)
            self._ask_again()
        elif all(other.path != change.path for other in self._open):  # else a newer one tells
            self._refused[change.path] = change
        change.settled.set()
        self._review()

    def _ask_again(self) -> None:
        busy = {change.path for change in self._open}  # by a newer one
        for change in [change for path, change in self._refused.items() if path not in busy]:
            self.ask(change.path, change.make, change.cost)


def _make(change: Change) -> None:
    try:
        change.make()
    except OSError as problem:
        change.problem = problem
    except Exception as bug:  # the thread must live: others wait for what it writes next
        log.error("bug", where=f"writing {change.path}", exc_info=bug)
        change.problem = OSError(errno.EIO, f"error of the supervisor itself: {type(bug).__name__}: {bug}")


def _why(problem: OSError | None) -> str:
    return (problem.strerror or str(problem)) if problem is not None else ""
