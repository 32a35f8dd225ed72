"""Feeds what the GPU reader child says, and survives whatever happens to it.

A driver call that hangs costs us the child (`__main__.py`), never the daemon: silence is reported as `GpuBlind`, the
child is killed and replaced. One that cannot be killed (it sleeps in the kernel) is abandoned, a few times at most.
"""

from __future__ import annotations

import enum
import signal
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType

import anyio
import msgspec

from supervisor.devices import GpuAbsent, GpuBlind, GpuReport, GpuSample, XidSeen
from supervisor.edge.gpu.process import ReaderProcess, launch_reader

LINE_LIMIT = 1 << 20  # bytes; sixteen GPUs with a hundred processes each stay below a fifth of it
GOOD_LINES = 10  # so many samples of one child, and the next failure starts with the shortest pause again


class Sight(enum.StrEnum):
    """What the feed can say about the GPUs."""

    SEEING = "seeing"
    BLIND = "blind"
    ABSENT = "absent"


class FeedTimings(msgspec.Struct, frozen=True):
    """How often the GPUs are looked at, and how long silence is borne."""

    active_s: float = 1.0  # while a start, stop or reclaim waits for the devices
    idle_s: float = 10.0
    first_line_s: float = 60.0  # without persistence mode the driver wakes each GPU for seconds
    again_min_s: float = 10.0  # for the first line of a later reader; longer where the first one needed longer
    again_times: float = 4.0
    silent_periods: float = 3.0
    silent_min_s: float = 5.0  # calls were seen to take 0.2 s while a context is made or torn down
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    absent_retry_s: float = 300.0
    reap_s: float = 2.0
    abandoned_max: int = 3


class FeedStatus(msgspec.Struct, frozen=True):
    """The feed's own health, for status and metrics."""

    sight: Sight
    since: float
    reason: str
    pid: int | None
    restarts: int
    abandoned: tuple[int, ...]


