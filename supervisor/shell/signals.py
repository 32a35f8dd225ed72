"""Heeds the signals sent to the daemon: the end, the end alone, the file read again."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import anyio
import structlog

from supervisor.edge.unitjob import UnitJob, job_of, own_unit
from supervisor.events import SignalRequested
from supervisor.shell.roster import Roster
from supervisor.shell.service import Service
from supervisor.shell.upgrade.handover import Unheard

log = structlog.get_logger()


class Signals:
    """One for the daemon. `ending` is set when it is to end; `reread` None: there is no file to read again."""

    def __init__(
        self,
        roster: Roster,
        service: Service,
        unheard: Unheard,
        ending: anyio.Event,
        reread: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._roster = roster
        self._service = service
        self._unheard = unheard
        self._ending = ending
        self._reread = reread
        self._hearing = anyio.CancelScope()
        self._reading = anyio.CancelScope()
        self._to_read = anyio.Event()
        self._deaf = anyio.Event()
        self.leave_servers = False  # they go on without us: the next daemon adopts them

    async def run(self) -> None:
        """Until `stop`."""
        # `sglsup run` has no file to read again, and its closed terminal ends it.
        hang_up = (signal.SIGHUP,) if self._reread is not None else ()
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *hang_up) as arriving:
            for number in self._unheard.take():
                await self._heed(signal.Signals(number))
            with self._hearing:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._read, name="reading the file again")
                    async for number in arriving:
                        await self._heed(number)
        self._unheard.listen()  # nobody else does, until the next code is there
        self._deaf.set()

    async def stop(self) -> None:
        """What arrives from now on is kept for the next code."""
        self._hearing.cancel()
        await self._deaf.wait()

    async def _heed(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            self._to_read.set()
        else:
            await self._end(number)

    async def _read(self) -> None:
        """Read the file whenever that was asked for, in a task of its own.

        What it changes may have to wait for a server that takes its time to end; who wants the daemon to end does not.
        """
        with self._reading:
            while self._reread is not None:
                await self._to_read.wait()  # as long as nobody asks
                self._to_read = anyio.Event()
                await self._reread()

    async def _end(self, number: signal.Signals) -> None:
        name = signal.Signals(number).name
        log.info("asked to end", by=name)
        if self._ending.is_set() and number == signal.SIGINT:
            await self._kill_servers(f"a second {name}")
        elif not self._ending.is_set() and number == signal.SIGTERM:
            self.leave_servers = await _goes_alone(self._service.active)
        self._ending.set()
        self._reading.cancel()  # its "ready" would contradict our "stopping"

    async def _kill_servers(self, by: str) -> None:
        """Who presses Ctrl-C twice does not want to wait for running requests."""
        for loop in self._roster.loops():
            await loop.post(SignalRequested(by, signal.SIGKILL))


async def _goes_alone(under_systemd: bool) -> bool:
    """Whether a SIGTERM means the daemon without its servers. Only a restart job of our own unit says so.

    Whatever cannot be told is a stop: a container engine has no systemctl and kills what does not end by itself, and
    devices that stay taken after a stop are worse than a restart that takes its time.
    """
    unit = own_unit() if under_systemd else None
    if unit is None:
        return False
    job = await job_of(unit)
    log.info("asked systemd for its job", unit=unit.name, job=str(job))
    match job:
        case UnitJob.RESTART:
            return True
        case UnitJob.STOP | UnitJob.NONE:
            return False
        case UnitJob.UNKNOWN:
            log.warning("cannot tell a restart from a stop: systemctl did not answer; the servers are stopped")
            return False
