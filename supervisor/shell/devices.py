"""Keeps the book of the host's GPUs up to date from the feed, and answers whether a server's devices are free."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import anyio.to_thread
import msgspec
import structlog

from supervisor.config import ServerConfig
from supervisor.core.gpus import Claim, Culprit, DeviceBook, GpusView, Lease, Rules
from supervisor.devices import DeviceRecord, GpuReport, GpuSample, QuarantineRecord
from supervisor.edge.gpu_feed import GpuFeed
from supervisor.edge.holders import identify
from supervisor.events import DevicesChecked
from supervisor.shell import clock

log = structlog.get_logger()

_RELAX_AFTER_S = 15.0


class Devices:
    """The only writer of the device book. Leases follow the servers' lifecycles."""

    def __init__(self, state_dir: Path, server_of: Callable[[int], str], changed: Callable[[], None]) -> None:
        self._path = state_dir / "devices.json"
        self._server_of = server_of
        self._changed = changed
        self._book = DeviceBook(Rules(), wall_offset_s=time.time() - time.monotonic(), now=clock.monotonic())
        self._feed: GpuFeed | None = None
        self._asked_at = 0.0
        self._restore()

    async def run(self) -> None:
        """Read the feed until cancelled."""
        async with GpuFeed() as feed:
            self._feed = feed
            async for report in feed:
                await self._take(report)
                if clock.monotonic() - self._asked_at > _RELAX_AFTER_S:
                    feed.relax()

    def view(self) -> GpusView:
        """All devices for people."""
        return self._book.view()

    def leased(self, server: str) -> tuple[int, ...]:
        """The devices that the server has now."""
        return self._book.leased(server)

    def release_lease(self, server: str) -> None:
        """The server rests and its memory is back."""
        self._book.release_lease(server)

    def release(self, device: int) -> bool:
        """An operator puts a quarantined device back into use; False when it was not quarantined."""
        released = self._book.release(device)
        if released:
            log.info("gpu released", gpu=device)
            self._store()
            self._changed()
        return released

    def check(self, config: ServerConfig, attempt: int, after: float) -> DevicesChecked:
        """Whether the server's devices are free by looks from `after` on. Leases them to it on the way."""
        if not config.gpus.size:
            return DevicesChecked(attempt, True)
        self._hurry()
        lease = self._book.lease(config.name, config.gpus)
        if not isinstance(lease, Lease):
            return DevicesChecked(attempt, False, lease.reason, quarantined=lease.quarantined)
        claim = Claim(
            config.name, lease.devices, config.memory_tolerance_bytes, config.on_foreign, _uid(config.user), after
        )
        finding, records = self._book.check(claim, clock.monotonic())
        self._quarantined(records)
        for culprit in finding.kill:
            _kill(config.name, culprit)
        return finding.event(attempt)

    async def _take(self, report: GpuReport) -> None:
        pids = _pids(report) if isinstance(report, GpuSample) else ()
        owners = await anyio.to_thread.run_sync(identify, pids, self._server_of) if pids else ()
        self._quarantined(self._book.observe(report, owners, clock.monotonic()))
        self._changed()

    def _hurry(self) -> None:
        self._asked_at = clock.monotonic()
        if self._feed is not None:
            self._feed.hurry()

    def _quarantined(self, records: Iterable[QuarantineRecord]) -> None:
        for record in records:
            log.warning("gpu quarantined", gpu=record.device, uuid=record.uuid, kind=record.kind, reason=record.reason)
            self._store()

    def _restore(self) -> None:
        try:
            self._book.restore(msgspec.json.decode(self._path.read_bytes(), type=tuple[DeviceRecord, ...]))
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as problem:
            aside = self._path.with_suffix(".broken")
            with contextlib.suppress(OSError):
                self._path.replace(aside)
            log.warning("state", problem=f"cannot use {self._path}: {problem}; moved aside to {aside}")

    def _store(self) -> None:
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(self._book.records()))
            new.replace(self._path)
        except OSError as problem:
            log.warning("state", problem=f"cannot write {self._path}: {problem.strerror}; kept in memory only")


def _pids(report: GpuSample) -> tuple[int, ...]:
    return tuple(process.pid for gpu in report.devices for process in gpu.processes or () if process.alive)


def _uid(user: str | None) -> int:
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(user).pw_uid if user else os.geteuid()
    return os.geteuid()


def _kill(server: str, culprit: Culprit) -> None:
    """Kill beyond mistaking: the descriptor is taken first, then the start time compared, then the signal sent."""
    try:
        descriptor = os.pidfd_open(culprit.pid)
    except OSError:
        return  # gone already
    try:
        stat = Path(f"/proc/{culprit.pid}/stat").read_bytes().rpartition(b")")[2].split()
        if int(stat[19]) == culprit.start_ticks:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            log.warning("memory holder killed", server=server, pid=culprit.pid, kind=culprit.kind, user=culprit.user)
    except (OSError, IndexError, ValueError) as problem:
        log.warning("memory holder lives", server=server, pid=culprit.pid, problem=str(problem))
    finally:
        os.close(descriptor)