class GpuFeed:
    """An async iterator of `GpuReport`, to be closed with `async with`. One reader at a time.

    `GpuBlind` and `GpuAbsent` come once for each change of sight or reason, samples as often as the period says.
    """

    def __init__(
        self,
        timings: FeedTimings | None = None,
        launch: Callable[[float], ReaderProcess] = launch_reader,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timings = timings or FeedTimings()
        self._launch = launch
        self._clock = clock
        self._period_s = self._timings.active_s
        self._child: ReaderProcess | None = None
        self._decoder = msgspec.json.Decoder(GpuReport)
        self._buffer = b""
        self._last_line = self._asked = self._next_launch = clock()
        self._lines = self._failures = self._restarts = 0
        self._launched = clock()
        self._woke_in_s: float | None = None  # how long a reader took for its first line
        self._abandoned: list[ReaderProcess] = []
        self._scope: anyio.CancelScope | None = None
        self._sight, self._since, self._reason = Sight.BLIND, clock(), "not looked yet"

    async def __aenter__(self) -> GpuFeed:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[GpuReport]:
        return self

    async def __anext__(self) -> GpuReport:
        """The next report; waits without end only while there is nothing to report, e.g. no GPU."""
        while True:
            report = await self._step()
            if report is not None and self._note(report):
                return report

    @property
    def status(self) -> FeedStatus:
        """How the feed itself fares."""
        self._reap()
        pid = self._child.pid if self._child else None
        abandoned = tuple(child.pid for child in self._abandoned)
        return FeedStatus(self._sight, self._since, self._reason, pid, self._restarts, abandoned)

    def hurry(self) -> None:
        """Somebody waits for the devices: look now, and often. Ends a pause after `absent` or a failure, too."""
        self._set_period(self._timings.active_s)
        self._next_launch = min(self._next_launch, self._clock() + self._timings.backoff_s)
        self._move_deadline()

    def relax(self) -> None:
        """Nobody waits: look seldom. To say so again changes nothing, so that every report may be answered with it."""
        if self._period_s != self._timings.idle_s:
            self._set_period(self._timings.idle_s)

    async def aclose(self) -> None:
        """Ends the child."""
        if self._child is not None:
            with anyio.CancelScope(shield=True):  # bounded by `reap_s`
                await self._drop(self._child)

    def _set_period(self, period_s: float) -> None:
        self._period_s = period_s
        if self._child is not None:
            self._child.tell(period_s)
            if self._asked <= self._last_line:  # else an earlier question has no answer yet, and its silence counts
                self._asked = self._clock()
        self._move_deadline()

    def _move_deadline(self) -> None:
        if self._scope is not None:
            self._scope.deadline = anyio.current_time() + max(0.0, self._wait_limit())

    def _wait_limit(self) -> float:
        """Seconds until silence, or the pause before the next launch, has lasted long enough."""
        if self._child is None:
            return self._next_launch - self._clock()
        if self._lines == 0:
            return self._last_line + self._first_line_limit_s() - self._clock()
        silence_s = max(self._timings.silent_min_s, self._timings.silent_periods * self._period_s)
        # After a long period nobody was silent who had not been asked.
        return max(self._last_line, self._asked) + silence_s - self._clock()

    def _first_line_limit_s(self) -> float:
        if self._woke_in_s is None:
            return self._timings.first_line_s
        wanted = max(self._timings.again_min_s, self._timings.again_times * self._woke_in_s)
        return min(self._timings.first_line_s, wanted)

    async def _step(self) -> GpuReport | None:
        if self._child is None:
            return await self._launch_next()
        if (line := self._take_line()) is not None:
            return await self._understand(line)
        data = await self._read(self._child)
        if data is None:
            return await self._lost(f"the GPU reader has been silent for {self._silence()}: a driver call hangs")
        if not data:
            return await self._lost(await self._obituary(self._child))
        self._buffer += data
        if len(self._buffer) > LINE_LIMIT:
            return await self._lost("the GPU reader sent a line without end")
        return None

    async def _launch_next(self) -> GpuReport | None:
        await self._pause()
        if self._next_launch > self._clock():  # the end of the pause was moved meanwhile
            return None
        self._reap()
        if len(self._abandoned) >= self._timings.abandoned_max:
            self._next_launch = self._clock() + self._timings.backoff_max_s
            pids = ", ".join(str(child.pid) for child in self._abandoned)
            return self._blind(f"{len(self._abandoned)} GPU readers hang inside the kernel (pids {pids})")
        return self._try_launch()

    def _try_launch(self) -> GpuReport | None:
        self._buffer, self._lines, self._last_line = b"", 0, self._clock()
        self._asked = self._last_line
        self._launched = self._last_line
        try:
            self._child = self._launch(self._period_s)
        except OSError as error:
            self._back_off()
            return self._blind(f"cannot start the GPU reader: {error}")
        return None

    async def _pause(self) -> None:
        with anyio.move_on_after(max(0.0, self._wait_limit())) as self._scope:
            await anyio.sleep_forever()

    async def _read(self, child: ReaderProcess) -> bytes | None:
        """Bytes, b"" at the end, None when the child has been silent for too long."""
        with anyio.move_on_after(max(0.0, self._wait_limit())) as self._scope:
            while (data := child.read()) is None:
                await anyio.wait_readable(child.output)
            return data
        return None

    def _take_line(self) -> bytes | None:
        line, end, rest = self._buffer.partition(b"\n")
        if not end:
            return None
        self._buffer = rest
        return line

    async def _understand(self, line: bytes) -> GpuReport | None:
        self._last_line = self._clock()
        try:
            report = self._decoder.decode(line)
        except msgspec.DecodeError as error:
            return await self._lost(f"cannot understand the GPU reader: {error}: {line[:200]!r}")
        match report:
            case GpuSample():
                if self._lines == 0:
                    self._woke_in_s = self._last_line - self._launched
                self._lines += 1
                self._failures = 0 if self._lines >= GOOD_LINES else self._failures
                return report
            case XidSeen():
                return report
            case GpuBlind(reason=reason):
                return await self._lost(reason)
            case GpuAbsent():
                await self._end_child()
                self._next_launch = self._clock() + self._timings.absent_retry_s
                return report

    async def _lost(self, reason: str) -> GpuReport:
        await self._end_child()
        self._restarts += 1
        self._back_off()
        return self._blind(reason)

    def _blind(self, reason: str) -> GpuBlind:
        return GpuBlind(at=self._clock(), reason=reason)

    def _back_off(self) -> None:
        pause_s = min(self._timings.backoff_s * 2.0**self._failures, self._timings.backoff_max_s)
        self._failures = min(self._failures + 1, 30)
        self._next_launch = self._clock() + pause_s

    def _silence(self) -> str:
        return f"{self._clock() - self._last_line:.1f} s"

    async def _obituary(self, child: ReaderProcess) -> str:
        await self._wait_for(child)
        match child.exit_code():
            case None:
                return "the GPU reader closed its output"
            case code if code < 0:
                return f"the GPU reader was killed by {signal.Signals(-code).name}"
            case code:
                return f"the GPU reader exited with status {code}"

    async def _end_child(self) -> None:
        if self._child is not None:
            await self._drop(self._child)

    async def _drop(self, child: ReaderProcess) -> None:
        """Kills it and waits a little for its end; a child that stays is left behind, and counted."""
        self._child = None
        self._abandoned.append(child)  # before the wait, which may be cancelled
        child.close()
        child.kill()
        await self._wait_for(child)
        self._reap()

    async def _wait_for(self, child: ReaderProcess) -> None:
        if child.exit_code() is None:
            with anyio.move_on_after(self._timings.reap_s):
                await child.ended()

    def _reap(self) -> None:
        self._abandoned = [child for child in self._abandoned if child.exit_code() is None]

    def _note(self, report: GpuReport) -> bool:
        """Keeps the state of sight; False when the report says nothing new."""
        match report:
            case GpuSample():
                self._change(Sight.SEEING, "")
                return True
            case XidSeen():
                return True
            case GpuBlind(reason=reason):
                return self._change(Sight.BLIND, reason)
            case GpuAbsent(reason=reason):
                return self._change(Sight.ABSENT, reason)

    def _change(self, sight: Sight, reason: str) -> bool:
        if (sight, reason) == (self._sight, self._reason):
            return False
        if sight is not self._sight:
            self._since = self._clock()
        self._sight, self._reason = sight, reason
        return True
